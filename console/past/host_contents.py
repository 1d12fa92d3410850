"""What the host's memory behind the pool holds, followed from a snapshot on through the records."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

from schedtop.engine.contract.prefixes.paths import PATH_KEY_BYTES, path_keys
from schedtop.engine.contract.telemetry import Arrival, FinishReason, HostTier, StepRecord

CUT_OFF = {FinishReason.ABORT, FinishReason.ERROR, FinishReason.REFUSED}
"""Requests that end so leave nothing."""


class HostedRequest(Protocol):
    """A live request, as far as it matters here."""

    @property
    def arrival(self) -> Arrival: ...


class HostContents:
    """Prompts' blocks by path key, the longest unused first, and tokens of swapped requests.

    What a request wrote itself has no path key that a record tells; nobody asks for it before a new snapshot comes.
    """

    def __init__(self, tier: HostTier) -> None:
        keys = tier.keys
        self._keys = OrderedDict.fromkeys(
            keys[at : at + PATH_KEY_BYTES] for at in range(0, len(keys), PATH_KEY_BYTES)
        )
        self._swapped = dict(tier.swapped)
        self._free_s, self._num_loads = tier.free_s, tier.num_loads

    def copy(self) -> HostContents:
        """Independent of this one."""
        return HostContents(self.tier())

    def tier(self) -> HostTier:
        """As a snapshot tells it; whose loads are under way is not known."""
        return HostTier(b"".join(self._keys), dict(self._swapped), (), self._free_s, self._num_loads)

    def apply(self, record: StepRecord, live: Mapping[int, HostedRequest]) -> None:
        """Move on by one record; `live` has those that end in it, by number."""
        for preemption in record.preemptions:
            if preemption.swapped:
                self._swapped[preemption.number] = preemption.lost_tokens
        for admission in record.admissions:
            self._swapped.pop(admission.number, None)
        for finish in record.finishes:
            self._swapped.pop(finish.number, None)
            ended = live.get(finish.number)
            if ended is not None and finish.reason not in CUT_OFF:
                self._keep(ended.arrival)
        if record.host_blocks:
            while len(self._keys) > record.host_blocks[1]:
                self._keys.popitem(last=False)

    def _keep(self, arrival: Arrival) -> None:
        for path in reversed(path_keys(arrival.prefix_keys)):
            if path not in self._keys:
                self._keys[path] = None
