"""`schedtop export`: a recording for other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO, cast

import click
from schedtop.console.cli.errors import CommandError, check_writable, say
from schedtop.console.cli.recording_flags import opened, progress

FORMATS = ("perfetto", "csv", "parquet", "jsonl")


@click.command("export")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--to", "name", type=click.Choice(FORMATS), required=True, help="The format.")
@click.option("-o", "--output", metavar="OUT", help="The file to write; - is stdout. Beside FILE unless set.")
@click.pass_context
def command(ctx: click.Context, file: Path, name: str, output: str | None) -> None:
    """Write a recording for other tools.

    perfetto is a Chrome trace (open it in ui.perfetto.dev): one track per request, counters beside them. csv and
    parquet have one row of figures per record, jsonl all of every record.
    """
    from schedtop.engine.inspect.export import check_format, default_path, export

    check_format(name)
    with opened(file) as recording:
        target: Path | BinaryIO
        if output == "-":
            if sys.stdout.isatty():
                raise CommandError("-o -: stdout is a terminal; send it to a file or a pipe")
            target = cast(BinaryIO, sys.stdout.buffer)
        else:
            out = str(default_path(recording.path, name)) if output is None else output
            check_writable(out)
            target = Path(out)
        with progress("exporting", len(recording)) as on_progress:
            export(recording, name, target, on_progress)
    if isinstance(target, Path):
        say(f"wrote {target}, {target.stat().st_size:,} bytes")
    ctx.exit(0)
