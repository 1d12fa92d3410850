"""What follows `sim:` on the command line, and the device it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.kv_groups import Entry
from schedtop.engine.contract.latencies.front_end import FrontEnd
from schedtop.engine.contract.nearest_name import did_you_mean
from schedtop.engine.sim.devices import GPUS, Gpu, read_gpu
from schedtop.engine.sim.features import StepCost
from schedtop.engine.sim.host_store import HostLink
from schedtop.engine.sim.linear import Calibration, read_calibration
from schedtop.engine.sim.memory import PoolSettings, block_tokens, check_parallel, local_block_bytes, pool_blocks
from schedtop.engine.sim.model_config import read_shape
from schedtop.engine.sim.models import FP8_SUFFIX, MODELS, ModelShape, find_model
from schedtop.engine.sim.operators import OperatorCost
from schedtop.engine.sim.roofline import LINK_SHARE, Roofline

PREFIX = "sim:"
DEFAULT_POOL = PoolSettings()


class SimDevice(Protocol):
    """A simulated device and the model on it. `kv_bytes_per_token` is over all GPUs and layers (0: unknown);
    `kv_groups` are those of the model's layers, ("full",) where they all keep everything.

    `async_scheduling` is an engine's default on it.
    """

    @property
    def spec(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def async_scheduling(self) -> bool: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def kv_bytes_per_token(self) -> int: ...
    @property
    def kv_groups(self) -> tuple[Entry, ...]: ...
    @property
    def front_end(self) -> FrontEnd | None:
        """A client's time outside the scheduler; None where it is not known."""
        ...

    def block_size(self, wanted: int, ranks: int, drafts: int) -> int:
        """Tokens of a block with so many tensor-parallel ranks and drafts: the `wanted`, or more."""
        ...

    def num_blocks(self, settings: PoolSettings = DEFAULT_POOL) -> int:
        """Usable KV blocks. Raises `ConfigError` if the model does not fit or cannot be divided so."""
        ...

    def host_link(self, settings: PoolSettings = DEFAULT_POOL) -> HostLink:
        """The way to the host's memory. Raises `ConfigError` where it is not known."""
        ...

    def step_cost(self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1) -> StepCost:
        """The device's step times. Raises `ConfigError` if the model cannot be divided so."""
        ...


@dataclass(frozen=True, slots=True)
class PresetDevice:
    """A model of `models.py` on GPUs of `devices.py`, or of a file; timed by the roofline or by operator tables.

    `spec` names files by their paths, so that who reads a recording finds them.
    """

    spec: str
    shape: ModelShape
    gpu: Gpu
    by_operators: bool = False

    @property
    def model(self) -> str:
        return self.shape.name

    @property
    def label(self) -> str:
        return self.gpu.label

    @property
    def async_scheduling(self) -> bool:
        """On unless turned off, as in vLLM."""
        return True

    @property
    def vocab_size(self) -> int:
        return self.shape.vocab

    @property
    def max_model_len(self) -> int:
        return self.shape.max_model_len

    @property
    def kv_bytes_per_token(self) -> int:
        return self.shape.kv_bytes_per_token

    @property
    def kv_groups(self) -> tuple[Entry, ...]:
        return self.shape.kv_groups

    @property
    def front_end(self) -> FrontEnd | None:
        gpu = self.gpu
        if not gpu.front_end_s:
            return None
        return FrontEnd(gpu.front_end_s, gpu.front_end_row_s, gpu.front_end_token_s)

    def block_size(self, wanted: int, ranks: int, drafts: int) -> int:
        return block_tokens(self.shape, wanted, ranks, drafts)

    def num_blocks(self, settings: PoolSettings = DEFAULT_POOL) -> int:
        return pool_blocks(self.shape, self.gpu, settings)

    def host_link(self, settings: PoolSettings = DEFAULT_POOL) -> HostLink:
        """Every GPU moves its part of a block over a link of its own."""
        gpus = settings.tensor_parallel_size * settings.pipeline_parallel_size
        rate = self.gpu.host_gb_s * 1e9 * LINK_SHARE * gpus
        return HostLink(local_block_bytes(self.shape, settings) * gpus, rate)

    def step_cost(self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1) -> Roofline | OperatorCost:
        check_parallel(self.shape, self.gpu, tensor_parallel_size, pipeline_parallel_size)
        if self.by_operators:
            return OperatorCost(self.shape, self.gpu, tensor_parallel_size, pipeline_parallel_size)
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
    def async_scheduling(self) -> bool:
        """As the recording was made."""
        return self.calibration.async_scheduling

    @property
    def vocab_size(self) -> int:
        return self.calibration.vocab_size

    @property
    def max_model_len(self) -> int:
        return self.calibration.max_model_len

    @property
    def kv_bytes_per_token(self) -> int:
        return self.calibration.kv_bytes_per_token or 0

    @property
    def kv_groups(self) -> tuple[Entry, ...]:
        """A calibration does not describe groups."""
        return ("full",)

    @property
    def front_end(self) -> FrontEnd | None:
        return None

    def block_size(self, wanted: int, ranks: int, drafts: int) -> int:
        return wanted

    def num_blocks(self, settings: PoolSettings = DEFAULT_POOL) -> int:
        self._check_whole(settings.tensor_parallel_size, settings.pipeline_parallel_size)
        size, given = settings.block_size, settings.kv_cache_memory_bytes
        if given is not None:
            return self._blocks_in(given, size)
        tokens = self.calibration.num_blocks * self.calibration.block_size
        if tokens < size:
            raise ConfigError(f"{self.spec}: its pool of {tokens} tokens is less than one block of {size}")
        return tokens // size

    def host_link(self, settings: PoolSettings = DEFAULT_POOL) -> HostLink:
        raise ConfigError(f"--kv-host-memory: {self.spec} does not say how fast its link to the host is")

    def _blocks_in(self, num_bytes: int, block_size: int) -> int:
        flag, block_bytes = f"--kv-cache-memory {num_bytes}", block_size * self.kv_bytes_per_token
        if not block_bytes:
            raise ConfigError(f"{flag}: {self.spec} does not say how large a token's state is: set --num-blocks")
        if num_bytes < block_bytes:
            raise ConfigError(f"{flag}: must be at least {block_bytes} (one block)")
        return num_bytes // block_bytes

    def step_cost(self, tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1) -> StepCost:
        self._check_whole(tensor_parallel_size, pipeline_parallel_size)
        return self.calibration.cost

    def _check_whole(self, ranks: int, stages: int) -> None:
        if (ranks, stages) != (1, 1):
            raise ConfigError(f"{self.spec} was measured as it is: leave tensor and pipeline parallel size at 1")


