"""`schedtop diff`: where two recordings diverge."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from schedtop.console.cli.errors import FAILED
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.recording_flags import opened, progress


@click.command("diff")
@click.argument("a", metavar="A", type=click.Path(path_type=Path))
@click.argument("b", metavar="B", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of text.")
@click.pass_context
def command(ctx: click.Context, a: Path, b: Path, as_json: bool) -> None:
    """Where two recordings first diverge, and why.

    Exit code 0 if every step is the same, 1 if not. Times of real devices are not differences.
    """
    from schedtop.engine.decide_again.diff import diff

    with (
        opened(a, read_on=False) as left,
        opened(b, read_on=False) as right,
        progress("comparing", max(len(left), len(right))) as on_progress,
    ):
        found = diff(left, right, on_progress)
    if as_json:
        show_json({"equal": found.equal, **msgspec.to_builtins(found)})
    else:
        show(found.as_text())
    ctx.exit(0 if found.equal else FAILED)
