"""`schedtop generate`: prompts from a file through a real model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from schedtop.console.cli.engine_flags import add_engine_flags, engine_config
from schedtop.console.cli.errors import INTERRUPTED, check_name, say
from schedtop.console.cli.output import show_progress
from schedtop.console.cli.pull import check_start
from schedtop.console.cli.recording_flags import expected
from schedtop.console.cli.unused_flags import without
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.sampling_settings import check_sampling
from schedtop.engine.offline.generate import generate, read_prompts
from schedtop.engine.runner.loading.model_files import DEFAULT_MODEL

NOT_HERE = {
    "workload": "prompts come from FILE",
    "max_prompt_tokens": "cut the prompts of FILE",
    "max_output_tokens": "give --max-tokens",
    "limit": "FILE says how many",
    **dict.fromkeys(
        ("rate", "scale", "time_scale", "start_s", "end_s", "prefix_block_tokens", "skip_bad"),
        "the prompts of FILE come as they are, all at once",
    ),
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size"), "a model runs undivided here"),
    **dict.fromkeys(
        ("duration_s", "real_time", "record", "record_text", "metrics_port"), "leave it out, or use schedtop run"
    ),
}
"""Engine flags that mean nothing for prompts from a file, and what to do instead."""

SAMPLING_FLAGS = ("temperature", "top_k", "top_p", "min_p", "stop")


@click.command("generate")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, metavar="OUT", type=click.Path(path_type=Path), help="Answers (JSONL)."
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Most output tokens."
)
@click.option("--ignore-eos", is_flag=True, help="Go on to --max-tokens whatever the model says.")
@click.option("--temperature", type=float, help="0 is greedy; the model's own advice unless set.")
@click.option("--top-k", type=int, help="Sample among the K likeliest tokens; 0 is off.")
@click.option("--top-p", type=float, help="Sample among the likeliest tokens that make up this share.")
@click.option("--min-p", type=float, help="Leave out tokens below this share of the likeliest one's.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End at this text; may be given again.")
@add_engine_flags()
@click.pass_context
def command(
    ctx: click.Context, /, file: Path, output: Path, max_tokens: int, ignore_eos: bool, **flags: Any
) -> None:
    """Answer every line of FILE: {"prompt": ...}, {"prompt_token_ids": [...]} or {"messages": [...]}.

    OUT gets one line per prompt, in order. Ctrl+C keeps what is finished; the same command resumes.
    """
    sampling = {name: flags.pop(name) for name in SAMPLING_FLAGS}
    given = {name: value for name, value in sampling.items() if value not in (None, ())}
    if ignore_eos:
        given["ignore_eos"] = True
    if flags.get("device") is None and flags.get("model") is None:
        flags["model"] = DEFAULT_MODEL
    check_name(str(output))
    config = engine_config(flags)
    check_sampling(SamplingParams(**given))
    with expected(file, "prompts", ConfigError):
        read_prompts(file)
    check_start(config)
    watched = sys.stderr.isatty()

    def tell(text: str) -> None:
        if watched:
            show_progress(text)

    def notice(line: str) -> None:
        tell("")
        say(line)

    summary = generate(
        config,
        file,
        output,
        max_tokens=max_tokens,
        sampling=given,
        on_stage=tell,
        on_progress=lambda done, total: tell(f"{done} of {total} prompts"),
        on_notice=notice,
    )
    tell("")
    if summary.resumed == summary.prompts:
        say(f"{output} holds {summary.prompts} answers already: nothing was run; remove it to answer again")
        return
    say(summary.line())
    if summary.interrupted:
        say(f"interrupted: the same command resumes; {output} comes when all prompts are answered")
        ctx.exit(INTERRUPTED)


without(command, NOT_HERE)
