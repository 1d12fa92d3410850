"""Images of a trace: how many a row has, how long each is, and what becomes of those that can never be encoded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import ConfigError, EngineConfig, WorkloadSpec
from schedtop.engine.contract.limiters import describe_head
from schedtop.engine.contract.telemetry import Limiter, StepRecord
from schedtop.engine.decide_again.verify import verify_recording
from schedtop.engine.handoff.request import Request
from schedtop.engine.metrics.collector import MetricsCollector
from schedtop.engine.metrics.counts import Counts
from schedtop.engine.offline.headless import run_headless
from schedtop.engine.recording.reader import Recording
from schedtop.engine.sim.devices import GPUS
from schedtop.engine.sim.vision import encode_s
from schedtop.engine.workload.source import RequestSource

Replay = Callable[..., list[Request]]
Open = Callable[..., RequestSource]

TRACE = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n" + "".join(
    f"2025-01-01 00:00:0{at},{images},100,20\n" for at, images in enumerate((2, 0, 5, 1))
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "images.csv"
    path.write_text(TRACE)
    return str(path)


def records(source: str, width: int = 576, **scheduler: Any) -> list[StepRecord]:
    workload = WorkloadSpec(source=source, image_tokens=width, time_scale=0.001)
    engine = build_engine(EngineConfig(workload=workload, scheduler=scheduler))
    found = []
    while not engine.exhausted:
        if (record := engine.step()) is not None:
            found.append(record)
    return found


def test_images_come_before_the_text_and_on_top_of_it(replay: Replay) -> None:
    requests = replay(TRACE, image_tokens=576)
    assert [request.num_prompt_tokens for request in requests] == [1252, 100, 2980, 676]
    assert [(image.offset, image.end) for image in requests[0].images] == [(0, 576), (576, 1152)]
    names = [image.name for request in requests for image in request.images]
    assert len(set(names)) == len(names) == 8


def test_a_prompt_cut_short_loses_the_images_behind_the_cut(replay: Replay) -> None:
    found = replay(TRACE, image_tokens=576, max_prompt_tokens=1200)
    assert [len(request.images) for request in found] == [2, 0, 2, 1]


def test_without_a_length_they_are_left_out_and_told(opened: Open, trace: str) -> None:
    source = opened(trace)
    assert "not used: NumImages (--image-tokens N says how many tokens an image has)" in source.description["notes"]
    assert "notes" not in opened(trace, image_tokens=64).description


def test_a_length_for_no_images_is_refused(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,2\n")
    with pytest.raises(ConfigError, match=r"--image-tokens 576: .* has no images"):
        opened(path, image_tokens=576)
    with pytest.raises(ConfigError, match="only for trace files"):
        opened("mixed", image_tokens=576)


def test_the_encoder_is_a_third_budget(trace: str) -> None:
    found = records(trace, encoder_budget=600)
    heads = [
        describe_head(record.head) for record in found if record.head and record.head.reason == Limiter.ENCODER
    ]
    assert any(head.startswith("encoder: its next image has 576 tokens, ") for head in heads)
    assert all(head.startswith("encoder: ") for head in heads)
    assert len([finish for record in found for finish in record.finishes]) == 4
    assert len(found) > len(records(trace, encoder_budget=6000))


def test_encoding_takes_time_and_is_told(trace: str) -> None:
    found = records(trace, encoder_budget=600)
    encoding = [record for record in found if record.encoder_tokens]
    assert [record.encoder_tokens for record in encoding] == [576] * 8
    least_s = encode_s(GPUS["h100"], 1, 576)
    assert least_s > 0.02 and all(record.end_s - record.start_s > least_s for record in encoding)
    assert max(record.end_s - record.start_s for record in found if not record.encoder_tokens) < least_s


def test_an_image_that_can_never_fit_is_refused_with_its_numbers(trace: str) -> None:
    refusals = [refusal for record in records(trace, encoder_budget=500) for refusal in record.refusals]
    assert [(refusal.need, refusal.capacity, refusal.setting) for refusal in refusals] == [
        (576, 500, "--encoder-budget")
    ] * 3
    refusals = [refusal for record in records(trace, encoder_cache=500) for refusal in record.refusals]
    assert {refusal.reason for refusal in refusals} == {"an image has 576 tokens; the encoder's cache is 500"}


def test_the_metrics_page_counts_the_tokens_of_encoded_images(trace: str) -> None:
    engine = build_engine(EngineConfig(workload=WorkloadSpec(source=trace, image_tokens=576, time_scale=0.001)))
    counts = Counts(engine.header)
    for record in iter(engine.step, None):
        counts.write(record)
    page = {one.name: one for one in MetricsCollector(engine.header, counts).collect()}
    assert page["schedtop_encoder_tokens"].samples[0].value == 8 * 576
    plain = build_engine(EngineConfig(workload=WorkloadSpec())).header
    assert "schedtop_encoder_tokens" not in {one.name for one in MetricsCollector(plain, Counts(plain)).collect()}


def test_a_recording_with_images_is_decided_again(trace: str, tmp_path: Path) -> None:
    path = str(tmp_path / "run.rec")
    workload = WorkloadSpec(source=trace, image_tokens=576)
    run_headless(
        EngineConfig(workload=workload, scheduler={"encoder_budget": 600}, record=path), None, lambda line: None
    )
    with Recording(path) as recording:
        assert verify_recording(recording).equal


def test_a_recording_as_a_workload_keeps_its_images(trace: str, tmp_path: Path) -> None:
    path = str(tmp_path / "run.rec")
    limits = {"encoder_budget": 600}
    first = EngineConfig(workload=WorkloadSpec(source=trace, image_tokens=576), scheduler=limits, record=path)
    again = EngineConfig(workload=WorkloadSpec(source=path), scheduler=limits)
    reported, repeated = (run_headless(config, None, lambda line: None).as_dict() for config in (first, again))
    assert reported["tokens"]["encoder"] == repeated["tokens"]["encoder"] == 8 * 576
    assert reported["steps"] == repeated["steps"]
    left_out = run_headless(EngineConfig(workload=WorkloadSpec(source=path)), None, lambda line: None).as_dict()
    assert any("--encoder-budget" in notice for notice in left_out["workload"]["notices"])


def test_json_traces_have_images_too(replay: Replay, opened: Open, tmp_path: Path) -> None:
    row = '{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1], "num_images": 2}\n'
    (request,) = replay(row, image_tokens=50)
    assert request.num_prompt_tokens == 200
    assert [(image.offset, image.end) for image in request.images] == [(0, 50), (50, 100)]
    path = tmp_path / "images.jsonl"
    path.write_text(row)
    assert "not used: num_images" in opened(str(path)).description["notes"][0]


@pytest.mark.parametrize("keys", [("prompt", "output_tokens"), ("text_input", "output_length")])
def test_images_come_before_a_text_too(keys: tuple[str, str], replay: Replay, opened: Open, tmp_path: Path) -> None:
    text, output = keys
    rows = [{text: "Which one is it?", output: 5}, {text: "Which one is it?", output: 5, "num_images": 2}]
    lines = "".join(json.dumps(row) + "\n" for row in reversed(rows))
    seen, alone = replay(lines, image_tokens=50)
    assert [(image.offset, image.end) for image in seen.images] == [(0, 50), (50, 100)]
    assert seen.num_prompt_tokens == 100 + alone.num_prompt_tokens and not alone.images
    assert seen.prompt_token_ids[100:].tolist() == alone.prompt_token_ids.tolist()
    cut, _ = replay(lines, image_tokens=50, max_prompt_tokens=70)
    assert (cut.num_prompt_tokens, len(cut.images)) == (70, 1)
    path = tmp_path / "texts.jsonl"
    path.write_text(lines)
    assert "not used: num_images (--image-tokens N says" in opened(str(path)).description["notes"][-1]


def test_images_that_a_format_has_no_place_for_are_told(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "nested.jsonl"
    ask = {"Prompt Length": 100, "Output Length": 5, "num_images": 2, "lora": "a"}
    path.write_text(json.dumps({"timestamp": 0, "requests": [ask]}) + "\n")
    assert "not used: num_images, lora" in opened(str(path)).description["notes"]
    with pytest.raises(ConfigError, match=r"--image-tokens 50: .* has no images"):
        opened(str(path), image_tokens=50)


def test_images_beside_adapter_slots_are_refused(trace: str) -> None:
    with pytest.raises(ConfigError, match="max_loras=2: adapters cannot be served beside images"):
        records(trace, max_loras=2)
    with pytest.raises(ConfigError, match="--encoder-budget: only for simulated devices"):
        build_engine(EngineConfig(device="cpu", model="smollm2", scheduler={"encoder_budget": 100}))
    with pytest.raises(ConfigError, match="--image-tokens 576: only for simulated devices"):
        build_engine(
            EngineConfig(device="cpu", model="smollm2", workload=WorkloadSpec(source=trace, image_tokens=576))
        )
