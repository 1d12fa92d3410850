"""Recorded cases replay equal; what is not a case, or no longer the recorded one, is said with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig, WorkloadSpec
from schedtop.engine.golden.case import Case, CaseError, read_case
from schedtop.engine.golden.replay import Verdict, verify

from tests.engine.harness import run_out

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.json"))
SHARED = sorted((Path(__file__).parents[4] / "shared" / "golden").glob("*.json"))
SECOND = Path(__file__).parents[4] / "shared" / "golden2"
OURS = {path.read_bytes() for path in GOLDEN}
KNOWN = sorted(path for path in SECOND.glob("*.json") if path.read_bytes() not in OURS)


def test_there_are_recorded_cases() -> None:
    assert len(GOLDEN) >= 60


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_recorded_case_is_equal(path: Path) -> None:
    case = read_case(path)
    verdict = verify(case)
    assert verdict.equal, str(verdict.difference)
    assert case.steps is not None
    assert verdict.steps == len(case.steps) and verdict.name == path.stem
    assert verdict.scheduled_tokens == sum(tokens for step in case.steps for _, tokens, _ in step.scheduled)
    assert verdict.preemptions == sum(len(step.preempted) for step in case.steps)
    assert verdict.finished == sum(len(step.finished) for step in case.steps)
    assert_every_request_is_somewhere(verdict)
    half = msgspec.structs.replace(case, steps=case.steps[: len(case.steps) // 2])
    assert_every_request_is_somewhere(verify(half))


def assert_every_request_is_somewhere(verdict: Verdict) -> None:
    ended = verdict.finished + verdict.kv_capacity + verdict.refused + verdict.aborted + verdict.failed
    assert verdict.submitted == ended + verdict.running + verdict.waiting


@pytest.mark.skipif(not SHARED, reason="the shared recordings are not here")
def test_no_shared_recording_is_missing() -> None:
    ours = {path.name: path.read_bytes() for path in GOLDEN}
    assert [path.name for path in SHARED if ours.get(path.name) != path.read_bytes()] == []


@pytest.mark.skipif(not KNOWN, reason="the shared recordings are not here")
@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_every_shared_case_of_the_second_set_is_equal(path: Path) -> None:
    verdict = verify(read_case(path))
    assert verdict.equal, str(verdict.difference)


@pytest.mark.parametrize(
    ("config", "requests", "said"),
    [
        ({"max_loras": 1, "encoder_budget": 32}, [], "adapters cannot be served beside images"),
        ({"max_loras": 1, "pipeline_depth": 2}, [], "adapters cannot be served over 2 pipeline stages"),
        (
            {"encoder_budget": 32, "num_speculative_tokens": 2, "num_lookahead_tokens": 2, "prefill_lookahead": 1},
            [
                {
                    "id": "a",
                    "arrival_step": 0,
                    "max_tokens": 1,
                    "prompt_parts": [[1, 60]],
                    "images": [[0, 20], [21, 20]],
                }
            ],
            "images at 0 and 21 are side by side",
        ),
        ({"kv_groups": ["full", {"mamba": "align", "block_size": 8}]}, [], "all groups need one block size"),
        ({"kv_groups": ["half"]}, [], "'half' is not a group"),
        ({"prefix_cache_retention_interval": 24}, [], "must be 0 or a multiple of 16"),
        (
            {"pipeline_depth": 2, "num_speculative_tokens": 2},
            [],
            "drafts over pipeline stages need async scheduling",
        ),
        ({"kv_connector": {"role": "kv_producer"}, "async_scheduling": True}, [], "needs one batch at a time"),
    ],
)
def test_what_would_wait_for_ever_or_is_no_setting_is_refused(
    config: dict[str, Any], requests: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"config": {"num_blocks": 9, **config}, "requests": requests}))
    with pytest.raises(CaseError, match=said):
        read_case(path)


@pytest.fixture
def recorded() -> Case:
    return read_case(next(path for path in GOLDEN if path.stem == "pressure-1-0"))


def with_step(case: Case, index: int, **changes: Any) -> Case:
    assert case.steps is not None
    steps = list(case.steps)
    steps[index] = msgspec.structs.replace(steps[index], **changes)
    return msgspec.structs.replace(case, steps=steps)


def test_a_case_without_steps_is_just_run(recorded: Case) -> None:
    verdict = verify(msgspec.structs.replace(recorded, steps=None))
    assert verdict.equal is None and verdict.difference is None
    assert verdict.finished == len(recorded.requests)
    assert verdict.prompt_tokens == sum(
        length for request in recorded.requests for _, length in request.prompt_parts
    )
    assert recorded.steps is not None and verdict.steps == len(recorded.steps)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scheduled", [("r9", 1, 0)]),
        ("admitted", {"r9": 0}),
        ("preempted", ["r9"]),
        ("running", []),
        ("waiting", ["r9"]),
        ("free_blocks", -1),
        ("finished", ["r9"]),
        ("free_blocks_after", -1),
    ],
)
def test_the_first_difference_is_named_by_step_and_field(recorded: Case, field: str, value: object) -> None:
    changed = with_step(with_step(recorded, 20, **{field: value}), 30, free_blocks=-2)
    verdict = verify(changed)
    assert verdict.equal is False and verdict.difference is not None
    assert recorded.steps is not None
    assert (verdict.difference.step, verdict.difference.field) == (recorded.steps[20].step, field)
    assert verdict.difference.recorded == value
    assert verdict.difference.decided == getattr(recorded.steps[20], field)
    assert f"step {recorded.steps[20].step}: {field}: recorded" in str(verdict.difference)


def test_of_two_fields_the_one_decided_earlier_is_named(recorded: Case) -> None:
    verdict = verify(with_step(recorded, 5, free_blocks_after=-1, scheduled=[]))
    assert verdict.difference is not None and verdict.difference.field == "scheduled"


def test_a_missing_or_a_further_step_is_a_difference(recorded: Case) -> None:
    assert recorded.steps is not None
    last = recorded.steps[-1]
    short = verify(msgspec.structs.replace(recorded, steps=recorded.steps[:-1]))
    assert short.difference is not None and (short.difference.step, short.difference.field) == (last.step, "step")
    further = msgspec.structs.replace(last, step=last.step + 1)
    long = verify(msgspec.structs.replace(recorded, steps=[*recorded.steps, further]))
    assert long.difference is not None and (long.difference.step, long.difference.field) == (last.step + 1, "step")


def test_refused_and_ended_requests_are_counted() -> None:
    """Without chunking, a preempted sequence that outgrew the step's budget is refused in the end."""
    config = {"num_blocks": 6, "block_size": 4, "max_num_batched_tokens": 12, "enable_chunked_prefill": False}
    config |= {"enable_prefix_caching": False, "scheduler_reserve_full_isl": False}
    requests = [
        {"id": "a", "arrival_step": 0, "max_tokens": 14, "prompt_parts": [[1, 8]]},
        {"id": "b", "arrival_step": 0, "max_tokens": 10, "prompt_parts": [[2, 10]]},
        {"id": "c", "arrival_step": 0, "max_tokens": 1, "prompt_parts": [[3, 13]]},
    ]
    case = msgspec.convert({"config": config, "requests": requests}, Case)
    verdict = verify(case)
    assert (verdict.finished, verdict.refused) == (1, 2)


