"""How a console is to behave, as the command line sets it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Start-up settings of the console. SLOs are in seconds; None means none is set.

    `theme` None picks by terminal: monochrome under NO_COLOR, the terminal's own colours where it has 16, else
    dark. `embedded`: the engine ends with the console. `config_dir` holds `themes/` and `keys.toml`;
    `output_dir` takes screenshots and exports. `notice` is shown once at the start.
    `paint_every_s` is the least time between two frames of telemetry.
    `who` names the user and the console in what they change. `guide` offers the guided minute. `address` is where the
    engine answers, if it was attached to.
    """

    theme: str | None = None
    ascii: bool = False
    read_only: bool = False
    mouse: bool = True
    embedded: bool = True
    ttft_slo_s: float | None = None
    itl_slo_s: float | None = None
    window_s: float = 60.0
    paint_every_s: float = 0.1
    config_dir: Path | None = None
    output_dir: Path | None = None
    notice: str = ""
    guide: bool = False
    address: str = ""
    who: str = ""
