"""Counts records. A record costs almost nothing: its running totals are kept as they are, and inter-token times
are sorted into buckets many steps at a time."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from schedtop.engine.contract.kv_groups import has_windows
from schedtop.engine.contract.latencies.families import Families, RequestFamily
from schedtop.engine.contract.prefixes.lost_hits import PrefixMemory
from schedtop.engine.contract.reading import draft_positions
from schedtop.engine.contract.telemetry import (
    MOST_DRAFTS,
    ROW_FIELDS,
    Arrival,
    Finish,
    FinishReason,
    Header,
    Limiter,
    StepRecord,
)

TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0),
    *(480.0, 960.0, 1920.0, 7680.0),
)
OWN_ITL_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, *ITL_S)
STEP_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
PARAMS_N = (1.0, 2.0, 5.0, 10.0, 20.0)

_ITL_STEPS = 64


def one_two_five(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20 ... up to `most`: the buckets of token counts."""
    edges = []
    scale = 1
    while scale <= most:
        edges += [float(step * scale) for step in (1, 2, 5) if step * scale <= most]
        scale *= 10
    return tuple(edges)


class Buckets:
    """One histogram: how many values are at most each edge and above the one before it, and their sum."""

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def add(self, value: float | None, times: int = 1) -> None:
        """Count a value; None is not a value."""
        if value is not None:
            self.counts[bisect.bisect_left(self.edges, value)] += times
            self.sum += value * times

    def add_many(self, values: npt.NDArray[np.floating[Any]]) -> None:
        """Count every value that is not NaN."""
        known = values[~np.isnan(values)]
        found = np.bincount(np.searchsorted(self.edges, known), minlength=len(self.counts)).tolist()
        self.counts = [have + new for have, new in zip(self.counts, found, strict=True)]
        self.sum += float(known.sum(dtype=np.float64))


class _Live:
    """What must be remembered of a request until it ends."""

    __slots__ = (
        *(
            "adapter",
            "admitted",
            "cached_tokens",
            "client_wait_s",
            "is_child",
            "max_tokens",
            "prompt_tokens",
            "runs",
        ),
    )

    def __init__(self, arrival: Arrival) -> None:
        self.prompt_tokens = arrival.prompt_tokens
        self.max_tokens = arrival.max_tokens
        self.client_wait_s = arrival.client_wait_s or 0.0
        self.adapter = arrival.adapter_label
        self.is_child = bool(arrival.parent)
        self.admitted = self.runs = False
        self.cached_tokens = 0


