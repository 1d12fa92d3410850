"""Drafts by a model: outputs are those of the served model alone, whatever it drafts and whatever comes between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.runner.batch import flatten
from schedtop.engine.runner.drafting.draft_model import share
from schedtop.engine.runner.forward import Forward
from schedtop.engine.runner.gpu.graphs import DecodeGraphs

from tests.thorough import pick

CPU = torch.device("cpu")
MAX_TOKENS = 32


def serve(lab: Any, draft: str = "llama", prompts: Any = (), name: str = "llama", **changes: Any) -> Any:
    changes = {"num_speculative_tokens": 4, "draft_slots": 1, "max_num_batched_tokens": 40, **changes}
    served = lab.serve(name, draft=draft, **changes)
    for prompt in prompts:
        served.add(prompt, MAX_TOKENS)
    return served


@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_the_model_itself_drafts_nothing_but_hits(lab: Any, block_size: int) -> None:
    """Chunked prompts beside decodes; drafts that cross the end of a block hold as the others do."""
    prompts = lab.prompts(5, seed=31, low=3, high=90)
    served = serve(lab, "llama", prompts, block_size=block_size, num_blocks=1024 // block_size)
    lab.check_greedy("llama", prompts, served.run(), MAX_TOKENS)
    assert served.chunked and served.mixed
    assert served.accepted == served.drafts > 0


def test_another_model_drafts_few_hits(lab: Any) -> None:
    prompts = lab.prompts(5, seed=32, low=3, high=90)
    served = serve(lab, "qwen2", prompts)
    lab.check_greedy("llama", prompts, served.run(), MAX_TOKENS)
    assert served.chunked and served.drafts
    assert served.accepted < served.drafts / 4


def test_rejected_drafts_leave_no_trace(lab: Any) -> None:
    """Every third draft is spoiled: what is drafted after a rejection holds as if it had never been."""
    prompts = lab.prompts(5, seed=46, low=3, high=60)
    served = serve(lab, "llama", prompts, num_blocks=40)
    drafter = served.worker._drafter
    propose = drafter.propose

    def spoils(number: Any, position: Any) -> Any:
        return (number + position) % 3 == 0

    def spoiled_propose(step: Any, count: int, pick: Any) -> Any:
        def spoiled(logits: Any, numbers: Any, positions: Any) -> Any:
            tokens = pick(logits, numbers, positions)
            return np.where(spoils(numbers, positions), (tokens + 1) % lab.vocab, tokens)

        return propose(step, count, spoiled)

    def drafted(plan: Any) -> Any:
        return (plan.drafts > 0) & (plan.draft_token_ids is not None and plan.draft_token_ids[:, 0] >= 0)

    def execute(plan: Any) -> Any:
        result = inner(plan)
        first = plan.computed + plan.tokens - plan.drafts
        for row in np.flatnonzero(drafted(plan)).tolist():
            positions = first[row] + np.arange(plan.drafts[row])
            good = np.logical_and.accumulate(~spoils(plan.numbers[row], positions))
            assert result.num_sampled[row] == good.sum() + 1
        return result

    drafter.propose = spoiled_propose
    inner, served.worker.execute = served.worker.execute, execute
    lab.check_greedy("llama", prompts, served.run(), MAX_TOKENS)
    assert 0 < served.accepted < served.drafts


@pytest.mark.parametrize("draft", pick(["llama", "qwen2"], ["llama", "qwen2", "mistral"]))
def test_prefix_hits_preemption_and_resumption(lab: Any, draft: str) -> None:
    prompts = lab.prompts(8, seed=33, shared=16, low=10, high=40)
    served = serve(lab, draft, prompts, num_blocks=20)
    lab.check_greedy("llama", prompts, served.run(), MAX_TOKENS)
    assert served.preemptions and served.cached
    if draft == "llama":
        assert served.accepted > 0.9 * served.drafts


def test_a_cached_prefix_serves_the_draft_model_too(lab: Any) -> None:
    prompts = lab.prompts(4, seed=34, shared=40, high=20)
    served = serve(lab, "llama", draft_tokens=1)
    outputs = []
    for prompt in prompts:
        served.add(prompt, MAX_TOKENS)
        outputs = served.run()
    lab.check_greedy("llama", prompts, outputs, MAX_TOKENS)
    assert served.cached
    # With no room to catch up, a hit that it did not have would leave a request without a draft.
    assert served.accepted == served.drafts > 4 * 20


def test_a_prefix_cached_while_drafting_was_off(lab: Any) -> None:
    """Its blocks hold what the draft model once computed for somebody else, which is worth nothing."""
    first, second = lab.prompts(2, seed=47, low=57, high=58)  # with the outputs, 11 blocks to the last token
    served = serve(lab, "llama", num_blocks=11)
    for prompt, count in ((first, 4), (second, 0), (second, 4)):
        served.worker.num_speculative_tokens = count
        served.add(prompt, MAX_TOKENS)
        outputs = served.run()
    lab.check_greedy("llama", [first, second, second], outputs, MAX_TOKENS)
    assert served.cached
    assert served.accepted == served.drafts > 40


@pytest.mark.parametrize("draft", ["mistral", "llama", "qwen2-window"])
def test_released_blocks(lab: Any, draft: str) -> None:
    """A window on every layer: the blocks before it go to others while the draft model, too, needs them no more."""
    prompts = lab.prompts(6, seed=35, low=10, high=60)
    served = serve(lab, draft, prompts, "mistral", num_blocks=24)
    lab.check_greedy("mistral", prompts, served.run(), MAX_TOKENS)
    if draft == "mistral":
        assert served.accepted > 0.9 * served.drafts > 0


def test_the_number_of_drafts_changes_while_serving(lab: Any) -> None:
    """Off, it falls behind; on again, it catches up, and drafts as well as ever."""
    prompts = lab.prompts(5, seed=36, low=30, high=90)
    served = serve(lab, "llama", prompts, draft_tokens=24)
    seen = set()
    for count in (4, 0, 2, 8, 1):
        served.worker.num_speculative_tokens = count
        served.scheduler.set_limits({"num_speculative_tokens": count})
        for _ in range(3):
            before = served.drafts
            served.step()
            seen.add((count, served.drafts > before))
    lab.check_greedy("llama", prompts, served.run(), MAX_TOKENS)
    assert served.accepted == served.drafts
    assert {(0, False), (2, True), (8, True)} <= seen


def test_a_request_that_lags_does_not_stop_the_others(lab: Any) -> None:
    short, long = lab.prompts(2, seed=37, low=4, high=8), lab.prompts(1, seed=38, low=150, high=151)
    served = serve(lab, "llama", long, max_num_batched_tokens=200, draft_tokens=12)
    served.worker.num_speculative_tokens = 0
    served.step()
    served.worker.num_speculative_tokens = 4
    for prompt in short:
        served.add(prompt, MAX_TOKENS)
    served.step()
    before = served.drafts
    served.step()
    assert served.drafts - before == 8
    lab.check_greedy("llama", [*long, *short], served.run(), MAX_TOKENS)


def test_few_rows_of_scratch(lab: Any) -> None:
    prompts = lab.prompts(6, seed=39, low=3, high=30)
    served = serve(lab, "llama", prompts, scratch_rows=1)
    lab.check_greedy("llama", prompts, served.run(), MAX_TOKENS)
    assert served.accepted == served.drafts > 0


def test_draft_rows_fit_the_input_budget(lab: Any) -> None:
    """What the draft model computes first in a step is never more than the served model's rows and a slot each."""
    prompts = lab.prompts(6, seed=40, low=20, high=60)
    served = serve(lab, "llama", prompts, max_num_batched_tokens=20, draft_tokens=1)
    drafter = served.worker._drafter
    forward, rows, first = drafter._forward, [], True

    def counted(host: Any) -> Any:
        nonlocal first
        if first:
            rows.append(len(host.token_ids))
        first = False
        return forward(host)

    drafter._forward = counted
    while served.scheduler.num_unfinished:
        first = True
        served.step()
    lab.check_greedy("llama", prompts, served.run(), MAX_TOKENS)
    assert 10 < max(rows) <= 20
    assert served.accepted == served.drafts > 0


