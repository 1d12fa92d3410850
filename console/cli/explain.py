"""`schedtop explain`: what a recording's symptoms say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from schedtop.console.cli.errors import check_positive
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.recording_flags import opened
from schedtop.engine.contract.latencies.slo import Slo, parse_slo
from schedtop.engine.contract.telemetry import Outgoing

if TYPE_CHECKING:
    from schedtop.engine.recording.reader import Recording


@click.command("explain")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of text.")
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: bounds that take the place of relative ones.")
@click.option("--window", "window_s", type=float, default=30.0, show_default=True, help="Seconds of one look.")
@click.pass_context
def command(ctx: click.Context, file: Path, as_json: bool, slo: str | None, window_s: float) -> None:
    """Read the symptoms of a recording: findings with their causes, evidence, and the trade of each remedy.

    Exit code 0 whatever is found.
    """
    from schedtop.console.explain.log import Log, read
    from schedtop.console.explain.page import document, page
    from schedtop.console.explain.window import Bounds

    check_positive("--window", window_s)
    bounds = Slo() if slo is None else parse_slo(slo)
    with opened(file) as recording:
        log = read(_messages(recording), Log(window_s, Bounds(bounds.ttft_s, bounds.itl_s)))
    show_json({"file": file.name, **document(log)}) if as_json else show(page(log))
    ctx.exit(0)


def _messages(recording: Recording) -> Iterator[Outgoing]:
    yield recording.header
    yield recording.keyframe_before(0)[0]
    yield from recording.records()
