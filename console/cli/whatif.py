"""`schedtop whatif`: the same requests under changed knobs."""

from __future__ import annotations

import sys
from typing import Any

import click
from schedtop.console.cli.engine_flags import add_engine_flags
from schedtop.console.cli.errors import say
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.scenario_flags import NOT_HERE, open_scenario, progress_over
from schedtop.console.cli.unused_flags import without
from schedtop.engine.contract.knobs import parse_assignments
from schedtop.engine.contract.latencies.slo import parse_slo


@click.command("whatif")
@click.argument("file", metavar="FILE")
@click.option("--set", "assignments", multiple=True, required=True, metavar="NAME=VALUE", help="A knob to change.")
@click.option(
    "--at", "from_step", type=click.IntRange(min=0), default=0, help="Make the change after this many steps."
)
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: adds goodput under these bounds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of a table.")
@add_engine_flags()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    file: str,
    assignments: tuple[str, ...],
    from_step: int,
    slo: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Serve FILE twice, as it is and with --set, and show both runs side by side.

    FILE is a generator's name, a trace, a golden case or a recording, whose own device and knobs are the base.
    """
    from schedtop.engine.decide_again.scenario import check_changes
    from schedtop.engine.whatif.compare import compare

    changes = check_changes(parse_assignments(assignments), live=from_step > 0)
    bounds = None if slo is None else parse_slo(slo)
    scenario = open_scenario(ctx, file, flags, notice=say)
    with progress_over(scenario.config.duration_s, shown=sys.stderr.isatty()) as on_progress:
        comparison = compare(scenario, changes, bounds, from_step=from_step, on_progress=on_progress)
    show_json(comparison.as_dict()) if as_json else show(comparison.as_text())
    ctx.exit(0)


without(command, NOT_HERE)