@pytest.mark.parametrize("draft", ["llama", "qwen2"])
def test_sampled_requests_keep_their_tokens(lab: Any, draft: str) -> None:
    prompts = lab.prompts(6, seed=41, low=3, high=40)
    settings = [SamplingParams(0.7 + 0.1 * i, top_k=20 * (i % 2), seed=i) for i in range(len(prompts))]

    def outputs(**changes: Any) -> tuple[list[list[int]], Any]:
        served = serve(lab, draft, **changes)
        for prompt, sampling in zip(prompts, settings, strict=True):
            served.add(prompt, MAX_TOKENS, sampling)
        return served.run(), served

    plain, _ = outputs(num_speculative_tokens=0)
    drafted, served = outputs()
    assert drafted == plain
    if draft == "llama":  # it draws as its model will
        assert served.accepted == served.drafts > 0


def test_near_the_end_nothing_useless_is_drafted(lab: Any) -> None:
    prompt = lab.prompts(1, seed=42, low=20, high=21)[0]
    served = serve(lab, "llama")
    served.add(prompt, 7)
    lab.check_greedy("llama", [prompt], served.run(), 7)
    # 1 from the prompt, 4 drafts and 1, the last one: nothing to draft.
    assert (served.steps, served.drafts) == (3, 4)


def test_up_to_the_models_length(lab: Any) -> None:
    prompts = lab.prompts(3, seed=43, low=20, high=40)
    served = serve(lab, "llama", max_model_len=64)
    for prompt in prompts:
        served.add(prompt, 100)
    lab.check_greedy("llama", prompts, served.run(), *(64 - len(prompt) for prompt in prompts))


