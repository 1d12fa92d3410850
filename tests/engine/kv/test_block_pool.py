"""The block pool against a list of free blocks, a count of holders and a list of carriers per key."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedtop.engine.contract.telemetry import BlockClass
from schedtop.engine.kv.block_pool import BlockPool

KEYS = [b"a", b"b", b"c"]


def test_blocks_are_taken_in_order_and_all_or_none() -> None:
    pool = BlockPool(3)
    assert pool.take(2) == [0, 1]
    assert pool.take(2) is None
    assert pool.num_free == 1
    assert pool.take(1) == [2]
    assert pool.usage == 1.0


def test_freed_blocks_without_a_key_are_taken_first_and_cached_ones_last() -> None:
    pool = BlockPool(6)
    held = pool.take(4)
    assert held == [0, 1, 2, 3]
    pool.register([0, 2], [b"a", b"c"])
    assert pool.release([3, 2, 1, 0]) == 4
    # 3 and 1 have no key: to the front in the order freed; 2 and 0 have one: to the back.
    assert pool.take(6) == [3, 1, 4, 5, 2, 0]


def test_a_taken_block_loses_its_key() -> None:
    pool = BlockPool(1)
    pool.take(1)
    pool.register([0], [b"a"])
    pool.release([0])
    assert pool.index.find(b"a") == 0
    assert pool.class_of(0) is BlockClass.CACHED_FREE
    pool.take(1)
    assert pool.index.find(b"a") is None
    pool.release([0])
    assert pool.class_of(0) is BlockClass.EMPTY


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    pool.take(1)
    pool.register([0], [b"a"])
    pool.share([0])
    assert pool.class_of(0) is BlockClass.SHARED
    assert pool.release([0]) == 0
    assert pool.class_of(0) is BlockClass.HELD
    assert pool.release([0]) == 1


def test_cached_blocks_that_come_and_go_are_taken_in_the_order_they_were_last_freed() -> None:
    """However often: their old places in the queue are cleared up now and then."""
    pool = BlockPool(5)
    blocks = pool.take(5)
    assert blocks is not None
    pool.register(blocks, [b"0", b"1", b"2", b"3", b"4"])
    pool.release(blocks)
    order = blocks
    for turn in range(400):
        block = turn * turn % 5
        pool.share([block])
        pool.release([block])
        order = [other for other in order if other != block] + [block]
        pool.audit([])
    assert pool.take(5) == order


def test_the_audit_names_what_is_off() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool.audit([[0, 1]])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.audit([[0]])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.audit([[0, 1], [1]])


class PoolBooks(RuleBasedStateMachine):
    """Random takes, shares, registrations and releases; after each, pool and model agree."""

    @initialize(num_blocks=st.integers(1, 8))
    def open(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.free = list(range(num_blocks))
        self.key_of: dict[int, bytes] = {}
        self.carriers: dict[bytes, list[int]] = {key: [] for key in KEYS}
        self.tables: list[list[int]] = []
        self.classes = [BlockClass.EMPTY] * num_blocks

    @property
    def refs(self) -> Counter[int]:
        return Counter(block for table in self.tables for block in table)

    @rule(count=st.integers(0, 9))
    def take(self, count: int) -> None:
        taken = self.pool.take(count)
        if count > len(self.free):
            assert taken is None
            return
        assert taken == self.free[:count]
        self.free = self.free[count:]
        for block in taken:
            if block in self.key_of:
                self.carriers[self.key_of.pop(block)].remove(block)
        self.tables.append(taken)

    @rule(key=st.sampled_from(KEYS))
    def share(self, key: bytes) -> None:
        block = self.pool.index.find(key)
        if block is not None:
            self.pool.share([block])
            self.tables.append([block])
            if block in self.free:
                self.free.remove(block)

    @precondition(lambda self: any(block not in self.key_of for table in self.tables for block in table))
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def register(self, data: st.DataObject, key: bytes) -> None:
        plain = sorted({block for table in self.tables for block in table if block not in self.key_of})
        block = data.draw(st.sampled_from(plain))
        self.pool.register([-1, block], [b"released, passed over", key])
        self.key_of[block] = key
        self.carriers[key].append(block)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        order = data.draw(st.permutations(table))
        left = self.refs
        freed = [block for block in order if not left[block]]
        assert self.pool.release(order) == len(freed)
        plain = [block for block in freed if block not in self.key_of]
        self.free = plain + self.free + [block for block in freed if block in self.key_of]

    @rule()
    def replay_changes(self) -> None:
        """The changes since the last look, applied to the classes known then, give every class now."""
        changes = self.pool.drain_changes().tolist()
        assert len({change >> 2 for change in changes}) == len(changes), "a block is told twice"
        for change in changes:
            self.classes[change >> 2] = BlockClass(change & 3)
        assert self.classes == [self.class_of(block) for block in range(self.pool.num_blocks)]

    def class_of(self, block: int) -> BlockClass:
        refs = self.refs[block]
        if refs:
            return BlockClass.SHARED if refs > 1 else BlockClass.HELD
        return BlockClass.CACHED_FREE if block in self.key_of else BlockClass.EMPTY

    @invariant()
    def books_balance(self) -> None:
        pool = self.pool
        pool.audit(self.tables)
        classes = Counter(self.class_of(block) for block in range(pool.num_blocks))
        assert [pool.class_of(block) for block in range(pool.num_blocks)] == list(
            map(self.class_of, range(pool.num_blocks))
        )
        assert pool.num_free == len(self.free) == classes[BlockClass.EMPTY] + classes[BlockClass.CACHED_FREE]
        assert pool.num_cached_free == classes[BlockClass.CACHED_FREE]
        assert pool.num_shared == classes[BlockClass.SHARED]
        assert pool.usage == pytest.approx(1 - len(self.free) / pool.num_blocks)
        for key, carriers in self.carriers.items():
            assert pool.index.find(key) == (carriers[0] if carriers else None), "the earliest carrier answers"

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for table in self.tables:
            self.pool.release(table)
        assert self.pool.num_free == self.pool.num_blocks


TestPoolBooks = PoolBooks.TestCase
