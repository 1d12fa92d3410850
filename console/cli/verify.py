"""`schedtop verify`: replay recorded decisions step by step."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from schedtop.console.cli.errors import BAD_INPUT, FAILED, say
from schedtop.engine.golden import CaseError, Verdict, read_case, verify


@click.command("verify")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line and case.")
@click.pass_context
def command(ctx: click.Context, /, files: tuple[Path, ...], as_json: bool) -> None:
    """Replay golden cases and compare every step with what was recorded.

    Exit code 1 if any step differs, 2 if a file cannot be read. A case without steps is just run.
    """
    code = 0
    for path in files:
        try:
            verdict = verify(read_case(path))
        except CaseError as error:
            say(str(error))
            code = BAD_INPUT
            continue
        if verdict.equal is False and code == 0:
            code = FAILED
        click.echo(as_line(verdict) if as_json else as_text(verdict))
    ctx.exit(code)


def as_line(verdict: Verdict) -> str:
    """One JSON object; `difference` is null or says where the case and this scheduler part."""
    fields = asdict(verdict)
    fields["difference"] = None if verdict.difference is None else str(verdict.difference)
    return json.dumps(fields)


def as_text(verdict: Verdict) -> str:
    if verdict.difference is not None:
        return f"{verdict.name}: differs at {verdict.difference}"
    outcome = "ran" if verdict.equal is None else "equal"
    return (
        f"{verdict.name}: {outcome} ({verdict.steps} steps, {verdict.preemptions} preemptions,"
        f" {verdict.scheduled_tokens} tokens)"
    )
