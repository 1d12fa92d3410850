"""A stretch: steps in which nothing but decoding happens, computed together, every figure as single steps give it.

Its first steps may have been under way before, and those may end prompts.
Only a simulated device's steps are known before they run. Between the steps of a stretch there is no state to look
at: whoever needs that, as a recording does for its keyframes, takes single steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import (
    ROW_FIELDS,
    Admission,
    Arrival,
    Blocks,
    Deferral,
    Finish,
    Head,
    Limiter,
    Preemption,
    Refusal,
    StepRecord,
    Totals,
)
from schedtop.engine.kv.block_pool import HELD, in_order
from schedtop.engine.scheduler.books.request_table import COLUMNS, IntArray
from schedtop.engine.scheduler.books.state import Batch, PlannedStep, State
from schedtop.engine.scheduler.decodes import (
    DECODED,
    Floats,
    Gaps,
    Needs,
    Outlook,
    advance,
    batch_of,
    block_needs,
    decodes_ahead,
    deliver,
    end_decoded,
    only_decodes,
    set_out_again,
    take_blocks,
    until,
)
from schedtop.engine.scheduler.late_results import Present
from schedtop.engine.scheduler.settle import note_first_tokens
from schedtop.engine.sim.worker import SimWorker
from schedtop.engine.step.describe import growth, packed
from schedtop.engine.step.engine import Engine
from schedtop.engine.step.observer import Events
from schedtop.engine.step.stages import Stages

FEWEST_STEPS = 2
"""Fewer are as quick one by one. The last one was not yet under way before."""
MOST_OUTPUTS = 1 << 16
"""Of one stretch: bounds its memory, and how long nobody hears of it."""

TOKENS, COMPUTED, NEEDED, EMITTED, BLOCKS, FLAGS = (
    ROW_FIELDS.index(name) for name in ("tokens", "computed", "needed", "emitted", "blocks", "flags")
)


class Requests(msgspec.Struct, frozen=True):
    """What a step's record says of requests that come, start and go; the fields are a `StepRecord`'s.

    `num_rows`: rows of the record.
    """

    num_rows: int
    arrivals: tuple[Arrival, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    admissions: tuple[Admission, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    ttft_s: tuple[tuple[int, float], ...] = ()
    finishes: tuple[Finish, ...] = ()


class Begun(msgspec.Struct, frozen=True):
    """A step that was under way before, as its record tells it. `gained`: what totals gain besides decoded tokens."""

    batch: Batch
    present: Present
    head: Head | None
    oldest_queued_s: float | None
    first_tokens: tuple[tuple[int, float], ...]
    gained: Counter[str]


class Times(msgspec.Struct, frozen=True):
    """`turns_s`: the start of each turn, and the end of the last. `elapsed_s`: how long its results took the device in
    all (0: there are none), `executed_s`: how long they were in it, with waits between its stages."""

    turns_s: Floats
    elapsed_s: Floats
    executed_s: Floats

    def until(self, turns: int) -> Times:
        """Of the first `turns` turns."""
        return Times(self.turns_s[: turns + 1], self.elapsed_s[:turns], self.executed_s[:turns])


class Stretch(msgspec.Struct, frozen=True):
    """What some turns came to. A `Report` takes it in place of their records.

    `common`: what their records share; `seq`, `step`, `blocks` and `totals` are those before the first. `slots`: input
    rows for the drafts of a request. `columns`: the request table before. `told`: the turns in which a step was told,
    the first of them those of `begun`. The first record tells `events`, `deferrals` and `changed_before`.
    `new_blocks[i]` went to row `needs.rows[i]`. `itl_s`: float32 (turns, rows), NaN where
    a row was not told. All below is as the last turn left it; a request finishes in no other.
    """

    common: StepRecord
    slots: int
    outlook: Outlook
    columns: IntArray
    begun: list[Begun]
    events: Events
    deferrals: tuple[Deferral, ...]
    changed_before: dict[int, int]
    times: Times
    told: list[int]
    needs: Needs
    new_blocks: list[int]
    itl_s: bytes
    oldest_queued_s: float | None

    head: Head | None
    running: int
    last_blocks: Blocks
    changes: dict[int, int]
    finishes: list[Finish]
    totals: Totals

    @property
    def end_s(self) -> float:
        return self.times.turns_s.item(-1)

    @property
    def blocks(self) -> Blocks:
        """The pool after the last step."""
        return self.last_blocks

    @property
    def blocks_in_use(self) -> int:
        """The most that a step told of had in use after scheduling; those planned here free nothing."""
        before = [begun.batch.planned.blocks_in_use for begun in self.begun if begun.batch.plan.num_rows]
        return max(self._in_use(self.told[-1] - self.outlook.lag), *before, 0)

    def requests(self) -> Iterator[Requests]:
        """Who came, started and went, by step; steps in which nobody did are left out."""
        for turn, begun in enumerate(self.begun):
            arrivals, refusals = (self.events.arrivals, self.events.refusals) if turn == 0 else ([], [])
            admissions = begun.batch.planned.admissions
            if arrivals or refusals or admissions or begun.first_tokens:
                yield Requests(
                    begun.batch.columns.shape[1],
                    tuple(arrivals),
                    tuple(refusals),
                    tuple(admissions),
                    ttft_s=begun.first_tokens,
                )
        if self.finishes:
            yield Requests(self.columns.shape[1], finishes=tuple(self.finishes))

    def deliveries(self) -> Iterator[tuple[IntArray, float]]:
        """The requests that got outputs, and when they got their newest."""
        for turn, rows in self.outlook.rounds:
            yield self.columns[0, rows], self.times.turns_s[1:][turn :: self.outlook.period].item(-1)

    def records(self) -> Iterator[StepRecord]:
        """The record of every step."""
        common, turns_s = self.common, self.times.turns_s.tolist()
        executed_s, gaps_s = self.times.executed_s.tolist(), np.frombuffer(self.itl_s, np.float32)
        gaps_s = gaps_s.reshape(self.needs.turns, -1)
        busy_s, outputs, since, gained = common.totals.busy_s, 0, 0, Counter[str]()
        changed = dict(self.changed_before)
        for count, turn in enumerate(self.told, 1):
            start_s, end_s = turns_s[turn : turn + 2]
            rows, itl_s, record = self._step_told(turn, gaps_s[turn])
            tokens, num_busy = int(np.add.reduce(rows[TOKENS])), int(np.count_nonzero(rows[TOKENS]))
            busy_s, outputs = busy_s + (end_s - start_s), outputs + num_busy
            oldest_queued_s = self.oldest_queued_s
            if turn < len(self.begun):
                gained += self.begun[turn].gained
                oldest_queued_s = self.begun[turn].oldest_queued_s
            begin, end = self.needs.at.searchsorted((since, turn + 1)).tolist()
            blocks, since = self._blocks(turn), turn + 1
            changed |= dict.fromkeys(self.new_blocks[begin:end], HELD)
            record = msgspec.structs.replace(
                record,
                seq=common.seq + count,
                step=common.step + count,
                start_s=start_s,
                end_s=end_s,
                execute_s=executed_s[turn],
                scheduled_tokens=tokens,
                input_rows=tokens + num_busy * self.slots,
                rows=rows.tobytes(),
                itl_s=itl_s,
                oldest_wait_s=None if oldest_queued_s is None else end_s - oldest_queued_s,
                blocks=blocks,
                changed_blocks=packed(in_order(changed)),
                totals=_counted(common, count, outputs, busy_s, self.slots, gained),
            )
            changed = {}
            if count == 1:
                record = self._opening(record)
            yield self._closing(record) if turn == self.told[-1] else record

    def _step_told(self, turn: int, gaps_s: Gaps) -> tuple[IntArray, bytes, StepRecord]:
        """The rows, gaps and record of the step reported in a turn: planned in an earlier one, or before all."""
        if turn < len(self.begun):
            return self._step_begun(self.begun[turn], gaps_s)
        planned_in = turn - self.outlook.lag
        rows = _columns_at(self.columns, self.outlook, self.needs, planned_in)
        rows[EMITTED] = rows[TOKENS]
        begin, end = self.needs.at.searchsorted((planned_in, planned_in + 1)).tolist()
        grown = self.needs.rows[begin:end]
        record = msgspec.structs.replace(
            self.common,
            planned_s=self.times.turns_s.item(planned_in),
            decode_tokens=int(np.add.reduce(rows[TOKENS])),
            blocks_in_use=self._in_use(planned_in),
            grown=np.stack([rows[0, grown], np.ones_like(grown)], axis=1).astype(np.int32).tobytes(),
            grown_blocks=packed(self.new_blocks[begin:end]),
        )
        return rows, gaps_s.tobytes(), record

    def _step_begun(self, begun: Begun, gaps_s: Gaps) -> tuple[IntArray, bytes, StepRecord]:
        planned, present, rows = begun.batch.planned, begun.present, begun.batch.columns.copy()
        rows[EMITTED] = rows[TOKENS] > 0
        itl_s: Gaps = np.full(rows.shape[1], np.nan, dtype=np.float32)
        itl_s[present.at] = gaps_s[present.rows]
        grown, grown_blocks, grown_groups = growth(planned, set())
        record = msgspec.structs.replace(
            self.common,
            planned_s=planned.now_s,
            decode_tokens=planned.decode_tokens,
            prefill_tokens=int(np.add.reduce(rows[TOKENS])) - planned.decode_tokens,
            limiter=planned.limiter.value,
            head=begun.head,
            ttft_s=begun.first_tokens,
            admissions=tuple(planned.admissions),
            blocks_in_use=planned.blocks_in_use,
            grown=grown,
            grown_blocks=grown_blocks,
            grown_groups=grown_groups,
        )
        return rows, itl_s.tobytes(), record

    def _opening(self, record: StepRecord) -> StepRecord:
        """The first step's record, with what happened before it."""
        events = self.events
        return msgspec.structs.replace(
            record,
            arrivals=tuple(events.arrivals),
            refusals=tuple(events.refusals),
            paused_by=events.paused_by,
            deferrals=self.deferrals,
        )

    def _in_use(self, turn: int) -> int:
        """Blocks in use once the step of a turn was planned."""
        blocks = self.common.blocks
        return blocks.held + blocks.shared + int(self.needs.at.searchsorted(turn + 1))

    def _blocks(self, turn: int) -> Blocks:
        """The pool once the step of a turn was planned."""
        blocks, count = self.common.blocks, int(self.needs.at.searchsorted(turn + 1))
        evicted = max(count - blocks.empty, 0)
        return msgspec.structs.replace(
            blocks,
            held=blocks.held + count,
            cached_free=blocks.cached_free - evicted,
            empty=blocks.empty - (count - evicted),
            stored_tokens=blocks.stored_tokens + int(np.add.reduce(self.outlook.times_planned(turn + 1))),
        )

    def _closing(self, record: StepRecord) -> StepRecord:
        """The last step's record, after requests that it finished have left."""
        return msgspec.structs.replace(
            record,
            head=self.head,
            running=self.running,
            blocks=self.last_blocks,
            changed_blocks=packed(in_order(self.changes)),
            finishes=tuple(self.finishes),
            totals=self.totals,
        )


