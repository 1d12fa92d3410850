"""The simulated worker, alone and under the real scheduler."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.handoff.plan import StepPlan, Worker
from schedtop.engine.handoff.request import Request
from schedtop.engine.scheduler.scheduler import Scheduler
from schedtop.engine.sim.features import step_features
from schedtop.engine.sim.spec import parse_device
from schedtop.engine.sim.worker import SimWorker

DEVICE = parse_device("sim:llama-3.1-8b@h100")
VOCAB = DEVICE.vocab_size


def make_worker(seed: int = 0, acceptance: float = 0.7, speculate: int = 0) -> SimWorker:
    return SimWorker(DEVICE.step_cost(), VOCAB, seed, acceptance, speculate)


def ints(values: list[int]) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def make_plan(
    numbers: list[int],
    computed: list[int],
    tokens: list[int] | None = None,
    drafts: list[list[int]] | None = None,
    samples: list[bool] | None = None,
    width: int = 8,
) -> StepPlan:
    """A plan of single decodes, or of rows with `drafts` (ids, as many as the row has) behind one token."""
    rows = len(numbers)
    drafts_of = drafts or [[] for _ in numbers]
    matrix = np.full((rows, width), -7, dtype=np.int32)
    for row, ids in enumerate(drafts_of):
        matrix[row, : len(ids)] = ids
    return StepPlan(
        ids=[str(number) for number in numbers],
        numbers=ints(numbers),
        tokens=ints(tokens or [1 + len(ids) for ids in drafts_of]),
        drafts=ints([len(ids) for ids in drafts_of]),
        computed=ints(computed),
        samples=np.array(samples or [True] * rows),
        draft_token_ids=matrix if drafts else None,
        new_blocks={},
        started=[],
        gone=[],
    )


def outputs_of(worker: SimWorker, number: int, first: int, count: int) -> list[int]:
    positions = np.arange(first, first + count, dtype=np.int32)
    ids: list[int] = worker.token_ids(np.full(count, number, dtype=np.int32), positions).tolist()
    return ids


def test_it_is_a_worker() -> None:
    worker: Worker = make_worker()
    assert worker.simulated


def test_decode_returns_one_token_and_the_devices_time() -> None:
    plan = make_plan([3, 9], [100, 70])
    result = make_worker().execute(plan)
    assert result.sampled.shape == (2, 1)
    assert result.sampled.dtype == result.num_sampled.dtype == np.int32
    assert result.num_sampled.tolist() == [1, 1]
    assert result.drafts is None
    assert result.elapsed_s == DEVICE.step_cost().step_s(step_features(plan.tokens, plan.computed))


def test_rows_short_of_their_end_sample_nothing() -> None:
    result = make_worker(speculate=2).execute(make_plan([1, 2], [0, 50], [64, 1], samples=[False, True]))
    assert result.num_drafts is not None
    assert result.num_sampled.tolist() == [0, 1]
    assert result.num_drafts.tolist() == [0, 2]


@given(
    seed=st.integers(0, 2**40),
    number=st.integers(0, 2**31 - 1),
    prompt=st.integers(1, 10_000),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_an_output_depends_on_seed_request_and_position_alone(
    seed: int, number: int, prompt: int, chunks: list[int]
) -> None:
    """However the sequence was computed up to its end, and whoever is beside it."""
    worker = make_worker(seed)
    end = prompt + sum(chunks)
    whole = worker.execute(make_plan([number], [0], [end])).sampled[0, 0]
    last = worker.execute(make_plan([5, number], [7, end - chunks[-1]], [1, chunks[-1]])).sampled[1, 0]
    assert whole == last
    assert 0 <= whole < VOCAB


def test_seeds_requests_and_positions_differ() -> None:
    base = outputs_of(make_worker(1), 5, 100, 50)
    assert len(set(base)) == 50
    assert base != outputs_of(make_worker(2), 5, 100, 50)
    assert base != outputs_of(make_worker(1), 6, 100, 50)


def test_drafts_hold_up_to_the_first_wrong_one() -> None:
    worker = make_worker()
    good = outputs_of(worker, 4, 31, 4)
    wrong = (good[1] + 1) % VOCAB
    drafts = [good[:3], [good[0], wrong, good[2]], [wrong, *good[1:3]], [-1, -1], good[:1], []]
    result = worker.execute(make_plan([4] * 6, [30] * 6, drafts=drafts))
    assert result.num_sampled.tolist() == [4, 2, 1, 1, 2, 1]
    for row, count in enumerate(result.num_sampled.tolist()):
        assert result.sampled[row, :count].tolist() == good[:count]


def test_ids_beyond_a_rows_drafts_count_for_nothing() -> None:
    worker = make_worker()
    good = outputs_of(worker, 4, 31, 4)
    plan = make_plan([4, 4], [30, 30], drafts=[good[:1], good[:3]])
    assert plan.draft_token_ids is not None
    plan.draft_token_ids[0, : len(good)] = good
    assert worker.execute(plan).num_sampled.tolist() == [2, 4]


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 1.0])
def test_drafts_hold_as_often_as_asked(acceptance: float) -> None:
    rows, depth = 2000, 3
    worker = make_worker(acceptance=acceptance, speculate=depth)
    plan = make_plan(list(range(rows)), [500] * rows)
    result = worker.execute(plan)
    assert result.drafts is not None
    positions = (plan.computed + 2)[:, None] + ints(list(range(depth)))
    coming = worker.token_ids(plan.numbers[:, None], positions)
    share = (result.drafts == coming).mean(axis=0)
    assert share == pytest.approx(acceptance, abs=0.04 if 0 < acceptance < 1 else 0)
    assert result.drafts.min() >= 0
    assert result.drafts.max() < VOCAB


def test_the_number_of_drafts_changes_live() -> None:
    worker = make_worker()
    for depth in (3, 0, 8, 1):
        worker.num_speculative_tokens = depth
        drafts = worker.execute(make_plan([1], [10])).drafts
        assert (drafts.shape[1] if drafts is not None else 0) == depth


def test_a_plan_is_left_as_it_was() -> None:
    plan = make_plan([1, 2], [10, 20], drafts=[[5], [6, 7]])
    before = [array.copy() for array in (plan.numbers, plan.tokens, plan.drafts, plan.computed)]
    make_worker(speculate=4).execute(plan)
    for array, copy in zip((plan.numbers, plan.tokens, plan.drafts, plan.computed), before, strict=True):
        assert array.tolist() == copy.tolist()


def serve(worker: SimWorker, depth: int, num_blocks: int) -> tuple[list[list[int]], int, int]:
    """Outputs of some requests through the real scheduler, with the steps and preemptions it took."""
    config = SchedulerConfig(
        num_blocks=num_blocks, max_num_batched_tokens=96, max_num_seqs=8, num_speculative_tokens=depth
    )
    scheduler = Scheduler(config)
    requests = [Request(str(i), ints(list(range(i, i + 30 + 9 * i))), max_tokens=40 + i) for i in range(6)]
    for request in requests:
        assert scheduler.add(request) is None
    steps, clock_s = 0, 0.0
    while scheduler.num_unfinished:
        plan = scheduler.schedule(clock_s)
        result = worker.execute(plan)
        assert result.elapsed_s is not None
        clock_s += result.elapsed_s
        scheduler.update(plan, result, clock_s)
        steps += 1
    return [list(request.output_token_ids) for request in requests], steps, sum(r.num_preemptions for r in requests)


def test_speculation_and_preemption_change_no_output() -> None:
    plain, plain_steps, _ = serve(make_worker(), 0, num_blocks=400)
    assert [len(ids) for ids in plain] == [40 + i for i in range(6)]
    drafted, drafted_steps, _ = serve(make_worker(speculate=3), 3, num_blocks=400)
    squeezed, _, preemptions = serve(make_worker(speculate=3), 3, num_blocks=20)
    assert drafted == squeezed == plain
    assert drafted_steps < 0.7 * plain_steps
    assert preemptions > 0


def test_drafts_that_never_hold_save_no_step() -> None:
    _, plain_steps, _ = serve(make_worker(), 0, num_blocks=400)
    _, steps, _ = serve(make_worker(acceptance=0.0, speculate=3), 3, num_blocks=400)
    assert steps >= plain_steps


def test_equal_runs_are_equal() -> None:
    first, again = (serve(make_worker(7, 0.5, 2), 2, num_blocks=25) for _ in range(2))
    assert first == again
