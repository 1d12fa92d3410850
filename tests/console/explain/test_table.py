"""The table of findings is the whole truth: finders, findings and documentation agree with it."""

from __future__ import annotations

from pathlib import Path

from schedtop.console.explain.catalogue import BY_ID, RULES
from schedtop.console.explain.diagnosis import FINDERS
from schedtop.engine.contract.knobs import BY_NAME

DOCS = Path(__file__).parents[3] / "docs" / "explain.md"


def test_every_rule_has_a_finder_and_a_name_of_its_own() -> None:
    assert [rule.id for rule in RULES] == list(FINDERS)
    assert len(BY_ID) == len(RULES)
    assert len({rule.title for rule in RULES}) == len(RULES)


def test_rules_yield_only_to_others_that_do_not_yield_back() -> None:
    for rule in RULES:
        for other in rule.yields_to:
            assert rule.id not in BY_ID[other].yields_to, f"{rule.id} and {other} silence each other"


def test_thresholds_give_reasons() -> None:
    for rule in RULES:
        assert rule.needs
        for threshold in rule.thresholds:
            assert threshold.reason
            assert threshold.unit


def test_the_document_lists_every_finding_with_its_thresholds() -> None:
    text = DOCS.read_text()
    for rule in RULES:
        section = text.split(f"### `{rule.id}`")
        assert len(section) == 2, f"docs/explain.md must have one section {rule.id}"
        body = section[1].split("\n### ")[0]
        assert "```\n" in body, f"{rule.id}: no command reproduces it"
        for threshold in rule.thresholds:
            assert f"{threshold.value:g} {threshold.unit}" in body, f"{rule.id}: {threshold.name}"


def test_knobs_that_are_turned_tell_both_sides() -> None:
    for name in ("max_num_batched_tokens", "max_num_seqs", "max_num_active_seqs", "watermark", "num_blocks"):
        assert BY_NAME[name].up
        assert BY_NAME[name].down
