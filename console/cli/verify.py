"""`schedtop verify`: recorded decisions, decided again step by step."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from schedtop.console.cli.errors import BAD_INPUT, FAILED, CommandError, say, short_line
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.recording_flags import expected, opened, progress
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.sanitize import one_line, page
from schedtop.engine.golden.case import CaseError, read_case
from schedtop.engine.golden.deviations import deviation
from schedtop.engine.golden.replay import Verdict, verify
from schedtop.engine.recording.frames import RecordingError

if TYPE_CHECKING:
    from schedtop.engine.decide_again.verify import RecordingVerdict

MAX_VERDICT_CHARS = 20_000

FILE_MARK = b"\x8aschedtop"
"""A recording's first bytes; a golden case is JSON."""


@click.command("verify")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line and case.")
@click.pass_context
def command(ctx: click.Context, /, files: tuple[Path, ...], as_json: bool) -> None:
    """Decide golden cases and recordings again, and compare every step with what was recorded.

    A recording's arrivals, knob changes and results are fed to this scheduler; every decision must be the same,
    down to the ids of blocks. Exit code 1 if any step differs, 2 if a file cannot be read. A case without steps is
    just run.
    """
    code = 0
    for path in files:
        try:
            equal, answer = _recording(path, as_json) if _is_recording(path) else _case(path, as_json)
        except (CaseError, RecordingError, CommandError) as error:
            say(str(error))
            code = BAD_INPUT
            continue
        if equal is False and code == 0:
            code = FAILED
        show_json(answer) if isinstance(answer, dict) else show(answer)
    ctx.exit(code)


def _is_recording(path: Path) -> bool:
    if path.is_dir():
        from schedtop.console.cli.flights import is_flight

        return is_flight(path)
    if odd_file(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(FILE_MARK)) == FILE_MARK
    except OSError:
        return False


def _case(path: Path, as_json: bool) -> tuple[bool | None, dict[str, Any] | str]:
    with expected(path, "a golden case", CaseError):
        case = read_case(path)
    verdict = verify(case)
    meant = None if verdict.difference is None else deviation(case, verdict.difference)
    if as_json:
        return verdict.equal, {**as_document(verdict), "deviation": meant}
    text = as_text(verdict) + (f" ({meant})" if meant else "")
    return verdict.equal, short_line(text, MAX_VERDICT_CHARS)


def _recording(path: Path, as_json: bool) -> tuple[bool, dict[str, Any] | str]:
    from schedtop.engine.decide_again.verify import verify_recording

    with opened(path, read_on=False) as recording, progress("deciding", len(recording)) as on_progress:
        verdict = verify_recording(recording, on_progress)
    if not verdict.steps and verdict.equal:
        raise CommandError(f"{path}: there is no whole step in it to decide again")
    if as_json:
        return verdict.equal, msgspec.to_builtins(verdict)
    return verdict.equal, recording_text(verdict)


def recording_text(verdict: RecordingVerdict) -> str:
    """How far the decisions agree, or the first difference."""
    if verdict.difference is not None:
        lines = [f"{verdict.name}: differs at step {verdict.difference.step}, {verdict.difference.clock_s:.3f} s"]
        width = max(len(part.field) for part in verdict.difference.parts)
        for part in verdict.difference.parts:
            lines += [
                f"  {part.field:<{width}}  recorded  {part.base}",
                f"  {'':<{width}}  decided   {part.variant}",
            ]
        if verdict.first_step:
            lines.append(
                "  the recording begins late: what lay in the cache before is known only where it was used"
            )
        return page([*lines, f"  the {verdict.steps:,} steps before are equal"])
    return one_line(
        f"{verdict.name}: equal ({verdict.steps} steps, {verdict.admissions} admissions,"
        f" {verdict.preemptions} preemptions, {verdict.scheduled_tokens} tokens)"
        + (f", from step {verdict.first_step + 1} on" if verdict.first_step else "")
    )


def as_document(verdict: Verdict) -> dict[str, Any]:
    """Plain JSON values; `difference` is null or says where the case and this scheduler part."""
    fields = asdict(verdict)
    fields["difference"] = None if verdict.difference is None else str(verdict.difference)
    return fields


def as_text(verdict: Verdict) -> str:
    if verdict.difference is not None:
        return f"{verdict.name}: differs at {verdict.difference}"
    outcome = "ran" if verdict.equal is None else "equal"
    return (
        f"{verdict.name}: {outcome} ({verdict.steps} steps, {verdict.preemptions} preemptions,"
        f" {verdict.scheduled_tokens} tokens)"
    )