GOOD: dict[str, Any] = {
    "config": {"num_blocks": 8},
    "requests": [{"id": "a", "arrival_step": 0, "max_tokens": 2, "prompt_parts": [[1, 4]]}],
}


def changed(**fields: Any) -> dict[str, Any]:
    return {**GOOD, **fields}


def with_request(**fields: Any) -> dict[str, Any]:
    return changed(requests=[{**GOOD["requests"][0], **fields}])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not a golden case"),
        ("{", "not a golden case"),
        ("[]", "not a golden case"),
        ("[" * 100_000, "not a golden case"),
        ('{"requests": []}', "config"),
        (changed(config={}), "num_blocks"),
        (changed(config={"num_blocks": "8"}), "$.config.num_blocks"),
        (changed(config={"num_blocks": 0}), "num_blocks=0: must be at least 1"),
        (changed(config={"num_blocks": 8, "policy": "lifo"}), "policy=lifo"),
        (changed(config={"num_blocks": 8, "max_num_batched_tokens": 2, "draft_slots": 2}), "draft_slots=2"),
        (with_request(arrival_step=-1), "request 'a'"),
        (with_request(prompt_parts=[[1, -4]]), "request 'a'"),
        (with_request(prompt_parts=[[1]]), "$.requests[0].prompt_parts[0]"),
        (with_request(prompt_parts=[[1, 1 << 40]]), "request 'a'"),
        (with_request(prompt=[1 << 40]), "request 'a'"),
        (with_request(prompt_parts=[[1 << 60, 4]]), "request 'a'"),
        (changed(config={"num_blocks": 1 << 40}), "num_blocks"),
        (with_request(priority=1.5), "$.requests[0].priority"),
        (with_request(stop_after=0), "stop_after must be at least 1"),
        (with_request(turbo=1), "unknown field `turbo`"),
        (changed(config={"num_blocks": 8, "turbo": 1}), "unknown field `turbo`"),
        (changed(requests=GOOD["requests"] * 2), "request 'a' appears twice"),
        (changed(knobs=[{"step": 1, "set": {"max_num_seqs": 0}}]), "max_num_seqs=0"),
        (changed(knobs=[{"step": 1, "set": {"turbo": 1}}]), "no knob is called 'turbo'"),
        (changed(knobs=[{"step": 1, "set": {"block_size": 8}}]), "block_size"),
        (
            changed(
                config={"num_blocks": 8, "draft_slots": 2},
                knobs=[{"step": 1, "set": {"max_num_batched_tokens": 2}}],
            ),
            "draft_slots=2",
        ),
        (changed(steps=[{"step": 0}]), "$.steps[0]"),
    ],
)
def test_what_is_no_case_is_one_clear_line_with_file_and_reason(
    tmp_path: Path, content: str | dict[str, Any], reason: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(CaseError) as caught:
        read_case(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and reason in line and "\n" not in line


def test_a_case_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"missing\.json: No such file"):
        read_case(tmp_path / "missing.json")
    with pytest.raises(CaseError, match="Is a directory"):
        read_case(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(CaseError, match=r"bytes\.json: not a golden case"):
        read_case(tmp_path / "bytes.json")


def test_a_case_is_named_after_its_file_unless_it_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GOOD))
    assert read_case(path).name == "mine"
    path.write_text(json.dumps(changed(name="other")))
    assert read_case(path).name == "other"


