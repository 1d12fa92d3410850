"""`schedtop study`: comparisons that show what a mechanism is worth."""

from __future__ import annotations

import click
from schedtop.console.cli.output import show, show_json


@click.command("study")
@click.argument("name", metavar="shared-prefix|unrelated|pressure|swap")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of text.")
@click.pass_context
def command(ctx: click.Context, name: str, as_json: bool) -> None:
    """Run the comparisons of docs/studies/NAME.md: the same numbers on every machine."""
    from schedtop.engine.whatif.studies import STUDIES, run_study

    answers = run_study(name)
    if as_json:
        document = [{"question": question.text, **comparison.as_dict()} for question, comparison in answers]
        show_json({"study": name, "answers": document})
    else:
        texts = [f"{question.text}\n{comparison.as_text()}" for question, comparison in answers]
        show("\n\n".join([STUDIES[name].title, *texts]))
    ctx.exit(0)
