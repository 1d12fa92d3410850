"""Bias and penalties are those of transformers' processors and of OpenAI's formula, on every way to a token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.request import SamplingParams
from schedtop.engine.handoff.sampling_settings import check_sampling
from schedtop.engine.runner.penalties import penalise
from transformers import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

VOCAB = 60


def changed(
    params: SamplingParams, token_ids: list[int], num_prompt_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits before and after."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(4)) * 3
    after = logits.clone()
    penalise(after, params, np.array(token_ids, dtype=np.int32), num_prompt_tokens)
    return logits, after


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_and_bias_equal_transformers(penalty: float) -> None:
    token_ids = [5, 9, 5, 31, 9, 9, 2]
    bias = {3: -4.5, 9: 2.25, 50: 100.0}
    logits, after = changed(
        SamplingParams(repetition_penalty=penalty, logit_bias=tuple(bias.items())), token_ids, num_prompt_tokens=3
    )
    ids = torch.tensor([token_ids])
    biased = SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})(ids, logits[None])
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(ids, biased)
    assert torch.equal(after, wanted[0])


def test_presence_and_frequency_count_outputs_alone() -> None:
    token_ids, prompt = [5, 9, 5, 31, 9, 9, 2], 3
    logits, after = changed(SamplingParams(presence_penalty=0.5, frequency_penalty=-0.25), token_ids, prompt)
    wanted = logits.clone()
    for token in set(token_ids[prompt:]):
        wanted[token] -= -0.25 * token_ids[prompt:].count(token)
        wanted[token] -= 0.5
    assert torch.equal(after, wanted)


def test_ids_outside_the_vocabulary_are_passed_over() -> None:
    logits, after = changed(
        SamplingParams(repetition_penalty=2.0, logit_bias=((10**6, 5.0),)), [VOCAB, VOCAB + 1], num_prompt_tokens=1
    )
    assert torch.equal(after, logits)


@pytest.mark.parametrize("route", ["lean", "native", "general", "kernels"])
@pytest.mark.parametrize("speculation", [0, 3])
def test_greedy_outputs_equal_transformers(lab: Any, route: str, speculation: int) -> None:
    """Rows without penalties beside them stay as they are; drafts change nothing."""
    name = "llama@kernels" if route == "kernels" else "llama"
    if route == "kernels":
        pytest.importorskip("triton")
    prompts = [prompt * 2 for prompt in lab.prompts(3, seed=6, low=4, high=8)]
    served = lab.serve(name, route, num_speculative_tokens=speculation)
    params = [SamplingParams(repetition_penalty=1.4), SamplingParams(), SamplingParams(logit_bias=((7, 3.0),))]
    for prompt, own in zip(prompts, params, strict=True):
        served.add(prompt, 12, own)
    settings: list[dict[str, Any]] = [{"repetition_penalty": 1.4}, {}, {"sequence_bias": {(7,): 3.0}}]
    model = lab.build_model(name)
    wanted = []
    for prompt, own_settings in zip(prompts, settings, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, **own_settings
        )
        wanted.append(out[0, len(prompt) :].tolist())
    assert served.run() == wanted


def test_sampled_outputs_hold_their_penalty(lab: Any) -> None:
    """Two tokens are pushed so far up that the frequency penalty makes them take turns."""
    bias = ((20, 90.0), (21, 90.0))
    served = lab.serve("llama", seed=3)
    served.add([5, 6, 7], 12, SamplingParams(temperature=0.05, frequency_penalty=2.0, logit_bias=bias))
    (outputs,) = served.run()
    assert set(outputs) == {20, 21}
    assert abs(outputs.count(20) - outputs.count(21)) < 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("nan")},
        {"presence_penalty": 2.5},
        {"frequency_penalty": float("inf")},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, 101.0),)},
    ],
)
def test_settings_that_mean_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        check_sampling(SamplingParams(**wrong))
