"""Commands from a console or a client to an engine: one message each."""

from __future__ import annotations

from typing import Any

import msgspec
from schedtop.engine.contract.telemetry import Message


class Command(Message, frozen=True):
    """Base of all commands. `id` is chosen by the sender and returned in the `Reply`."""


MAX_TRIAL_S = 86_400.0


CONFIRM_WITHIN_S = 30.0
"""Wall time of grace for confirming an expired trial: it reverts by itself only this much later."""


class SetKnobs(Command, tag=101, frozen=True):
    """Change limits. Refused as a whole if any value is refused or `expected_version` is not the present one.

    `expected_version` None skips the check. `dry_run` only answers with the warnings. With `trial_s`, seconds of wall
    time, the change is a `Trial`; `slo_s` are the bounds that end it early. A plain change of a knob on trial takes
    that knob out of the trial.
    """

    id: int
    values: dict[str, Any]
    expected_version: int | None = None
    by: str = ""
    dry_run: bool = False
    trial_s: float | None = None
    slo_s: dict[str, float] = msgspec.field(default_factory=dict)


class Pause(Command, tag=102, frozen=True):
    """Stop stepping. On a real clock arrivals keep queueing; a simulated clock stops."""

    id: int
    by: str = ""


class Resume(Command, tag=103, frozen=True):
    """Resume stepping."""

    id: int
    by: str = ""


class StepOnce(Command, tag=104, frozen=True):
    """Run one step while paused."""

    id: int


class Abort(Command, tag=105, frozen=True):
    """End one request by number."""

    id: int
    number: int


class Drain(Command, tag=106, frozen=True):
    """Accept no new requests; the engine ends when nothing is in flight, or at once if `now`."""

    id: int
    now: bool = False


class Join(Command, tag=107, frozen=True):
    """First message of a console: its protocol version. The engine answers with `Header` and `Snapshot`.

    `token` is what a TCP engine asks for. The engine takes no command of a console that joined `read_only`.
    `console` is false for a client that submits requests: nobody looks at it, and it is sent no `TextDelta`.
    With `from_start` the engine begins with its first snapshot and all records since, if it kept them; with `recent`
    with a snapshot of some minutes ago and the records since, as far as it keeps them.
    """

    id: int
    protocol: int
    token: str = ""
    read_only: bool = False
    console: bool = True
    from_start: bool = False
    recent: bool = False


class EndTrial(Command, tag=108, frozen=True):
    """End trial `number`: `keep` confirms its values, otherwise they revert now."""

    id: int
    number: int
    keep: bool
    by: str = ""


class SamplingParams(Message, frozen=True):
    """How tokens are sampled. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off.

    `logprobs` requests each output's log probability before any of this, and those of that many likeliest tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None

    @property
    def penalised(self) -> bool:
        """Whether logits depend on more than the model."""
        return bool(
            self.repetition_penalty != 1.0 or self.frequency_penalty or self.presence_penalty or self.logit_bias
        )


class Submit(Command, tag=109, frozen=True):
    """A request of the client's own: `Reply` gives its number, `Output`s its tokens, the last one its end.

    `prompt` is token ids, int32. `arrived_s` is when the client got it, on this machine's monotonic clock. The model's
    end tokens end it unless `ignore_eos`; `stop_token_ids` do in any case. Prefixes are shared with requests of the
    same `cache_salt` and `adapter` (its name, empty for none) only; those of one `parent` answer one question. A client
    that hangs up ends its requests.
    """

    id: int
    request_id: str
    prompt: bytes
    max_tokens: int
    sampling: SamplingParams = SamplingParams()
    stop_token_ids: tuple[int, ...] = ()
    priority: int = 0
    arrived_s: float | None = None
    preview: str = ""
    client: str = ""
    cache_salt: str = ""
    adapter: str = ""
    parent: str = ""


Incoming = SetKnobs | Pause | Resume | StepOnce | Abort | Drain | Join | EndTrial | Submit
