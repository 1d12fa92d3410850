"""What follows `sim:` on the command line, and the device it names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from schedtop.engine.config import ConfigError
from schedtop.engine.sim import memory
from schedtop.engine.sim.devices import GPUS, Gpu
from schedtop.engine.sim.features import StepCost
from schedtop.engine.sim.linear import Calibration, read_calibration
from schedtop.engine.sim.models import FP8_SUFFIX, MODELS, ModelShape, find_model
from schedtop.engine.sim.roofline import Roofline

PREFIX = "sim:"


class SimDevice(Protocol):
    """A simulated device and the model on it. `kv_bytes_per_token` is over all GPUs (0: unknown)."""

    @property
    def spec(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def kv_bytes_per_token(self) -> int: ...

    def num_blocks(
        self,
        block_size: int = 16,
        gpu_memory_utilization: float = 0.9,
        max_num_batched_tokens: int = 2048,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        kv_cache_memory_bytes: int | None = None,
    ) -> int:
        """Usable KV blocks. Raises `ConfigError` if the model does not fit or cannot be divided so."""
        ...

    def step_cost(self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1) -> StepCost:
        """The device's step times. Raises `ConfigError` if the model cannot be divided so."""
        ...


@dataclass(frozen=True, slots=True)
class PresetDevice:
    """A model of `models.py` on GPUs of `devices.py`, timed by the roofline."""

    shape: ModelShape
    gpu: Gpu

    @property
    def spec(self) -> str:
        return f"{PREFIX}{self.shape.name}@{self.gpu.name}"

    @property
    def model(self) -> str:
        return self.shape.name

    @property
    def label(self) -> str:
        return self.gpu.label

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab

    @property
    def max_model_len(self) -> int:
        return self.shape.max_model_len

    @property
    def kv_bytes_per_token(self) -> int:
        return self.shape.kv_bytes_per_token

    def num_blocks(
        self,
        block_size: int = 16,
        gpu_memory_utilization: float = 0.9,
        max_num_batched_tokens: int = 2048,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        kv_cache_memory_bytes: int | None = None,
    ) -> int:
        memory.check_parallel(self.shape, self.gpu, tensor_parallel_size, pipeline_parallel_size)
        return memory.pool_blocks(
            self.shape,
            self.gpu,
            block_size=block_size,
            gpu_memory_utilization=gpu_memory_utilization,
            max_num_batched_tokens=max_num_batched_tokens,
            ranks=tensor_parallel_size,
            stages=pipeline_parallel_size,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
        )

    def step_cost(self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1) -> Roofline:
        memory.check_parallel(self.shape, self.gpu, tensor_parallel_size, pipeline_parallel_size)
        return Roofline(self.shape, self.gpu, tensor_parallel_size, pipeline_parallel_size)


@dataclass(frozen=True, slots=True)
class CalibratedDevice:
    """A device whose step times were fitted to a recording.

    It comes as it was measured: it cannot be divided, and its pool is the recorded one (in tokens) whatever the
    memory share.
    """

    path: Path
    calibration: Calibration

    @property
    def spec(self) -> str:
        return f"{PREFIX}@{self.path}"

    @property
    def model(self) -> str:
        return self.calibration.model

    @property
    def label(self) -> str:
        return self.calibration.device

    @property
    def vocab_size(self) -> int:
        return self.calibration.vocab_size

    @property
    def max_model_len(self) -> int:
        return self.calibration.max_model_len

    @property
    def kv_bytes_per_token(self) -> int:
        return self.calibration.kv_bytes_per_token or 0

    def num_blocks(
        self,
        block_size: int = 16,
        gpu_memory_utilization: float = 0.9,
        max_num_batched_tokens: int = 2048,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        kv_cache_memory_bytes: int | None = None,
    ) -> int:
        self._check_whole(tensor_parallel_size, pipeline_parallel_size)
        tokens = self.calibration.num_blocks * self.calibration.block_size
        if kv_cache_memory_bytes is not None:
            if not self.kv_bytes_per_token:
                raise ConfigError(f"{self.spec} does not say how large a token's state is: set --num-blocks")
            tokens = kv_cache_memory_bytes // self.kv_bytes_per_token
        if tokens < block_size:
            raise ConfigError(f"{self.spec}: its pool of {tokens} tokens is less than one block of {block_size}")
        return tokens // block_size

    def step_cost(self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1) -> StepCost:
        self._check_whole(tensor_parallel_size, pipeline_parallel_size)
        return self.calibration.cost

    def _check_whole(self, ranks: int, stages: int) -> None:
        if (ranks, stages) != (1, 1):
            raise ConfigError(f"{self.spec} was measured as it is: leave tensor and pipeline parallel size at 1")


def parse_device(spec: str) -> SimDevice:
    """The device that `sim:MODEL@GPU` or `sim:@FILE.toml` names.

    Raises `ConfigError` for anything else, with the known names and the nearest one.
    """
    body = spec.removeprefix(PREFIX)
    model_name, at, gpu_name = body.partition("@")
    if body == spec or not at or not gpu_name:
        raise ConfigError(f"device {spec!r}: write sim:MODEL@GPU, as in sim:llama-3.1-8b@h100, or sim:@FILE.toml")
    if not model_name:
        path = Path(gpu_name).expanduser()
        return CalibratedDevice(path, read_calibration(path))
    model_name, gpu_name = model_name.lower(), gpu_name.lower()
    shape = find_model(model_name)
    if shape is None:
        raise ConfigError(_unknown("model", model_name, MODELS, f" (each also with {FP8_SUFFIX})"))
    gpu = GPUS.get(gpu_name)
    if gpu is None:
        raise ConfigError(_unknown("GPU", gpu_name, GPUS))
    return PresetDevice(shape, gpu)


def _unknown(kind: str, name: str, known: Iterable[str], note: str = "") -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no simulated {kind} is called {name!r}: {hint}known are {', '.join(names)}{note}"
