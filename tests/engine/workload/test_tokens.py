"""Made-up tokens: equal where they should be, different where they should be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from schedtop.engine.handoff.request import TokenIds
from schedtop.engine.workload.build import RequestBuilder
from schedtop.engine.workload.paced import Ask
from schedtop.engine.workload.tokens import key_tokens, mixed, mixed_number, own_tokens, text_tokens

numbers = st.integers(0, 2**64 - 1)


@given(st.lists(numbers, min_size=1, max_size=20), st.integers(-5, 2**32))
def test_one_and_many_keys_agree(values: list[int], seed: int) -> None:
    keys = mixed(np.array(values, dtype=np.uint64), seed)
    assert keys.tolist() == [mixed_number(value, seed) for value in values]
    assert len(set(keys.tolist())) == len(set(values))
    joined = np.concatenate([own_tokens(int(key), 40, 32000) for key in keys])
    assert np.array_equal(key_tokens(keys, 40, 32000), joined)


@given(numbers, st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 2**31 - 1))
def test_a_shorter_piece_is_the_beginning_of_a_longer(key: int, a: int, b: int, vocab_size: int) -> None:
    short, long = sorted((a, b))
    tokens = own_tokens(key, long, vocab_size)
    assert tokens.dtype == np.int32
    assert np.array_equal(tokens[:short], own_tokens(key, short, vocab_size))
    assert 0 <= tokens.min() <= tokens.max() < vocab_size


def test_tokens_spread_over_the_vocabulary() -> None:
    tokens = key_tokens(mixed(np.arange(2000), 1), 500, 100)
    counts = np.bincount(tokens, minlength=100)
    assert counts.min() > 9_500
    assert counts.max() < 10_500


def prompt(ordinal: int, vocab_size: int = 32000, shared: list[int] | None = None, tokens: int = 30) -> TokenIds:
    keys = None if shared is None else np.array(shared, dtype=np.uint64)
    ask = Ask(0.0, ordinal, "r", tokens, 1, shared=keys, shared_width=16 if shared else 0)
    return RequestBuilder(3, vocab_size, 10_000)(ask, 0.0).prompt_token_ids


def test_requests_differ_from_their_first_token_on() -> None:
    firsts = {int(prompt(ordinal)[0]) for ordinal in range(5000)}
    assert len(firsts) == 5000
    after_prefix = {int(prompt(ordinal, shared=[9])[16]) for ordinal in range(500)}
    assert len(after_prefix) == 500


def test_no_two_blocks_of_many_requests_are_equal() -> None:
    blocks = {
        prompt(ordinal, tokens=64)[at : at + 16].tobytes() for ordinal in range(2000) for at in (0, 16, 32, 48)
    }
    assert len(blocks) == 8000


def test_a_seed_changes_shared_and_own_tokens() -> None:
    ask = Ask(0.0, 1, "r", 40, 1, shared=np.array([5], dtype=np.uint64), shared_width=16)
    a, b = (RequestBuilder(seed, 32000, 10_000)(ask, 0.0).prompt_token_ids for seed in (1, 2))
    assert (a[:16] != b[:16]).any()
    assert (a[17:] != b[17:]).any()


@given(st.binary(min_size=1, max_size=200), st.binary(max_size=60), st.binary(max_size=60))
def test_texts_share_tokens_as_far_as_they_are_equal(head: bytes, a: bytes, b: bytes) -> None:
    first, second = text_tokens(head + a, 50_000), text_tokens(head + b, 50_000)
    whole = len(head) // 4
    assert np.array_equal(first[:whole], second[:whole])
    assert len(first) == -(-len(head + a) // 4)
    assert 0 <= first.min() <= first.max() < 50_000
