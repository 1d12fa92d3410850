"""Golden cases: recorded scheduler decisions, as they are written and read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from schedtop.engine.contract.config import ConfigError, SchedulerConfig, check_scheduler_config
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.contract.knobs import BY_NAME, KnobError, check_value
from schedtop.engine.contract.telemetry import Limiter
from schedtop.engine.golden.case_requests import CaseRequest
from schedtop.engine.handoff.plan import IntArray
from schedtop.engine.handoff.request import Image, Request


class CaseError(ValueError):
    """A case file that cannot be read; the text names the file and the reason."""


class CaseConfig(SchedulerConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown limits are refused: they would make it a different case."""


class CaseKnob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step: int
    set: dict[str, Any]


class CaseAbort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step: int
    id: str


class CaseStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The decisions of one step; see `compare_step` for the fields' meaning. A field left unset is not compared."""

    step: int
    scheduled: list[tuple[str, int, int]]
    admitted: dict[str, int]
    preempted: list[str]
    running: list[str]
    waiting: list[str]
    free_blocks: int
    finished: list[str]
    free_blocks_after: int
    skipped: list[str] | msgspec.UnsetType = msgspec.UNSET
    encoded: dict[str, list[int]] | msgspec.UnsetType = msgspec.UNSET
    images_dropped: list[str] | msgspec.UnsetType = msgspec.UNSET
    holding: list[str] | msgspec.UnsetType = msgspec.UNSET
    load_started: dict[str, tuple[int, int]] | msgspec.UnsetType = msgspec.UNSET
    load_done: list[str] | msgspec.UnsetType = msgspec.UNSET
    load_failed: list[str] | msgspec.UnsetType = msgspec.UNSET
    send_done: list[str] | msgspec.UnsetType = msgspec.UNSET
    errors: list[str] | msgspec.UnsetType = msgspec.UNSET
    held: list[str] | msgspec.UnsetType = msgspec.UNSET
    applied: int | msgspec.UnsetType | None = msgspec.UNSET


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    config: CaseConfig
    requests: list[CaseRequest]
    name: str = ""
    knobs: list[CaseKnob] = []
    aborts: list[CaseAbort] = []
    max_steps: int | None = None
    steps: list[CaseStep] | None = None


def read_case(path: Path) -> Case:
    """Read and check one case file; raises `CaseError`."""
    if odd := odd_file(path):
        raise CaseError(odd)
    try:
        case = msgspec.json.decode(path.read_bytes(), type=Case)
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CaseError(f"{path}: not a golden case: {error}") from None
    try:
        case = check_case(case)
    except (ConfigError, KnobError, CaseError) as error:
        raise CaseError(f"{path}: {error}") from None
    return msgspec.structs.replace(case, name=case.name or path.stem)


def check_case(case: Case) -> Case:
    """The case with typed knob values; raises for what the types of a case allow but no scheduler can run."""
    check_scheduler_config(case.config)
    seen = set()
    requests = [_with_one_name(request) for request in case.requests]
    for request in requests:
        if request.id in seen:
            raise CaseError(f"request {request.id!r} appears twice")
        seen.add(request.id)
        _check_request(request)
        _check_images(case.config, request)
    knobs = [_typed_knob(case, knob) for knob in case.knobs]
    return msgspec.structs.replace(case, knobs=knobs, requests=requests)


def _with_one_name(request: CaseRequest) -> CaseRequest:
    """The request with `stop_after` for `eos_at`."""
    if request.eos_at is None:
        return request
    if request.stop_after is not None:
        raise CaseError(f"request {request.id!r}: stop_after and eos_at are one setting: give one of them")
    return msgspec.structs.replace(request, stop_after=request.eos_at, eos_at=None)


def _check_images(config: CaseConfig, request: CaseRequest) -> None:
    """A drafter that reads ahead needs the next image while it still holds the previous one: neither might ever be
    released."""
    gap = 2 * config.prefill_lookahead
    for before, image in pairwise(request.images):
        if image.offset < before.offset + before.length + gap:
            raise CaseError(
                f"request {request.id!r}: images at {before.offset} and {image.offset} are side by side: with"
                f" prefill_lookahead={config.prefill_lookahead} they need {gap} tokens between them"
            )


