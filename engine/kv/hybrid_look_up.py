"""The look-up over several KV groups: the longest prefix cached in all of them, found iteratively.

Each kind of group shortens the candidate to its own longest hit, until nothing shrinks.
"""

from __future__ import annotations

from collections.abc import Callable

from schedtop.engine.kv.groups import Group, Rows

FindIn = Callable[[int, int], int | None]
"""The block of a group (by its place among the groups) that carries the key of a block place."""


class LookUpKind:
    """Equal groups, looked up together: a block must be cached in all of them."""

    def __init__(self, group: Group, places: list[int]) -> None:
        self.group = group
        self.places = places
        self.rows: Rows | None = None

    def look_up(self, find_in: FindIn, num_tokens: int, align: int, drop: bool) -> int:
        """The longest hit within `num_tokens`, in tokens."""

        def find(block: int) -> list[int] | None:
            found = [find_in(place, block) for place in self.places]
            return None if None in found else [one for one in found if one is not None]

        self.rows = self.group.longest_hit(find, num_tokens // self.group.size, align, drop)
        return len(self.rows) * self.group.size


def look_up_kinds(kinds: list[LookUpKind], find_in: FindIn, most: int, align: int, drop: bool) -> tuple[int, int]:
    """Tokens of the longest hit of all kinds, full attention first, and the longest that one kind had on the way.

    With `drop`, a kind not yet verified looks one of its blocks further and then loses one; when another kind
    shrinks the candidate without dropping, verifications lapse.
    """
    single_pass = len(kinds) == 2 and kinds[0].group.looks_once and not kinds[1].group.looks_once
    candidate, longest = most, 0
    verified: set[int] = set()
    for kind in kinds:
        kind.rows = None
    while True:
        length = candidate
        for place, kind in enumerate(kinds):
            size = kind.group.size
            if kind.group.looks_once and kind.rows is not None:
                length = length // size * size
                continue
            drops = drop and place not in verified
            found = kind.look_up(find_in, min(length + size, most) if drops else length, align, drops)
            if drops:
                verified.add(place)
            elif found < length:
                verified.clear()
            length = found
            longest = max(longest, length)
        shrunk, candidate = length < candidate, length
        if not shrunk or single_pass:
            return candidate, longest
