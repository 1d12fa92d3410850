"""`schedtop explain`: what a recording's symptoms say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
from schedtop.console.cli.errors import CommandError, check_positive
from schedtop.console.cli.forecast_process import ForecastProcess
from schedtop.console.cli.output import show, show_json
from schedtop.console.cli.recording_flags import opened
from schedtop.engine.contract.latencies.slo import Slo, parse_slo
from schedtop.engine.contract.telemetry import Outgoing
from schedtop.engine.sim.spec import parse_device

if TYPE_CHECKING:
    from schedtop.console.explain.log import Log
    from schedtop.console.explain.tries import TriedValues
    from schedtop.engine.recording.reader import Recording


@click.command("explain")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout instead of text.")
@click.option("--slo", metavar="SLO", help="ttft=1s,itl=50ms: bounds that take the place of relative ones.")
@click.option("--window", "window_s", type=float, default=30.0, show_default=True, help="Seconds of one look.")
@click.option("--try", "measured", is_flag=True, help="Simulate each remedy from the finding's last step.")
@click.option("--device", metavar="SPEC", help="sim:…: --try simulates it in place of the recorded device.")
@click.pass_context
def command(
    ctx: click.Context,
    file: Path,
    as_json: bool,
    slo: str | None,
    window_s: float,
    measured: bool,
    device: str | None,
) -> None:
    """Read the symptoms of a recording: findings with their causes, evidence and remedies.

    With --try, what two or three values of each remedy would do, best first. Exit code 0 whatever is found.
    """
    from schedtop.console.explain.log import Log, read
    from schedtop.console.explain.page import document, page
    from schedtop.console.explain.window import Bounds

    check_positive("--window", window_s)
    if device is not None:
        if not measured:
            raise CommandError("--device requires --try")
        parse_device(device)
    bounds = Slo() if slo is None else parse_slo(slo)
    with opened(file) as recording:
        log = read(_messages(recording), Log(window_s, Bounds(bounds.ttft_s, bounds.itl_s)))
        outcomes = _measured(recording, log, device) if measured else {}
    show_json({"file": file.name, **document(log, outcomes)}) if as_json else show(page(log, outcomes))
    ctx.exit(0)


def _measured(recording: Recording, log: Log, device: str | None) -> dict[str, TriedValues]:
    """The effect of remedies, by finding; each from the last step of its strongest look."""
    from schedtop.console.explain.tries import Tries
    from schedtop.console.knobs.forecast import Forecaster
    from schedtop.console.past.recorded.history import RecordedHistory
    from schedtop.console.replay.staged_rerun import ReplayStaging

    history, outcomes = RecordedHistory(recording), {}
    with closing(ForecastProcess(device)) as make_forecast:
        tries = Tries(Forecaster(history, make_forecast, lambda: None), ReplayStaging(history))
        for finding in (entry.best for entry in log.ranked()):
            index = recording.index_at(finding.to_s)
            history.seek(recording.num_records - 1 if index is None else index)
            outcomes[finding.id] = tries.measure(finding)
    return outcomes


def _messages(recording: Recording) -> Iterator[Outgoing]:
    yield recording.header
    yield recording.keyframe_before(0)[0]
    yield from recording.records()