def _columns_at(columns: IntArray, outlook: Outlook, needs: Needs, turn: int) -> IntArray:
    """The record rows, without results, of the step that is planned in a turn."""
    rows = columns[: len(ROW_FIELDS)].copy()
    before = outlook.times_planned(turn)
    busy = outlook.times_planned(turn + 1) - before
    rows[TOKENS], rows[FLAGS] = busy, busy * DECODED
    rows[COMPUTED] = columns[COLUMNS.index("num_computed")] + before
    rows[NEEDED] = rows[COMPUTED] + (1 if outlook.ahead else busy)
    grown = needs.rows[: needs.at.searchsorted(turn + 1)]
    rows[BLOCKS] += np.bincount(grown, minlength=rows.shape[1]).astype(np.int32)
    return rows


def _counted(
    common: StepRecord, steps: int, outputs: int, busy_s: float, slots: int, gained: Mapping[str, int]
) -> Totals:
    """The totals after so many steps and outputs, and what else steps gained."""
    totals = common.totals
    decoded = msgspec.structs.replace(
        totals,
        steps=totals.steps + steps,
        scheduled_tokens=totals.scheduled_tokens + outputs,
        output_tokens=totals.output_tokens + outputs,
        token_budget=totals.token_budget + steps * common.token_budget,
        input_rows=totals.input_rows + outputs * (1 + slots),
        input_budget=totals.input_budget + steps * common.input_budget,
        busy_s=busy_s,
    )
    more = {name: getattr(decoded, name) + count for name, count in gained.items()}
    return msgspec.structs.replace(decoded, **more) if more else decoded


