"""Acceptance of drafts by position: in the records, in a report, and by hand."""

from __future__ import annotations

import numpy as np
from schedtop.engine.contract.reading import draft_positions, row_columns
from schedtop.engine.contract.telemetry import MOST_DRAFTS, StepRecord
from schedtop.engine.offline.report import Report, report_text

from tests.engine.harness import ask, engine_of


def records(drafts: int, acceptance: float = 0.7) -> list[StepRecord]:
    engine = engine_of(
        *(ask(id, 20, outputs=30) for id in "abcd"), num_speculative_tokens=drafts, acceptance=acceptance
    )
    found = []
    while not engine.exhausted:
        record = engine.step()
        assert record is not None
        found.append(record)
    return found


def by_hand(steps: list[StepRecord]) -> list[list[int]]:
    counts = [[0] * MOST_DRAFTS, [0] * MOST_DRAFTS]
    for record in steps:
        rows = row_columns(record)
        for drafts, accepted in zip(*(rows[name].tolist() for name in ("drafts", "accepted")), strict=True):
            for place in range(drafts):
                counts[0][place] += 1
                counts[1][place] += place < accepted
    return counts


def test_positions_are_those_of_the_rows() -> None:
    steps = records(3)
    counts = sum((draft_positions(record) for record in steps), np.zeros((2, MOST_DRAFTS), dtype=int))
    assert counts.tolist() == by_hand(steps)
    drafted, accepted = counts
    assert drafted[0] >= drafted[2] > 0 == drafted[3]
    assert drafted[0] > accepted[0] > accepted[1] > accepted[2] > 0


def test_drafts_that_always_hold() -> None:
    report = Report(drafter="a twin")
    for record in records(2, acceptance=1.0):
        report.add(record)
    document = report.as_dict()["drafts"]
    assert document["by"] == "a twin"
    # All that was agreed with is accepted, past a request's end too.
    assert document["accepted"] == document["verified"] == 2 * document["drafts"] > 0
    assert document["by_position"] == [1.0, 1.0] and document["mean_length"] == 3.0
    assert "verified by a twin" in report.as_text()


def test_placeholders_are_drafted_and_never_accepted() -> None:
    """A request with one token left to compute joins a batch of decodes: it is padded, and nothing of it holds."""
    engine = engine_of(num_speculative_tokens=3, acceptance=1.0, enable_prefix_caching=True)
    engine.submit(ask("a", 8, outputs=40))
    engine.step()
    engine.submit(ask("b", [*ask("a", 8).prompt_token_ids, 7], outputs=40))
    record = engine.step()
    assert record is not None
    rows = row_columns(record)
    assert rows["drafts"].tolist() == [3, 3] and rows["accepted"][1] == 0
    assert draft_positions(record)[:, :4].tolist() == [[2, 2, 2, 0], [1, 1, 1, 0]]


def test_a_run_without_drafts_says_nothing_of_them() -> None:
    report = Report(drafter="nobody")
    for record in records(0):
        assert not draft_positions(record).any()
        report.add(record)
    assert "drafts" not in report.as_dict()
    assert "nobody" not in report_text(report.as_dict())