def test_knobs_that_would_be_read_as_another_type_still_mean_their_value(tmp_path: Path) -> None:
    """A knob's value may be spelt as a string: what was checked is what is applied."""
    path = tmp_path / "spelt.json"
    path.write_text(json.dumps(changed(knobs=[{"step": 0, "set": {"max_num_batched_tokens": "2"}}])))
    verdict = verify(read_case(path))
    assert verdict.finished == 1 and verdict.steps == 3


FIELD = Path(__file__).parents[2] / "golden" / "field"


def test_drafts_are_counted_as_vllm_counts_them() -> None:
    """Four requests of four outputs with three drafts: what the model agreed with past an end is accepted, too."""
    verdict = verify(read_case(FIELD / "spec-short-outputs.json"))
    assert verdict.equal
    assert (verdict.draft_tokens, verdict.accepted_draft_tokens) == (18, 10)


def test_eos_at_is_another_name_for_stop_after(tmp_path: Path) -> None:
    known = Path(__file__).parents[2] / "golden" / "M01-huge.json"
    path = tmp_path / "case.json"
    path.write_text(known.read_text().replace('"stop_after"', '"eos_at"'))
    assert read_case(path).requests == read_case(known).requests
    path.write_text(known.read_text().replace('"stop_after"', '"eos_at": 3, "stop_after"', 1))
    with pytest.raises(CaseError, match="give one of them"):
        read_case(path)


@pytest.mark.parametrize(
    "path", [path for path in GOLDEN if path.stem.startswith("imagestuck")], ids=lambda path: path.stem
)
def test_an_image_that_never_fits_is_refused_where_a_case_is_run(path: Path) -> None:
    assert verify(read_case(path)).equal
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source=str(path))))
    records = run_out(engine)
    refusals = [refusal for record in records for refusal in record.refusals]
    assert refusals and all(refusal.need > refusal.capacity for refusal in refusals)
    assert engine.observer.counts["refused"] == len(refusals)
    engine.scheduler.audit()