@pytest.mark.parametrize("seed", pick([1], [1, 2, 4]))
def test_what_it_knows_is_what_it_would_compute(lab: Any, seed: int) -> None:
    """Arrivals, aborts, preemptions, prefix hits and changing numbers of drafts: its cache holds each sequence."""
    rng = np.random.default_rng(seed)
    served = serve(lab, "llama", num_blocks=18, draft_tokens=24, scratch_rows=3)
    drafter = served.worker._drafter
    prompts = lab.prompts(24, seed=seed, shared=24, low=3, high=50)
    checked = 0
    for step in range(70):
        if prompts and rng.random() < 0.6:
            served.add(prompts.pop(), int(rng.integers(1, MAX_TOKENS)))
        if rng.random() < 0.1:
            served.worker.num_speculative_tokens = int(rng.integers(0, 9))
        if served.scheduler.num_unfinished and rng.random() < 0.05:
            served.scheduler.abort(next(iter(served.scheduler.state.requests)), 0.0)
        if served.scheduler.num_unfinished:
            served.step()
        if step % 3 == 0:
            checked += sum(
                known_as_computed(lab, served, drafter, row) for row in range(served.scheduler.state.table.size)
            )
    assert checked > 500
    served.run()
    assert served.preemptions and served.cached and served.accepted


def known_as_computed(lab: Any, served: Any, drafter: Any, row: int) -> int:
    """Compares the draft model's cache of one running request with a fresh run; the number of tokens compared."""
    request = served.scheduler.state.table.requests[row]
    rows, size = served.worker._rows, served.scheduler.config.block_size
    slots = rows.slots_of(np.array([request.number]))
    known = int(drafter._known[slots[0]])
    if not known:
        return 0
    fresh = lab.decoder("llama", "lean", served.scheduler.config)
    columns = -(-known // size)
    own = np.arange(columns, dtype=np.int32)[None]
    counts, begins = np.array([known], dtype=np.int32), np.zeros(1, dtype=np.int32)
    host = flatten(rows, slots, own, np.zeros(1, dtype=np.intp), begins, counts, np.zeros(0, dtype=np.int64))
    Forward(fresh, CPU)(host)
    cache, wanted = drafter._forward.decoder.attention.cache, fresh.attention.cache
    held = torch.from_numpy(rows.blocks[slots[0], :columns].astype(np.int64))
    for have, want in ((cache.keys, wanted.keys), (cache.values, wanted.values)):
        for layer, alone in zip(have, want, strict=True):
            torch.testing.assert_close(
                layer[held].flatten(0, 1)[:known], alone[:columns].flatten(0, 1)[:known], rtol=1e-3, atol=1e-4
            )
    return known


@pytest.mark.parametrize("route", ["native", "general"])
def test_other_routes(lab: Any, route: str) -> None:
    prompts = lab.prompts(4, seed=44, low=3, high=60)
    served = lab.serve("llama", route, draft="llama", num_speculative_tokens=3, draft_slots=1)
    for prompt in prompts:
        served.add(prompt, MAX_TOKENS)
    lab.check_greedy("llama", prompts, served.run(), MAX_TOKENS)
    assert served.accepted == served.drafts > 0


def test_on_kernels(lab: Any) -> None:
    pytest.importorskip("triton")
    name = "llama@kernels"
    prompt = lab.prompts(1, seed=45, low=11, high=12)[0]
    served = lab.serve(name, "kernels", draft=name, num_blocks=6, num_speculative_tokens=2, draft_slots=1)
    served.add(prompt, 8)
    lab.check_greedy(name, [prompt], served.run(), 8)
    assert served.accepted == served.drafts > 0


@pytest.mark.parametrize(
    ("wanted", "limit", "given"),
    [([3, 1, 5], 9, [3, 1, 5]), ([3, 1, 5], 6, [3, 1, 2]), ([9, 1, 0, 2], 3, [0, 1, 0, 2]), ([4, 4], 0, [0, 0])],
)
def test_shares(wanted: list[int], limit: int, given: list[int]) -> None:
    assert share(np.array(wanted), limit).tolist() == given


def test_in_recorded_steps(lab: Any) -> None:
    """Drafts, too, are decode steps: one after another they are replayed, with block tables of their own."""
    pytest.importorskip("triton")
    name = "llama@kernels"
    made: list[DecodeGraphs] = []

    def with_graphs(guarded: Any, config: Any) -> DecodeGraphs:
        def replay(run: Any) -> Any:
            return run

        graphs = DecodeGraphs(
            guarded, replay, max_model_len=config.max_model_len, block_size=8, device=CPU, tell=print
        )
        made.append(graphs)
        return graphs

    prompts = lab.prompts(2, seed=48, low=3, high=12)
    served = lab.serve(
        name, "kernels", draft=name, graphs=with_graphs, num_speculative_tokens=3, draft_slots=1, max_model_len=64
    )
    for prompt in prompts:
        served.add(prompt, 7)
    lab.check_greedy(name, prompts, served.run(), 7)
    assert served.accepted == served.drafts > 0
    assert made[0].num_graphs > 0
