"""Keys chained over prefixes, and the index from key to block, against plain searches."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.handoff.request import Request
from schedtop.engine.kv.prefix_cache import PrefixIndex, extend_keys

TOKENS = st.lists(st.integers(0, 2), max_size=24)
NAMES = [bytes([letter]) for letter in b"abcdef"]


def request_of(prompt: list[int], outputs: list[int]) -> Request:
    request = Request("r", np.array(prompt, dtype=np.int32), 1)
    request.output_token_ids = array("i", outputs)
    return request


def keys_of(prompt: list[int], outputs: list[int], size: int) -> list[bytes]:
    request = request_of(prompt, outputs)
    extend_keys(request, (len(prompt) + len(outputs)) // size, size)
    return request.block_keys


@given(one=TOKENS, other=TOKENS, size=st.integers(1, 5))
def test_two_keys_are_equal_exactly_where_everything_up_to_them_is(
    one: list[int], other: list[int], size: int
) -> None:
    pairs = zip(keys_of(one, [], size), keys_of(other, [], size), strict=False)
    for index, (left, right) in enumerate(pairs):
        end = (index + 1) * size
        assert (left == right) == (one[:end] == other[:end])


@given(tokens=TOKENS, size=st.integers(1, 5), data=st.data())
def test_keys_do_not_depend_on_where_outputs_begin_or_on_how_often_they_are_extended(
    tokens: list[int], size: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(tokens)))
    want = keys_of(tokens, [], size)
    request = request_of(tokens[:cut], tokens[cut:])
    for count in data.draw(st.lists(st.integers(0, len(tokens) // size), max_size=3).map(sorted)):
        extend_keys(request, count, size)
        assert request.block_keys == want[:count]
    extend_keys(request, len(tokens) // size, size)
    assert request.block_keys == want


def test_a_key_is_a_collision_resistant_hash() -> None:
    (key,) = keys_of([1, 2], [], 2)
    assert len(key) == 32
    assert keys_of([2, 1], [], 2) != [key]
    assert keys_of([1, 2], [], 1) != [key, key]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES[:3]), st.integers(0, 5))))
def test_the_earliest_registered_block_that_still_carries_a_key_answers(
    events: list[tuple[bool, bytes, int]],
) -> None:
    index, carriers = PrefixIndex(100), {name: list[int]() for name in NAMES}
    for add, name, block in events:
        taken = any(block in blocks for blocks in carriers.values())
        if add and not taken:
            index.add([name], [block])
            carriers[name].append(block)
        elif not add and block in carriers[name]:
            index.remove(block)
            carriers[name].remove(block)
        for key, blocks in carriers.items():
            assert index.find(key) == (blocks[0] if blocks else None)
        assert len(index) == sum(bool(blocks) for blocks in carriers.values())


def index_of(cached: set[int]) -> PrefixIndex:
    index = PrefixIndex(100)
    index.add([NAMES[place] for place in cached], [10 + place for place in cached])
    return index


CACHED = st.sets(st.integers(0, len(NAMES) - 1))


@given(CACHED)
def test_the_longest_prefix_ends_before_the_first_gap(cached: set[int]) -> None:
    end = next((place for place in range(len(NAMES)) if place not in cached), len(NAMES))
    assert index_of(cached).longest_prefix(NAMES) == [10 + place for place in range(end)]


@given(CACHED, st.integers(1, 7), st.integers(0, len(NAMES)))
def test_a_window_takes_the_rightmost_run_that_is_long_enough_or_one_from_the_start(
    cached: set[int], length: int, num_keys: int
) -> None:
    want: list[int | None] = []
    for end in range(num_keys + 1):  # the last one that fits is the right-most
        run = range(max(0, end - length), end)
        if cached.issuperset(run) and (len(run) == length or end == len(run)):
            want = [None] * run.start + [10 + place for place in run]
    assert index_of(cached).rightmost_run(NAMES[:num_keys], length) == want


@pytest.mark.parametrize("cached", [set[int](), {0}, {0, 1, 2, 3, 4, 5}])
def test_nothing_is_found_for_no_keys(cached: set[int]) -> None:
    assert index_of(cached).longest_prefix([]) == []
    assert index_of(cached).rightmost_run([], 2) == []
