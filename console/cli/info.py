"""`schedtop info`: what a recording is, and how its run ended."""

from __future__ import annotations

from pathlib import Path

import click
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.recording_flags import opened, progress
from schedtop.engine.contract.latencies.slo import parse_slo


@click.command("info")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of text.")
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: adds goodput under these bounds.")
@click.pass_context
def command(ctx: click.Context, file: Path, as_json: bool, slo: str | None) -> None:
    """Header, totals and percentiles of a recording."""
    from schedtop.engine.inspect.info import document, text

    bounds = None if slo is None else parse_slo(slo)
    with opened(file) as recording:
        with progress("reading", len(recording)) as on_progress:
            figures = document(recording, bounds, on_progress)
        show_json(figures) if as_json else show(text(recording, figures))
    ctx.exit(0)
