"""Penalties and biases: transformers' numbers bit for bit, and the same tokens whatever the batch goes through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import Request
from schedtop.engine.handoff.sampling_settings import check_sampling
from schedtop.engine.runner.penalties import Penalties
from transformers import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

VOCAB = 40
token_ids = st.integers(0, VOCAB - 1)


def applied(prompt: list[int], outputs: list[int], drafts: list[int], params: SamplingParams, logits: Any) -> Any:
    request = Request("r", np.array(prompt, dtype=np.int32), 9, sampling=params)
    request.number = 7
    penalties = Penalties()
    penalties.start(request)
    assert 7 in penalties
    penalties.note(np.array([7]), np.array([outputs], dtype=np.int32).reshape(1, -1), np.array([len(outputs)]))
    return penalties.apply(logits, 7, drafts)


def some_logits(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 5, VOCAB).astype(np.float32))


@given(
    st.integers(0, 999),
    st.lists(token_ids, min_size=1, max_size=9),
    st.lists(token_ids, max_size=9),
    st.lists(token_ids, max_size=3),
    st.floats(0.2, 3).filter(lambda value: value != 1),
    st.dictionaries(token_ids, st.floats(-100, 100), min_size=1, max_size=5),
)
def test_repetition_and_bias_are_those_of_transformers(
    seed: int, prompt: list[int], outputs: list[int], drafts: list[int], penalty: float, bias: dict[int, float]
) -> None:
    logits = some_logits(seed)
    params = SamplingParams(repetition_penalty=penalty, logit_bias=tuple(bias.items()))
    ids = torch.tensor([prompt + outputs + drafts])
    wanted = SequenceBiasLogitsProcessor([[[token_id], value] for token_id, value in bias.items()])(
        ids, logits[None]
    )
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(ids, wanted)
    before = logits.clone()
    assert torch.equal(applied(prompt, outputs, drafts, params, logits), wanted[0])
    assert torch.equal(logits, before), "the model's own logits stay as they were"


@given(
    st.integers(0, 999),
    st.lists(token_ids, max_size=20),
    st.floats(-2, 2).filter(bool),
    st.floats(-2, 2),
)
def test_frequency_and_presence_look_at_outputs_alone(
    seed: int, outputs: list[int], frequency: float, presence: float
) -> None:
    logits = some_logits(seed)
    params = SamplingParams(frequency_penalty=frequency, presence_penalty=presence)
    wanted = logits.numpy().astype(np.float64)
    for token_id in range(VOCAB):
        wanted[token_id] -= frequency * outputs.count(token_id) + presence * (token_id in outputs)
    np.testing.assert_allclose(applied([1, 2, 3], outputs, [], params, logits), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_blocks": 20, "max_num_batched_tokens": 32},
        {"num_speculative_tokens": 4, "max_num_batched_tokens": 40},
    ],
    ids=["plain", "preempted", "speculating"],
)
def test_a_penalised_request_says_what_transformers_generates(lab: Any, changes: dict[str, Any]) -> None:
    prompts = [prompt * 2 for prompt in lab.prompts(6, seed=8, low=4, high=20)]
    model, wanted = lab.build_model("llama"), []
    for index, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        more = {"repetition_penalty": 1.4} if index % 2 else {}
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30, **more
            )
        wanted.append(out[0, len(prompt) :].tolist())
    served = lab.serve("llama", **changes)
    for index, prompt in enumerate(prompts):
        served.add(prompt, 30, SamplingParams(repetition_penalty=1.4 if index % 2 else 1.0))
    assert served.run() == wanted
    assert bool(served.preemptions) == ("num_blocks" in changes)
    assert bool(served.accepted) == ("num_speculative_tokens" in changes)


def test_a_bias_forces_and_a_penalty_forbids(lab: Any) -> None:
    prompt = lab.prompts(1, seed=9)[0]
    served = lab.serve("llama")
    served.add(prompt, 6, SamplingParams(logit_bias=((5, 100.0),)))
    served.add(prompt, 40, SamplingParams(logit_bias=((5, 100.0), (6, 99.0)), frequency_penalty=2.0))
    served.add(prompt, 6)
    forced, alternating, plain = served.run()
    assert forced == [5] * 6
    assert set(alternating) == {5, 6} and abs(alternating.count(5) - alternating.count(6)) <= 1
    lab.check_greedy("llama", [prompt], [plain], 6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("frequency_penalty", 2.5),
        ("presence_penalty", float("nan")),
        ("logit_bias", ((1, 101.0),)),
    ],
)
def test_values_without_a_meaning_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name}="):
        check_sampling(SamplingParams(**{name: value}))


@pytest.mark.parametrize("drafts", [0, 4])
def test_logprobs_are_the_models_own_of_each_token(lab: Any, drafts: int) -> None:
    prompt = lab.prompts(1, seed=10, low=10, high=20)[0] * 3
    served = lab.serve("llama", num_speculative_tokens=drafts)
    served.add(prompt, 12, SamplingParams(logprobs=3, repetition_penalty=1.3))
    served.add(prompt, 12, SamplingParams())
    (outputs, _), reported = run_and_listen(served)
    assert {number for number, _ in reported} == {0}
    entries = [entry for _, entry in reported]
    assert len(entries) == len(outputs) == 12
    ids = torch.tensor([prompt + outputs])
    with torch.inference_mode():
        logits = lab.build_model("llama")(ids).logits[0, len(prompt) - 1 : -1]
    wanted = logits.float().log_softmax(-1)
    for row, token_id, entry in zip(wanted, outputs, entries, strict=True):
        assert entry.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
        assert [token for token, _ in entry.top] == row.topk(3).indices.tolist()


def run_and_listen(served: Any) -> tuple[list[list[int]], list[tuple[int, Any]]]:
    """The outputs, and the log probabilities of those that count."""
    reported: list[tuple[int, Any]] = []
    execute = served.worker.execute

    def listen(plan: Any) -> Any:
        result = execute(plan)
        for number, count in zip(plan.numbers.tolist(), result.num_sampled.tolist(), strict=True):
            reported.extend((number, entry) for entry in result.logprobs.get(number, [])[:count])
        return result

    served.worker.execute = listen
    return served.run(), reported
