"""What one KV group needs, keeps and finds: full attention, a sliding window, or Mamba states.

A look-up is given `find(i)`: the blocks that carry the i-th block's key, or None. A hit is a list of block places,
-1 where the group needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from schedtop.engine.contract.kv_groups import KVGroup, size_of
from schedtop.engine.kv.block_pool import BlockPool

Find = Callable[[int], list[int] | None]
Rows = list[list[int] | None]
"""Per block place, the blocks of the equal groups looked up together; None: not needed."""

FOR_EVER = (1 << 31) - 1


class Holding(Protocol):
    """The blocks of one request in one group (a `Request` itself for the first group)."""

    block_ids: list[int]
    num_registered: int
    num_released: int


class Group:
    """Full attention: everything is kept, and found from the start."""

    looks_once = True
    is_state = False
    num_draft_blocks = 0

    def __init__(self, spec: KVGroup, max_model_len: int) -> None:
        self.size = size_of(spec)
        self.max_model_len = max_model_len

    def required(self, num_tokens: int, with_lookahead: int) -> int:
        """Blocks that hold `num_tokens`, or, where the group minds it, `with_lookahead` tokens."""
        return -(-with_lookahead // self.size)

    def num_skipped(self, num_computed: int) -> int:
        """Leading blocks that no token after the first `num_computed` needs."""
        return 0

    def next_release(self, holding: Holding) -> int:
        """Computed tokens from which one more block can be freed."""
        return FOR_EVER

    def room(self, holding: Holding, lookahead: int) -> int:
        """Tokens that its table has slots for beside the look-ahead."""
        slots = len(holding.block_ids) * self.size
        return FOR_EVER if slots >= self.max_model_len else slots - lookahead

    def cap(self, first_budget: int) -> int:
        """Most blocks that the full-sequence check asks for."""
        return FOR_EVER

    def most_held(self, num_tokens: int, with_lookahead: int, first_budget: int) -> int:
        """Most blocks that a request of so many tokens ever holds at once."""
        return min(self.required(num_tokens, with_lookahead), self.cap(first_budget))

    def run_length(self, drop: bool) -> int:
        """Blocks in a row that a hit needs, and that retention therefore keeps."""
        return 1

    def num_new(self, held: int, required: int, fresh: bool) -> int:
        """Blocks to take so that a table of `held` places has `required`; `fresh`: all of them come from a hit."""
        return max(required - held, 0)

    def extend(self, table: list[int], required: int, fresh: bool, pool: BlockPool) -> list[int]:
        """Grow the table to `required` places; returns the blocks taken. Enough must be free."""
        blocks = pool.take(max(required - len(table), 0))
        assert blocks is not None, "blocks were counted before"
        table += blocks
        return blocks

    def longest_hit(self, find: Find, count: int, align: int, drop: bool) -> Rows:
        rows: Rows = []
        for place in range(count):
            found = find(place)
            if found is None:
                break
            rows.append(found)
        return self.aligned(rows[:-1] if drop else rows, align)

    def aligned(self, rows: Rows, align: int) -> Rows:
        """The rows cut to a multiple of `align` tokens."""
        return rows[: len(rows) * self.size // align * align // self.size]


def fresh_need(
    groups: Sequence[Group],
    held: Iterable[int],
    num_computed: int,
    main: int,
    ahead: int,
    caps: Sequence[int] | None = None,
) -> int:
    """New blocks for an admission that holds a hit of `num_computed` tokens, in so many places of each group's table.

    `main` and `ahead` are the tokens to hold, without and with look-ahead.
    """
    total = 0
    for place, (group, num_held) in enumerate(zip(groups, held, strict=True)):
        required = group.required(main, ahead)
        if caps is not None:
            required = min(required, caps[place])
        num_held = max(num_held, min(group.num_skipped(num_computed), required))
        total += group.num_new(num_held, required, fresh=True)
    return total


class WindowGroup(Group):
    """A sliding window: blocks before it are freed, and a hit needs only those inside it."""

    looks_once = False

    def __init__(self, spec: KVGroup, max_model_len: int) -> None:
        super().__init__(spec, max_model_len)
        assert spec.window is not None
        self.window = spec.window

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - self.window + 1) // self.size

    def next_release(self, holding: Holding) -> int:
        return (holding.num_released + 1) * self.size + self.window - 1

    def cap(self, first_budget: int) -> int:
        return -(-min(self.window - 1 + first_budget, self.max_model_len) // self.size) + 1

    def run_length(self, drop: bool) -> int:
        return -(-(self.window - 1) // self.size) + drop

    def longest_hit(self, find: Find, count: int, align: int, drop: bool) -> Rows:
        """The right-most complete run, or a shorter one from the start."""
        length, size = self.run_length(drop), self.size
        if length == drop:
            return []  # a token that attends only to itself needs nothing
        rows: Rows = []
        for place in range(count - 1, -1, -1):
            if not rows and (place + 1 - drop) * size % align:
                continue
            found = find(place)
            if found is None:
                rows = []
                continue
            rows.append(found)
            if len(rows) == length:
                rows.reverse()
                return [None] * place + (rows[:-1] if drop else rows)
        rows.reverse()
        rows = self.aligned(rows, align)
        return self.aligned(rows[:-1], align) if drop else rows


class WholeStateGroup(Group):
    """Mamba with one state for the whole request: nothing is cached."""

    looks_once = False
    is_state = True

    def __init__(self, spec: KVGroup, max_model_len: int, num_drafts: int) -> None:
        super().__init__(spec, max_model_len)
        self.num_draft_blocks = num_drafts

    def required(self, num_tokens: int, with_lookahead: int) -> int:
        return -(-with_lookahead // self.size) + self.num_draft_blocks

    def room(self, holding: Holding, lookahead: int) -> int:
        return FOR_EVER if holding.block_ids else 0

    def longest_hit(self, find: Find, count: int, align: int, drop: bool) -> Rows:
        return []


class StateGroup(WholeStateGroup):
    """Mamba with states at the ends of blocks: the newest is needed, older ones only to be found again.

    The last `1 + num_draft_blocks` places of a table are the state and the drafts' blocks.
    """

    def required(self, num_tokens: int, with_lookahead: int) -> int:
        return -(-num_tokens // self.size) + self.num_draft_blocks

    def room(self, holding: Holding, lookahead: int) -> int:
        return (len(holding.block_ids) - self.num_draft_blocks) * self.size

    def num_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - 1) // self.size

    def next_release(self, holding: Holding) -> int:
        return (holding.num_released + 1) * self.size + 1

    def most_held(self, num_tokens: int, with_lookahead: int, first_budget: int) -> int:
        return min(-(-num_tokens // self.size), 2) + self.num_draft_blocks

    def num_new(self, held: int, required: int, fresh: bool) -> int:
        if required <= held:
            return 0
        return 1 + self.num_draft_blocks if fresh else 1

    def extend(self, table: list[int], required: int, fresh: bool, pool: BlockPool) -> list[int]:
        """Skipped places are not needed; drafts' blocks left behind move to the new end."""
        state = required - 1 - self.num_draft_blocks
        moved: list[int] = []
        if not fresh:
            first_draft = len(table) - self.num_draft_blocks
            moved = table[first_draft:state]
            table[first_draft:state] = [-1] * len(moved)
        table += [-1] * (state - len(table))
        table += moved
        return super().extend(table, required, fresh, pool)

    def longest_hit(self, find: Find, count: int, align: int, drop: bool) -> Rows:
        for place in range(count - 1, -1, -1):
            if (place + 1) * self.size % align == 0 and (found := find(place)) is not None:
                return [*[None] * place, found]
        return []