def _check_request(request: CaseRequest) -> None:
    name = f"request {request.id!r}"
    if request.arrival_step < 0 or any(length < 0 for _, length in request.prompt_parts):
        raise CaseError(f"{name}: arrival_step and lengths must not be negative")
    length = len(request.prompt or ()) or sum(length for _, length in request.prompt_parts)
    if length > MAX_PROMPT_TOKENS:
        raise CaseError(f"{name}: {length} prompt tokens; a case may have {MAX_PROMPT_TOKENS}")
    if not all(-1 << 63 <= number < 1 << 63 for number in (request.max_tokens, request.priority)):
        raise CaseError(f"{name}: max_tokens and priority must fit 64 bits")
    end = 0
    for image in request.images:
        if image.offset < end or image.length < 1:
            raise CaseError(f"{name}: images must have tokens, be in order, and not overlap")
        end = image.offset + image.length
    if end > length:
        raise CaseError(f"{name}: an image ends behind the prompt")
    if request.ready_step < 0:
        raise CaseError(f"{name}: ready_step must not be negative")
    if request.stop_after is not None and request.stop_after < 1:
        raise CaseError(f"{name}: stop_after must be at least 1")
    if any(not 0 <= token < 1 << 31 for token in request.prompt or ()):
        raise CaseError(f"{name}: token ids must be from 0 to {(1 << 31) - 1}")
    if any(abs(seed) > MAX_SEED for seed, _ in request.prompt_parts):
        raise CaseError(f"{name}: seeds must be from -{MAX_SEED} to {MAX_SEED}")


def _typed_knob(case: Case, knob: CaseKnob) -> CaseKnob:
    for name in knob.set:
        if name in BY_NAME and not BY_NAME[name].live:
            raise CaseError(f"knob at step {knob.step}: {name} is set at start-up only")
    typed = {name: check_value(name, value, case.config.ceilings) for name, value in knob.set.items()}
    rows = typed.get("max_num_batched_tokens")
    if isinstance(rows, int) and rows <= case.config.draft_slots:
        raise CaseError(
            f"knob at step {knob.step}: {rows} rows leave none beside draft_slots={case.config.draft_slots}"
        )
    return msgspec.structs.replace(knob, set=typed)


MAX_PROMPT_TOKENS = 1 << 24
MAX_SEED = 1 << 40
STOP_TOKEN = 49000
"""The token of a request's `stop_after`-th output; the model emits it nowhere else."""


def make_request(asked: CaseRequest, arrival_s: float) -> Request:
    """A case's request on arrival."""
    stops = frozenset() if asked.stop_after is None else frozenset({STOP_TOKEN})
    request = Request(
        asked.id,
        prompt_tokens(asked),
        asked.max_tokens,
        arrival_s,
        asked.priority,
        stops,
        cache_salt=asked.cache_salt,
        adapter=asked.lora or 0,
        images=_images(asked),
        skip_reading_prefix_cache=asked.skip_reading_prefix_cache,
        parent=asked.parent,
    )
    if asked.ready_step > asked.arrival_step:
        request.deferred = Limiter.GRAMMAR
    return request


def _images(asked: CaseRequest) -> tuple[Image, ...]:
    names = [image.name or f"{asked.id}#{index}" for index, image in enumerate(asked.images)]
    return tuple(Image(image.offset, image.length, name) for image, name in zip(asked.images, names, strict=True))


def prompt_tokens(request: CaseRequest) -> IntArray:
    """The prompt of a case's request, int32."""
    if request.prompt is not None:
        return np.array(request.prompt, dtype=np.int32)
    parts = [
        (seed * 1000003 + np.arange(length, dtype=np.int64) * 7919) % 32000 for seed, length in request.prompt_parts
    ]
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, dtype=np.int32)
