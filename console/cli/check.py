"""`schedtop check`: conditions over a recording, for scripts and CI."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from schedtop.console.cli.errors import FAILED, CommandError
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.recording_flags import opened, progress
from schedtop.engine.contract.latencies.slo import parse_slo
from schedtop.engine.contract.sanitize import one_line


@click.command("check")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("conditions", metavar="CONDITION...", nargs=-1, required=True)
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: the bounds that goodput counts under.")
@click.option("--whole", is_flag=True, help="A recording that is cut off fails too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line and condition.")
@click.pass_context
def command(
    ctx: click.Context, file: Path, conditions: tuple[str, ...], slo: str | None, whole: bool, as_json: bool
) -> None:
    """Check conditions: 'ttft.p95<1s' 'preemptions==0' 'hit_rate>=50%' 'no loops'.

    Exit code 0 if all hold, 1 on a breach (with the step), 2 for a condition that cannot be read.
    """
    from schedtop.engine.inspect.check import check
    from schedtop.engine.inspect.conditions import parse_condition

    asked = [parse_condition(condition) for condition in conditions]
    bounds = None if slo is None else parse_slo(slo)
    if bounds is not None and not any(condition.figure == "goodput" for condition in asked):
        raise CommandError("--slo: no condition asks for the goodput")
    with opened(file) as recording:
        with progress("checking", len(recording)) as on_progress:
            outcomes = check(recording, asked, bounds, on_progress)
        cut = whole and recording.truncated is not None
    for outcome in outcomes:
        show_json(msgspec.to_builtins(outcome)) if as_json else show(one_line(outcome))
    ctx.exit(FAILED if cut or not all(outcome.ok for outcome in outcomes) else 0)