def records_of(done: StepRecord | Stretch) -> Iterable[StepRecord]:
    """A record, or each of a stretch."""
    return done.records() if isinstance(done, Stretch) else (done,)


def run_stretch(engine: Engine, until_s: float = math.inf, most_steps: int = MOST_OUTPUTS) -> Stretch | None:
    """Take the next turns that start before `until_s` and do nothing but decode.

    None if few do; then nothing was done, or the next step was planned, with those who have arrived.
    """
    worker, state, now_s = engine.worker, engine.scheduler.state, engine.clock_s
    if not isinstance(worker, SimWorker) or engine.paused or engine.observer.has_events:
        return None
    if until_s <= now_s or most_steps <= len(state.under_way) + 1:
        return None
    wake_s = engine.next_wake_s()
    if wake_s is not None and wake_s <= now_s:
        if not engine.may_begin_turn:
            return None
        engine.begin_turn()
        wake_s = engine.next_wake_s()
    until_s = until_s if wake_s is None else min(until_s, wake_s)
    outlook, fewest = decodes_ahead(state), max(FEWEST_STEPS, len(state.under_way) + 1)
    if outlook is None or outlook.turns < fewest:
        return None
    turns = min(outlook.turns, most_steps, MOST_OUTPUTS // state.table.size)
    times = _foresee(engine, worker, outlook, turns)
    turns = _last_told(outlook, int(times.turns_s[:-1].searchsorted(until_s)))
    if turns < fewest:
        return None
    needs = block_needs(state, outlook, turns)
    turns = _last_told(outlook, needs.turns)
    if turns < fewest:
        return None
    return _run(engine, worker, outlook, until(needs, turns), times.until(turns))


def _last_told(outlook: Outlook, turns: int) -> int:
    """At most so many turns, the last of which describes a step."""
    if outlook.period == 1:
        return turns
    told = set(outlook.tells.tolist())
    while turns and (turns - 1) % outlook.period not in told:
        turns -= 1
    return turns


def _foresee(engine: Engine, worker: SimWorker, outlook: Outlook, turns: int) -> Times:
    """When so many turns would begin and end."""
    elapsed_s, period, begun = np.zeros(turns), outlook.period, engine.scheduler.state.under_way
    before = _computed_before(engine, outlook)
    if period == 1 and not (len(outlook.rounds) == 1 and all(map(only_decodes, begun))):
        elapsed_s[: len(begun)] = [worker.elapsed_s(batch.plan) for batch in begun]
        elapsed_s[len(begun) :] = worker.decode_s(before + outlook.coming, turns - len(begun))
    else:
        for turn, rows in outlook.rounds:
            elapsed_s[turn::period] = worker.decode_s(before[rows], len(range(turn, turns, period)))
    if engine.stages is not None:
        return _staged(engine, elapsed_s, deepcopy(engine.stages))
    turns_s = np.empty(turns + 1)
    turns_s[0], turns_s[1:] = engine.clock_s, elapsed_s
    np.add.accumulate(turns_s, out=turns_s)
    return Times(turns_s, elapsed_s, turns_s[1:] - turns_s[:-1])


def _staged(engine: Engine, elapsed_s: Floats, stages: Stages) -> Times:
    """As `_foresee`, on several stages: a batch goes through them beside those before it."""
    planned_s = [batch.planned.now_s for batch in engine.scheduler.state.under_way]
    turns_s, executed_s = [engine.clock_s], []
    for turn, length_s in enumerate(elapsed_s.tolist()):
        now_s = turns_s[-1]
        planned_s.append(now_s)
        end_s = taken_up_s = now_s
        if length_s:
            taken_up_s, end_s = stages.run(planned_s[turn], length_s)
            end_s = now_s + (end_s - now_s)  # as the clock adds up
        turns_s.append(end_s)
        executed_s.append(end_s - taken_up_s)
    return Times(np.array(turns_s), elapsed_s, np.array(executed_s))


def _computed_before(engine: Engine, outlook: Outlook) -> IntArray:
    """Tokens of each row that come before its next output."""
    table = engine.scheduler.state.table
    before: IntArray = table.num_computed[: table.size] - outlook.coming
    return before


def _run(engine: Engine, worker: SimWorker, outlook: Outlook, needs: Needs, times: Times) -> Stretch:
    state, observer, turns = engine.scheduler.state, engine.observer, needs.turns
    table, size = state.table, state.table.size
    if engine.stages is not None:
        _staged(engine, times.elapsed_s, engine.stages)
    limiter, head = _limiter(outlook.head), observer.look_at(outlook.head)
    common = observer.blank_record(engine.knobs_version, executed=True, limiter=limiter, head=head)
    events, deferrals = observer.take_events(), observer.take_deferrals()
    columns = table.data[: len(COLUMNS), :size].copy()
    begun = _begun(engine, outlook, times)
    gained = Counter[str]()
    for step in begun:
        gained.update(step.gained)
    changed_before = state.kv.pool.take_changes()
    told = _turns_told(outlook, turns)
    new_blocks = take_blocks(state, needs, told[-2] + 1 if len(told) > 1 else 0)
    sampled, gaps_s = _outputs(engine, worker, outlook, times)
    deliver(table, outlook, sampled, gaps_s, times.turns_s[1:])
    in_use = common.blocks.held + common.blocks.shared
    batches = list(_batches(state, outlook, needs, times, columns, in_use, new_blocks))
    advance(state, outlook, turns)
    set_out_again(state, batches)
    busy_s = common.totals.busy_s
    for length_s in (times.turns_s[1:] - times.turns_s[:-1]).tolist():  # one by one, as the totals add up
        busy_s += length_s
    outputs, slots = int(np.add.reduce(outlook.times_told(turns))), state.config.draft_slots
    end_s = times.turns_s.item(-1)
    finishes = end_decoded(state, end_s)
    observer.skip(len(told), _counted(common, len(told), outputs, busy_s, slots, gained), finishes)
    engine.skip_turns(turns, end_s)
    return Stretch(
        common=common,
        slots=slots,
        outlook=outlook,
        columns=columns,
        begun=begun,
        events=events,
        deferrals=deferrals,
        changed_before=changed_before,
        times=times,
        told=told,
        needs=needs,
        new_blocks=new_blocks,
        itl_s=gaps_s.tobytes(),
        oldest_queued_s=observer.oldest_queued_s,
        head=observer.look_at(outlook.head),
        running=table.size,
        last_blocks=observer.blocks(),
        changes=state.kv.pool.take_changes(),
        finishes=finishes,
        totals=observer.totals(),
    )


def _begun(engine: Engine, outlook: Outlook, times: Times) -> list[Begun]:
    """The steps that are under way, told in the first turns."""
    observer, table, steps = engine.observer, engine.scheduler.state.table, []
    fresh = np.isnan(table.last_s[: table.size])
    for turn, batch in enumerate(engine.scheduler.state.under_way):
        planned, plan, firsts, gained = batch.planned, batch.plan, [], Counter[str]()
        if not only_decodes(batch):
            rows = (fresh & (outlook.tells == turn)).nonzero()[0].tolist()
            firsts = note_first_tokens(table, rows, times.turns_s.item(turn + 1))
            gained = observer.admitted(planned)
            gained["scheduled_tokens"] = gained["input_rows"] = int(np.add.reduce(plan.tokens)) - plan.num_rows
        observer.move_queue(planned)
        head = observer.look_at(planned.head)
        present, oldest_queued_s = outlook.presents[turn], observer.oldest_queued_s
        steps.append(Begun(batch, present, head, oldest_queued_s, tuple(firsts), gained))
    return steps


def _turns_told(outlook: Outlook, turns: int) -> list[int]:
    """Those of the first `turns` turns that describe a step."""
    if outlook.period == 1:
        return list(range(turns))
    tells = set(outlook.tells.tolist())
    return [turn for turn in range(turns) if turn % outlook.period in tells]


def _limiter(head: Head | None) -> Limiter:
    return Limiter.NONE if head is None else Limiter(head.reason)


def _outputs(engine: Engine, worker: SimWorker, outlook: Outlook, times: Times) -> tuple[list[IntArray], Gaps]:
    """The outputs of each round (times, rows), and all gaps (turns, rows), NaN where a row is not told."""
    table, period, ends_s = engine.scheduler.state.table, outlook.period, times.turns_s[1:]
    before, sampled = _computed_before(engine, outlook), []
    gaps_s: Gaps = np.empty((len(ends_s), table.size), dtype=np.float32)
    if period > 1 or len(outlook.rounds) > 1:
        gaps_s.fill(np.nan)
    for turn, rows in outlook.rounds:
        told_s = ends_s[turn::period]
        offsets: IntArray = np.arange(1, len(told_s) + 1, dtype=np.int32)[:, None]
        sampled.append(worker.token_ids(table.request[: table.size][rows], before[rows] + offsets))
        gaps_s[turn, rows] = told_s[0] - table.last_s[: table.size][rows]
        gaps_s[turn + period :: period, rows] = (told_s[1:] - told_s[:-1])[:, None]
    return sampled, gaps_s


def _batches(
    state: State,
    outlook: Outlook,
    needs: Needs,
    times: Times,
    columns: IntArray,
    in_use: int,
    new_blocks: list[int],
) -> Iterator[Batch]:
    """The steps that are under way in the end."""
    for turn in range(needs.turns - outlook.lag, needs.turns):
        begin, end = needs.at.searchsorted((turn, turn + 1)).tolist()
        numbers = state.table.request[needs.rows[begin:end]].tolist()
        rows = _columns_at(columns, outlook, needs, turn)
        planned = PlannedStep(
            times.turns_s.item(turn),
            state.limits.token_budget,
            state.limits.input_budget,
            decode_tokens=int(np.add.reduce(rows[TOKENS])),
            limiter=_limiter(outlook.head),
            head=outlook.head,
            new_blocks={number: [block] for number, block in zip(numbers, new_blocks[begin:end], strict=True)},
            blocks_in_use=in_use + end,
        )
        yield batch_of(state.table, planned, rows)
