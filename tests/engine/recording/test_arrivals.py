"""A recorded prompt's blocks are told apart by all that stands before them, from a few bytes each."""

from __future__ import annotations

from schedtop.engine.contract.prefixes.paths import PATH_KEY_BYTES, path_keys
from schedtop.engine.contract.telemetry import PREFIX_KEY_BYTES, Arrival
from schedtop.engine.recording.arrivals import prefix_ids


def arrival(*parts: int) -> Arrival:
    joined = b"".join(part.to_bytes(PREFIX_KEY_BYTES, "little") for part in parts)
    return Arrival(0, "a", 0.0, 16 * len(parts), 1, prefix_keys=joined)


def test_a_common_beginning_is_shared_up_to_where_it_ends() -> None:
    one, other = path_keys(arrival(1, 2, 3, 4).prefix_keys), path_keys(arrival(1, 2, 5, 4).prefix_keys)
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:]), "equal parts behind different ones are other blocks"
    assert {len(key) for key in one} == {PATH_KEY_BYTES}


def test_ids_follow_the_paths() -> None:
    ids, others = prefix_ids(arrival(1, 1, 1)), prefix_ids(arrival(1, 1))
    assert ids is not None and others is not None
    assert len(set(ids.tolist())) == 3
    assert ids[:2].tolist() == others.tolist()
    assert prefix_ids(arrival()) is None
