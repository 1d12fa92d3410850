"""Clients that submit requests over the channel, and the tokens each of them is owed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from schedtop.engine.channel.peer import Peer
from schedtop.engine.channel.server import ChannelServer
from schedtop.engine.contract.commands import Submit
from schedtop.engine.contract.reading import row_columns
from schedtop.engine.contract.telemetry import Ending, Header, Output, Refusal, Reply, StepRecord, TokenLogprob
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.handoff.request import Request, TokenIds
from schedtop.engine.handoff.sampling_settings import check_sampling


class Served(Protocol):
    """What clients need of an engine; `sampled` are the last step's outputs, int32 (rows, width)."""

    @property
    def header(self) -> Header: ...
    @property
    def sampled(self) -> IntArray: ...
    def submit(self, request: Request) -> Refusal | None: ...
    def abort(self, number: int) -> bool: ...


class Clients:
    """The requests that clients submitted, until they end. `arrival_s` is now, on the engine's clock."""

    def __init__(self, engine: Served, server: ChannelServer, arrival_s: Callable[[], float]) -> None:
        self.draining = False
        self._engine = engine
        self._server = server
        self._arrival_s = arrival_s
        self._owners: dict[int, Peer] = {}
        self._requests: dict[int, Request] = {}
        settings = engine.header.settings
        self._vocab_size: int = settings.get("vocab_size") or 1 << 31
        # Those of a workload are numbered from 1 on.
        self._adapters = {name: -1 - place for place, name in enumerate(settings.get("lora", ()))}
        self._end_token_ids = frozenset(settings.get("eos_token_ids", ()))
        server.on_gone = self._leave

    def submit(self, peer: Peer, command: Submit, knobs_version: int) -> Reply:
        """Queue a client's request. Raises `ValueError` for an invalid one."""
        if self.draining:
            return Reply(command.id, False, "the engine is ending and takes no new requests", knobs_version)
        request = self._request(command)
        refusal = self._engine.submit(request)
        if refusal is not None:
            return Reply(command.id, False, refusal.reason, knobs_version, number=request.number)
        self._owners[request.number], self._requests[request.number] = peer, request
        return Reply(command.id, True, "queued", knobs_version, number=request.number)

    def _request(self, command: Submit) -> Request:
        params = check_sampling(command.sampling)
        for token_id, _ in params.logit_bias:
            if not 0 <= token_id < self._vocab_size:
                raise ValueError(f"logit_bias: token id {token_id} is not among the model's {self._vocab_size}")
        if command.adapter and command.adapter not in self._adapters:
            raise ValueError(f"there is no adapter {command.adapter[:200]!r} here")
        stops = frozenset(command.stop_token_ids)
        arrived_s = command.arrived_s
        return Request(
            command.request_id,
            self._token_ids(command.prompt),
            command.max_tokens,
            arrival_s=self._arrival_s(),
            priority=command.priority,
            stop_token_ids=stops if params.ignore_eos else stops | self._end_token_ids,
            sampling=params,
            client_wait_s=None if arrived_s is None else max(0.0, time.monotonic() - arrived_s),
            preview=command.preview,
            client=command.client,
            cache_salt=command.cache_salt or None,
            adapter=self._adapters.get(command.adapter, 0),
            adapter_name=command.adapter,
            parent=command.parent,
        )

    def _token_ids(self, prompt: bytes) -> TokenIds:
        if len(prompt) % 4:
            raise ValueError(f"the prompt has {len(prompt)} bytes: token ids take four each")
        ids = np.frombuffer(prompt, dtype=np.int32)
        if ids.size and not (ids.min() >= 0 and ids.max() < self._vocab_size):
            raise ValueError(f"the prompt has a token id that is not among the model's {self._vocab_size}")
        return ids

    def hand_out(self, record: StepRecord) -> None:
        """Send every client what the engine's last step (`record`) produced for it."""
        if not self._owners:
            return
        ends: dict[Peer, list[Ending]] = {}
        for finish in record.finishes:
            if finish.number in self._owners:
                cached_tokens = self._requests[finish.number].cached_tokens
                ending = Ending(finish.number, finish.reason, cached_tokens)
                ends.setdefault(self._owners[finish.number], []).append(ending)
        numbers, counts, sampled = self._outputs(record)
        owners = list(map(self._owners.get, numbers.tolist()))
        for peer in {*ends, *owners}:
            if peer is None:  # a request of the workload
                continue
            alone = owners.count(peer) == len(owners)
            own = slice(None) if alone else np.array([owner is peer for owner in owners], dtype=bool)
            some = counts[own]
            given = sampled[own][np.arange(sampled.shape[1]) < some[:, None]]
            self._server.output(
                peer,
                Output(
                    numbers[own].tobytes(),
                    some.tobytes(),
                    given.tobytes(),
                    tuple(ends.get(peer, ())),
                    self._logprobs(numbers[own], some),
                ),
            )
        for finish in record.finishes:
            self._forget(finish.number)

    def _logprobs(self, numbers: IntArray, counts: IntArray) -> tuple[tuple[int, tuple[TokenLogprob, ...]], ...]:
        """Log probabilities of the tokens that count, for requests that asked."""
        asked: dict[int, list[TokenLogprob]] = getattr(self._engine, "logprobs", {})
        if not asked:
            return ()
        pairs = zip(numbers.tolist(), counts.tolist(), strict=True)
        return tuple((number, tuple(asked[number][:count])) for number, count in pairs if number in asked)

    def _outputs(self, record: StepRecord) -> tuple[IntArray, IntArray, IntArray]:
        """Requests that got tokens in a step, how many, and the worker's outputs of their rows."""
        columns = row_columns(record)
        planned = columns["tokens"] > 0  # the worker has outputs for these rows, in this order
        emitted = columns["emitted"][planned]
        got = emitted > 0
        if not got.any():
            return emitted[got], emitted[got], np.zeros((0, 1), dtype=np.int32)
        return columns["request"][planned][got], emitted[got], self._engine.sampled[got]

    def _leave(self, peer: Peer) -> None:
        """Abort the requests of a client that disconnected."""
        for number in [number for number, owner in self._owners.items() if owner is peer]:
            self._forget(number)
            self._engine.abort(number)

    def _forget(self, number: int) -> None:
        self._owners.pop(number, None)
        self._requests.pop(number, None)
