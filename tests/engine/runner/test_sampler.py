"""Sampling: the cut of the distribution, and tokens that depend on the request alone."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.handoff.sampling_settings import check_sampling
from schedtop.engine.runner.gpu.kernel_sampler import setting_arrays
from schedtop.engine.runner.sampler import RowSampling, kept_weights, make_draws, sample, uniform
from schedtop.kernels import reference
from schedtop.kernels.sampling_params import SamplingTensors as KernelParams


def kept_tokens(logits: np.ndarray[Any, Any], params: SamplingParams) -> set[int]:
    """Straight from the definitions: temperature, min-p, top-k of what is left, top-p of what is left then."""
    weights = np.exp((logits - logits.max()) / params.temperature)
    order = np.argsort(-weights, kind="stable")
    order = order[weights[order] >= params.min_p]
    if params.top_k:
        order = order[weights[order] >= weights[order][: params.top_k][-1]]
    mass = weights[order] / weights[order].sum()
    before = np.cumsum(mass) - mass
    cut = order[(before < params.top_p) | (params.top_p >= 1)]
    return {int(token) for token in order if weights[token] >= weights[cut[-1]]}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.2, 3),
    st.integers(0, 12),
    st.sampled_from([1.0, 0.9, 0.5, 0.1]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_only_kept_tokens_are_drawn(seed: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    logits = np.random.default_rng(seed).normal(0, 3, 20)
    count = 400
    draws = make_draws([params] * count, [seed] * count, np.arange(count, dtype=np.int32))
    drawn = sample(torch.from_numpy(logits).repeat(count, 1), draws).tolist()
    kept = kept_tokens(logits, params)
    assert set(drawn) <= kept
    likely = max(kept, key=lambda token: logits[token])
    weights = {token: np.exp((logits[token] - logits[likely]) / temperature) for token in kept}
    share = weights[likely] / sum(weights.values())
    assert abs(drawn.count(likely) / count - share) < 5 * np.sqrt(share * (1 - share) / count) + 1e-9


MIXED = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature in (0.7, 1.9)
    for top_k in (0, 1, 4, 10**6)
    for top_p in (1.0, 0.9137, 0.5171, 0.0731)
    for min_p in (0.0, 0.11, 0.31, 1.0)
    for _ in range(3)
]


def test_the_cpu_and_the_kernels_keep_the_same_tokens() -> None:
    """Many ties, and an order that shows: each filter leaves less for the share of the next.

    `tests/kernels` hold the kernel to this reference token for token.
    """
    logits = torch.from_numpy(np.random.default_rng(3).integers(0, 12, (len(MIXED), 40)) * 0.25).float()
    positions = np.arange(len(MIXED), dtype=np.int32)
    draws = make_draws(MIXED, [7] * len(MIXED), positions)
    arrays = setting_arrays([RowSampling(params, 7) for params in MIXED], positions)
    settings = KernelParams(*(torch.from_numpy(array) for array in arrays))
    kept = kept_weights(logits, draws) > 0
    assert torch.equal(kept, reference.kept_tokens(reference.logit_gaps(logits, settings.temperature), settings))
    for row, params in zip(kept, MIXED, strict=True):
        assert row.any() and (row.all() or params.top_k or params.top_p < 1 or params.min_p)
    late = make_draws([msgspec.structs.replace(params, min_p=0.0) for params in MIXED], [7] * len(MIXED), positions)
    weights = kept_weights(logits, late)
    min_p_last = weights.masked_fill(weights < torch.from_numpy(draws.min_p)[:, None], 0.0) > 0
    assert (kept != min_p_last).any(-1).sum() > 10
    one_by_one = [kept_tokens(row.numpy(), params) for row, params in zip(logits, MIXED, strict=True)]
    assert [set(row.nonzero()[:, 0].tolist()) for row in kept] == one_by_one


def test_uniform_is_uniform_and_a_function_of_seed_and_position() -> None:
    positions = np.arange(4000, dtype=np.int32)
    one = uniform(np.full(4000, 7, dtype=np.uint64), positions)
    assert ((one >= 0) & (one < 1)).all()
    assert np.abs(np.sort(one) - np.linspace(0, 1, 4000)).max() < 0.04
    assert np.array_equal(one[100:103], uniform(np.full(3, 7, dtype=np.uint64), positions[100:103]))
    assert not np.array_equal(one, uniform(np.full(4000, 8, dtype=np.uint64), positions))


@pytest.mark.parametrize("speculation", [0, 4])
def test_same_tokens_alone_and_in_company(lab: Any, speculation: int) -> None:
    prompts = [prompt * 3 for prompt in lab.prompts(7, seed=8, low=4, high=16)]
    params = [
        SamplingParams(
            temperature=0.7 + 0.2 * index, top_k=(0, 20)[index % 2], top_p=(1.0, 0.9)[index % 2], seed=index
        )
        for index in range(7)
    ]
    alone = []
    for prompt, sampling in zip(prompts, params, strict=True):
        served = lab.serve("llama")
        served.add(prompt, 24, sampling)
        alone += served.run()
    together = lab.serve("llama", num_blocks=30, max_num_batched_tokens=24, num_speculative_tokens=speculation)
    for prompt, sampling in zip(prompts, params, strict=True):
        together.add(prompt, 24, sampling)
    assert together.run() == alone
    assert together.preemptions and together.chunked
    assert alone != [lab.greedy_choices("llama", *pair) for pair in zip(prompts, alone, strict=True)]


def test_unseeded_requests_differ(lab: Any) -> None:
    served = lab.serve("llama")
    for _ in range(2):
        served.add([5, 6, 7], 12, SamplingParams(temperature=1.0))
    first, second = served.run()
    assert first != second


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(temperature=-0.1), "temperature"),
        (SamplingParams(temperature=float("nan")), "temperature"),
        (SamplingParams(top_k=-1), "top_k"),
        (SamplingParams(top_p=0.0), "top_p"),
        (SamplingParams(top_p=1.5), "top_p"),
        (SamplingParams(min_p=2.0), "min_p"),
        (SamplingParams(stop=("",)), "stop"),
    ],
)
def test_bad_values_are_named(params: SamplingParams, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        check_sampling(params)
