"""Physics the step times may not break: bounds, monotonicity, what parallelism does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.sim.devices import GPUS
from schedtop.engine.sim.features import StepFeatures
from schedtop.engine.sim.linear import LinearCost
from schedtop.engine.sim.models import MODELS, find_model
from schedtop.engine.sim.roofline import Roofline

NAMES = [*MODELS, *(f"{name}-fp8" for name in MODELS)]
DIVIDED = st.sampled_from([(1, 1), (2, 1), (4, 2), (8, 1), (1, 4)])


def roofline(model: str, gpu: str, ranks: int = 1, stages: int = 1) -> Roofline:
    shape = find_model(model)
    assert shape is not None
    return Roofline(shape, GPUS[gpu], ranks, stages)


def decode(batch: int, context: float) -> StepFeatures:
    return StepFeatures(batch, 0, batch * context, batch)


def chunk(tokens: int, computed: int) -> StepFeatures:
    return StepFeatures(tokens, tokens * computed + tokens * (tokens + 1) // 2, computed + tokens, 1)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", NAMES)
def test_one_decode_takes_at_least_its_weights_over_bandwidth(model: str, gpu: str) -> None:
    cost = roofline(model, gpu)
    bandwidth = GPUS[gpu].bandwidth_gb_s * 1e9
    floor_s = cost.weights_read_bytes(1) / bandwidth
    if not cost.model.experts:
        floor_s = cost.model.weight_bytes / bandwidth  # the whole file, embedding included
    assert cost.step_s(decode(1, 1)) >= floor_s


@given(
    model=st.sampled_from(NAMES),
    gpu=st.sampled_from(sorted(GPUS)),
    divided=DIVIDED,
    batch=st.integers(1, 1024),
    context=st.integers(1, 100_000),
    more=st.integers(1, 1024),
)
def test_more_requests_or_context_never_take_less(
    model: str, gpu: str, divided: tuple[int, int], batch: int, context: int, more: int
) -> None:
    cost = roofline(model, gpu, *divided)
    step_s = cost.step_s(decode(batch, context))
    assert cost.step_s(decode(batch + more, context)) > step_s
    assert cost.step_s(decode(batch, context + more)) > step_s


@given(
    model=st.sampled_from(NAMES),
    divided=DIVIDED,
    tokens=st.integers(1, 8192),
    computed=st.integers(0, 100_000),
    more=st.integers(1, 64),
)
def test_a_longer_chunk_never_takes_less(
    model: str, divided: tuple[int, int], tokens: int, computed: int, more: int
) -> None:
    cost = roofline(model, "h100", *divided)
    one_token = StepFeatures(1, 0, computed + 1, 1)
    before = chunk(tokens, computed) if tokens > 1 else one_token
    assert cost.step_s(chunk(tokens + more, computed)) > cost.step_s(before)


@given(
    cost=st.builds(LinearCost, *[st.floats(0, 1) for _ in LinearCost.__struct_fields__]),
    base=st.tuples(*[st.integers(0, 10_000)] * 4),
    more=st.tuples(*[st.integers(0, 10_000)] * 4),
)
def test_linear_cost_is_monotonic_too(cost: LinearCost, base: tuple[int, ...], more: tuple[int, ...]) -> None:
    grown = StepFeatures(*(a + b for a, b in zip(base, more, strict=True)))
    assert cost.step_s(grown) >= cost.step_s(StepFeatures(*base))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"])
def test_tensor_parallelism_helps_less_than_it_divides(model: str) -> None:
    alone = roofline(model, "h100").terms(decode(8, 1000))
    divided = roofline(model, "h100", ranks=4).terms(decode(8, 1000))
    assert divided.matrices_s == pytest.approx(alone.matrices_s / 4, rel=0.01)
    assert divided.collectives_s > 0 == alone.collectives_s
    assert sum(alone) / 4 < sum(divided) < sum(alone)


def test_ranks_beyond_the_kv_heads_read_no_less_cache() -> None:
    four = roofline("qwen3-30b-a3b", "h100", ranks=4).terms(decode(8, 1000))
    eight = roofline("qwen3-30b-a3b", "h100", ranks=8).terms(decode(8, 1000))
    assert eight.kv_read_s == four.kv_read_s


def test_pipeline_stages_add_hops_and_no_overlap() -> None:
    alone = roofline("llama-3.1-70b", "h100", ranks=4).step_s(decode(8, 1000))
    staged = roofline("llama-3.1-70b", "h100", ranks=4, stages=2).step_s(decode(8, 1000))
    assert alone < staged < 1.01 * alone


def test_slow_links_cost_more() -> None:
    step = chunk(2048, 0)
    assert roofline("llama-3.1-8b", "l40s", 2).terms(step).collectives_s > 5 * (
        roofline("llama-3.1-8b", "h100", 2).terms(step).collectives_s
    )


def test_fp8_speeds_reading_everywhere_and_arithmetic_where_the_gpu_has_it() -> None:
    for gpu, ratio in (("h100", 0.5), ("a100", 1.0)):
        whole = roofline("llama-3.1-70b", gpu).terms(chunk(4096, 0)).matrices_s
        half = roofline("llama-3.1-70b-fp8", gpu).terms(chunk(4096, 0)).matrices_s
        assert half / whole == pytest.approx(ratio, rel=0.01)
    reading = roofline("llama-3.1-70b-fp8", "a100").terms(decode(1, 1)).matrices_s
    assert reading / roofline("llama-3.1-70b", "a100").terms(decode(1, 1)).matrices_s < 0.52
