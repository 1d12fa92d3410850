"""FILE and the engine's flags as a repeatable scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from schedtop.console.cli.engine_flags import engine_config
from schedtop.engine.decide_again.recorded_scenario import recorded_scenario
from schedtop.engine.decide_again.scenario import Scenario
from schedtop.engine.offline.headless import Progress, with_end
from schedtop.engine.recording.arrivals import looks_like_recording

NOT_HERE = {
    "workload": "name it as FILE",
    **dict.fromkeys(("model", "draft_model", "dtype"), "it runs no model; leave it out"),
    **dict.fromkeys(("record", "record_text", "metrics_port", "real_time"), "leave it out"),
}
"""Engine flags without meaning for a repeatable run on simulated time, and what to do instead."""


def open_scenario(
    ctx: click.Context, file: str, flags: Mapping[str, Any], notice: Callable[[str], None]
) -> Scenario:
    """The scenario in FILE; `--duration` ends its arrivals, all of which are served.

    Raises `CommandError` or `ConfigError` with one clear line, before there is a notice.
    """
    given = {name for name in flags if ctx.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)}
    config = engine_config({**flags, "workload": file})
    if looks_like_recording(Path(file)):
        return recorded_scenario(config, given)
    notices: list[str] = []
    scenario = Scenario(with_end(config, notices.append))
    if notices:
        scenario.build()
    for line in notices:
        notice(line)
    return scenario


@contextmanager
def progress_over(total_s: float | None, shown: bool) -> Iterator[Callable[[float], None]]:
    """A bar over a run's seconds on the terminal; nothing elsewhere."""
    with Progress(total_s, shown) as bar:
        yield bar.update
