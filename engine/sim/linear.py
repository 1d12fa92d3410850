"""A calibrated device: step time linear in the step's features above a floor, read from a TOML file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec
from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.files.input_files import odd_file
from schedtop.engine.sim.features import StepFeatures

Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class LinearCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds per unit of each of `StepFeatures`, and a fixed cost; none negative: more work never costs less.

    A step of fewer than `floor_tokens` tokens takes as long as one of so many: what it waits for is the weights,
    not the arithmetic (Williams, Waterman and Patterson, "Roofline", 2009). `wake_s` is more for the first step of an
    engine that was idle: sleeping threads, cold caches.
    """

    fixed_s: Seconds = 0.0
    per_token_s: Seconds = 0.0
    per_attention_pair_s: Seconds = 0.0
    per_kv_token_s: Seconds = 0.0
    per_request_s: Seconds = 0.0
    floor_tokens: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    wake_s: Seconds = 0.0

    def step_s(self, features: StepFeatures) -> float:
        """Seconds of a step."""
        return (
            self.fixed_s
            + self.per_token_s * max(features.tokens, self.floor_tokens)
            + self.per_attention_pair_s * features.attention_pairs
            + self.per_kv_token_s * features.kv_tokens
            + self.per_request_s * features.requests
        )

    @classmethod
    def from_toml(cls, path: Path) -> LinearCost:
        """The `[cost]` table of a device file. Raises `ConfigError` as `read_calibration` does."""
        return read_calibration(path).cost


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device file: whose time it gives, the pool it had, and its costs.

    The pool is `num_blocks` blocks of `block_size` tokens; `kv_bytes_per_token` None is unknown. `async_scheduling`:
    steps were planned while others ran.
    """

    model: str
    device: str
    vocab_size: Annotated[int, msgspec.Meta(ge=2)]
    max_model_len: Annotated[int, msgspec.Meta(ge=2)]
    kv_bytes_per_token: Count | None = None
    num_blocks: Count
    block_size: Count
    async_scheduling: bool = False
    cost: LinearCost


def read_calibration(path: Path) -> Calibration:
    """The device file at `path`. Raises `ConfigError` naming the file and what is wrong with it."""
    if odd := odd_file(path):
        raise ConfigError(odd)
    try:
        calibration = msgspec.toml.decode(path.read_text(encoding="utf-8"), type=Calibration)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a device file that schedtop calibrate wrote: it is not text") from None
    except RecursionError:
        raise ConfigError(f"{path}: not a device file that schedtop calibrate wrote: nested too deeply") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a device file that schedtop calibrate wrote: {error}") from None
    cost = calibration.cost
    # A step that takes no time would stop the simulated clock.
    if not math.fsum((cost.fixed_s, cost.per_token_s, cost.per_request_s)) > 0:
        raise ConfigError(f"{path}: one of fixed_s, per_token_s and per_request_s must be above 0")
    return calibration
