"""Before and after a change, read from a recording as it was told live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from schedtop.console.knobs.comparison import FigurePair, changes, compare
from schedtop.console.past.history import History
from schedtop.console.past.recorded.history import RecordedHistory
from schedtop.engine.recording import Recording, RecordingWriter

from tests.engine.harness import ask, engine_of


def figures(history: History) -> list[FigurePair]:
    found = changes(history)
    return [replace(figure, before_n=0, after_n=0) for figure in compare(history, found[0], found).figures]


@pytest.mark.parametrize(("budget", "said"), [(4, "60% starve"), (10, "no change")])
def test_a_replay_judges_as_live(tmp_path: Path, budget: int, said: str) -> None:
    engine = engine_of(*(ask(f"{i:03}", 4, 3000) for i in range(10)), num_blocks=4000, max_model_len=4000)
    live = History()
    live.apply(engine.header)
    live.apply(engine.snapshot())
    with RecordingWriter(tmp_path / "run.rec", engine.header, engine.snapshot) as writer:
        for step in range(80):
            if step == 40:
                assert engine.set_knobs({"max_num_scheduled_tokens": budget}).ok
            record = engine.step()
            assert record is not None
            live.apply(record)
            writer.write(record)
    with Recording(tmp_path / "run.rec") as recording:
        played = RecordedHistory(recording)
        played.seek(79)
        assert figures(played) == figures(live)
        assert {figure.verdict for figure in figures(played) if figure.name.startswith("ITL")} == {said}
        assert next(figure for figure in figures(played) if figure.name == "out tok/s").after is not None
