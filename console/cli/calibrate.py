"""`schedtop calibrate`: a simulated device from recordings of a real one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click
from schedtop.console.cli.errors import CommandError, check_writable
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.recording_flags import opened
from schedtop.engine.contract.sanitize import one_line


@click.command("calibrate")
@click.argument("files", metavar="RECORDING...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="DEVICE.toml", required=True, help="The device file to write.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of text.")
@click.pass_context
def command(ctx: click.Context, files: tuple[Path, ...], output: str, as_json: bool) -> None:
    """Fit step times to RECORDING and write them as a device for --device sim:@DEVICE.toml.

    Prints the costs, and how far predicted steps are off.
    """
    import msgspec
    from schedtop.engine.sim.calibrate import calibrate, fit_text, write_device

    check_writable(output)
    if len({file.resolve() for file in files}) < len(files):
        raise CommandError("a recording is named twice: its steps would count twice")
    with ExitStack() as stack:
        recordings = [stack.enter_context(opened(file)) for file in files]
        calibration, fitted = calibrate([(recording.header, recording.records()) for recording in recordings])
    write_device(Path(output), calibration, fitted)
    if as_json:
        errors = {name: getattr(fitted, name) for name in ("all", "decodes", "prompts", "held_out")}
        document = {"device": calibration, "errors": errors, "outliers": fitted.num_outliers, "output": output}
        show_json(msgspec.to_builtins(document))
    else:
        show(f"{fit_text(fitted)}\n{one_line(f'wrote {output}: use --device sim:@{output}')}")
    ctx.exit(0)