class Counts:
    """A sink that counts. Written by the engine's thread; readers hold `lock` and call `settle` first."""

    def __init__(self, header: Header) -> None:
        tokens = one_two_five(header.max_model_len)
        self.lock = threading.Lock()
        self.last: StepRecord | None = None
        self._live: dict[int, _Live] = {}
        self._itl: list[bytes] = []
        self._output_tokens = 0
        self.prompt_tokens = 0
        self.computed_prompt_tokens = 0
        self.limiters = dict.fromkeys(Limiter, 0)
        self.reasons = dict.fromkeys(FinishReason, 0)
        self.loops = self.knob_changes = 0
        self.starved = self.encoder_tokens = 0
        self._prefixes = PrefixMemory(header.block_size, has_windows(header.config))
        self._families = Families(self._count_family)
        self.drafts = np.zeros((2, MOST_DRAFTS), dtype=np.int64)
        self.histograms = {
            "vllm:request_prompt_tokens": Buckets(tokens),
            "vllm:request_generation_tokens": Buckets(tokens),
            "vllm:request_max_num_generation_tokens": Buckets(tokens),
            "vllm:request_params_max_tokens": Buckets(tokens),
            "vllm:request_params_n": Buckets(PARAMS_N),
            "vllm:request_prefill_kv_computed_tokens": Buckets(tokens),
            "vllm:request_num_preemptions": Buckets(PREEMPTIONS),
            "vllm:iteration_tokens_total": Buckets(STEP_TOKENS),
            "vllm:time_to_first_token_seconds": Buckets(TTFT_S),
            "vllm:inter_token_latency_seconds": Buckets(ITL_S),
            "vllm:request_time_per_output_token_seconds": Buckets(ITL_S),
            "vllm:e2e_request_latency_seconds": Buckets(REQUEST_S),
            "vllm:request_queue_time_seconds": Buckets(REQUEST_S),
            "vllm:request_inference_time_seconds": Buckets(REQUEST_S),
            "vllm:request_prefill_time_seconds": Buckets(REQUEST_S),
            "vllm:request_decode_time_seconds": Buckets(REQUEST_S),
            "schedtop_inter_token_latency_seconds": Buckets(OWN_ITL_S),
            "schedtop_client_wait_seconds": Buckets(STEP_S),
            "schedtop_request_requeued_seconds": Buckets(REQUEST_S),
            "schedtop_step_seconds": Buckets(STEP_S),
        }

    def write(self, record: StepRecord, encoded: bytes = b"") -> None:
        """Count one record."""
        with self.lock:
            self.last = record
            for arrival in record.arrivals:
                self._live[arrival.number] = _Live(arrival)
                self.histograms["schedtop_client_wait_seconds"].add(arrival.client_wait_s)
            for refusal in record.refusals:
                self._live.pop(refusal.number, None)
            self._count_moves(record)
            if record.arrivals or record.admissions or record.ttft_s or record.finishes or record.refusals:
                self._prefixes.add(record)
                self._families.add(record)
            for admission in record.admissions:
                if not admission.resumed and admission.number in self._live:
                    self._live[admission.number].cached_tokens = admission.cached_tokens
                    self._live[admission.number].admitted = True
            if record.executed:
                self._count_step(record)
            for finish in record.finishes:
                self._count_finish(finish)
            for preemption in record.preemptions:
                self.loops += preemption.loop
            self.knob_changes += len(record.knobs)

    def _count_moves(self, record: StepRecord) -> None:
        """Running requests with an adapter, after a step."""
        for moved, runs in ((record.preemptions, False), (record.admissions, True)):
            for entry in moved:
                if (live := self._live.get(entry.number)) is not None:
                    live.runs = runs

    def adapters(self) -> tuple[list[str], list[str]]:
        """Adapters of running and of waiting requests, sorted."""
        live = [one for one in self._live.values() if one.adapter]
        running, waiting = ({one.adapter for one in live if one.runs == runs} for runs in (True, False))
        return sorted(running), sorted(waiting)

    def _count_step(self, record: StepRecord) -> None:
        histograms = self.histograms
        self.limiters[Limiter(record.limiter)] += 1
        computed = 0
        for number, ttft_s in record.ttft_s:
            live = self._live.get(number)
            # vLLM's clock starts where the client's request came in.
            histograms["vllm:time_to_first_token_seconds"].add(ttft_s + (live.client_wait_s if live else 0.0))
            if live is not None:
                computed += live.prompt_tokens - live.cached_tokens
                self.prompt_tokens += live.prompt_tokens
        self.computed_prompt_tokens += computed
        # A prompt counts whole in the step that ends it, as on vLLM's page.
        outputs = record.totals.output_tokens - self._output_tokens
        self._output_tokens = record.totals.output_tokens
        histograms["vllm:iteration_tokens_total"].add(computed + outputs)
        histograms["schedtop_step_seconds"].add(record.end_s - record.start_s)
        if record.draft_tokens:
            self.drafts += draft_positions(record)
        self.starved += starving(record)
        self.encoder_tokens += record.encoder_tokens
        self._itl.append(record.itl_s)
        if len(self._itl) >= _ITL_STEPS:
            self._sort_itl()

    def _sort_itl(self) -> None:
        joined = np.frombuffer(b"".join(self._itl), dtype=np.float32)
        self._itl.clear()
        for name in ("vllm:inter_token_latency_seconds", "schedtop_inter_token_latency_seconds"):
            self.histograms[name].add_many(joined)

    def _count_finish(self, finish: Finish) -> None:
        self.reasons[FinishReason(finish.reason)] += 1
        live = self._live.pop(finish.number, None)
        if live is None or finish.reason == FinishReason.REFUSED:
            return
        add = {name: buckets.add for name, buckets in self.histograms.items()}
        add["vllm:request_prompt_tokens"](live.prompt_tokens)
        add["vllm:request_generation_tokens"](finish.output_tokens)
        add["vllm:request_params_max_tokens"](live.max_tokens)
        add["vllm:request_num_preemptions"](finish.preemptions)
        add["vllm:request_queue_time_seconds"](finish.queue_s)
        add["vllm:request_time_per_output_token_seconds"](finish.tpot_s)
        add["vllm:e2e_request_latency_seconds"](_less(finish.e2e_s, -live.client_wait_s))
        add["vllm:request_inference_time_seconds"](_less(finish.e2e_s, finish.queue_s))
        add["vllm:request_prefill_time_seconds"](_less(finish.ttft_s, finish.queue_s))
        add["vllm:request_decode_time_seconds"](_less(finish.e2e_s, finish.ttft_s))
        add["schedtop_request_requeued_seconds"](finish.requeued_s if finish.preemptions else None)
        if not live.is_child:
            self._count_asked(1, finish.output_tokens)
        if finish.ttft_s is not None:
            add["vllm:request_prefill_kv_computed_tokens"](live.prompt_tokens - live.cached_tokens)

    def _count_family(self, family: RequestFamily) -> None:
        self._count_asked(family.children, family.most_outputs)

    def _count_asked(self, answers: int, most_outputs: int) -> None:
        """Requests as the client sent them, as on vLLM's page."""
        self.histograms["vllm:request_params_n"].add(answers)
        self.histograms["vllm:request_max_num_generation_tokens"].add(most_outputs)

    @property
    def lost_hit_tokens(self) -> int:
        """Prompt tokens that the prefix cache once had and had lost when they were looked up."""
        return self._prefixes.found.lost_tokens

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of requests that wait for their first admission."""
        return sum(live.prompt_tokens for live in self._live.values() if not live.admitted)

    def settle(self) -> None:
        """Apply deferred counts."""
        if self._itl:
            self._sort_itl()


def starving(record: StepRecord) -> int:
    """Running requests that got no token in a step."""
    size = len(record.rows) // len(ROW_FIELDS)
    tokens = np.frombuffer(record.rows[size : 2 * size], dtype=np.int32)
    return len(tokens) - int(np.count_nonzero(tokens))


def _less(later_s: float | None, earlier_s: float | None) -> float | None:
    return None if later_s is None or earlier_s is None else later_s - earlier_s