def parse_device(spec: str, kv_cache_dtype: str = "auto", step_cost: str = "roofline") -> SimDevice:
    """The device that `sim:MODEL@GPU` or `sim:@FILE.toml` names; its KV cache is bf16 unless `kv_cache_dtype` is fp8.

    `step_cost` is `roofline` or `operators`, which prices steps from measured tables (`operators.py`).
    MODEL may be the path of a `config.json` or of a folder with one, GPU that of a TOML file (`read_gpu`).
    Raises `ConfigError` for anything else, with the known names and the nearest one.
    """
    body = spec.removeprefix(PREFIX)
    model_name, at, gpu_name = body.rpartition("@")
    if body == spec or not at or not gpu_name:
        raise ConfigError(f"device {spec!r}: write sim:MODEL@GPU, as in sim:llama-3.1-8b@h100, or sim:@FILE.toml")
    if not model_name:
        path = Path(gpu_name).expanduser()
        device = CalibratedDevice(path, read_calibration(path))
        for flag, value, default in (
            ("--kv-cache-dtype", kv_cache_dtype, "auto"),
            ("--step-cost", step_cost, "roofline"),
        ):
            if value != default:
                raise ConfigError(f"{flag} {value}: {device.spec} was measured as it is")
        return device
    shape = _find_shape(model_name)
    if kv_cache_dtype == "fp8":
        shape = replace(shape, kv_number_bytes=1)
    gpu = _find_gpu(gpu_name)
    given = ((model_name, shape.name), (gpu_name, gpu.name))
    names = [known if name.lower() == known else name for name, known in given]
    return PresetDevice(f"{PREFIX}{'@'.join(names)}", shape, gpu, step_cost == "operators")


def _find_gpu(name: str) -> Gpu:
    gpu = GPUS.get(name.lower())
    if gpu is not None:
        return gpu
    if name.endswith(".toml"):
        return read_gpu(Path(name).expanduser())
    raise ConfigError(_unknown("GPU", name.lower(), GPUS, "; or give the path of a .toml file"))


def _find_shape(name: str) -> ModelShape:
    shape = find_model(name.lower())
    if shape is not None:
        return shape
    path = Path(name).expanduser()
    if path.exists() or "/" in name:
        return read_shape(path)
    note = f" (each also with {FP8_SUFFIX}); or give the path of a config.json"
    raise ConfigError(_unknown("model", name.lower(), MODELS, note))


def _unknown(kind: str, name: str, known: Iterable[str], note: str = "") -> str:
    names = list(known)
    return f"no simulated {kind} is called {name!r}: {did_you_mean(name, names)}known are {', '.join(names)}{note}"
