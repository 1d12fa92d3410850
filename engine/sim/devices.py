"""The GPUs that can be simulated: one row each, from data sheets. `docs/devices.md` gives the sources."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from schedtop.engine.contract.config import ConfigError

GPUS_PER_NODE = 8
"""Links between nodes are not described, so no group of GPUs may be larger than this."""

LAYER_S = 55e-6
"""Per layer of a step in captured graphs: some ten kernels with a launch gap, ramp and drain each, and small ones that
read no weights. Fitted to measured servers (`benchmarks/fit_step_times.py`)."""

PREFILL_LAYER_S = 65e-6
"""More per layer where a row has several tokens: attention then runs outside the captured graph. Fitted likewise."""

FRONT_END_S = 6.5e-3
"""A client's time outside the scheduler: HTTP, tokenising, and the way back of the first token. Measured TTFTs on H100,
A100 and L40S are 2.5 steps plus 5 to 8 ms."""

ROW_S = 9.3e-6
"""Per request: passes over a row of float logits (5 MB at a 150k vocabulary), batch bookkeeping on the host. Fitted to
decode steps of 1 to 128 rows."""

WEIGHTS_SHARE = 0.91
"""Of peak bandwidth, when streaming weights. An L4 reaches 81 % in batch-1 decode (arXiv 2605.30571); Calculon's A100
file has 90 % from 100 MB on."""

KV_SHARE = 0.95
"""Of peak bandwidth, when reading the KV cache of many rows."""


PCIE_4_GB_S, PCIE_5_GB_S, C2C_GB_S = 32.0, 64.0, 450.0
"""Of one direction: 16 lanes, or NVLink-C2C."""


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device, in the vendor's decimal units.

    `tflops` is dense bf16 on tensor cores; `fp8_factor` what FP8 multiplies it by (1: none, weights are
    converted). `memory_gb` and `bandwidth_gb_s` are the device memory's; `weights_share` and `kv_share` of that
    bandwidth are reached. `link_gb_s` joins it to its neighbours, both directions together (0: it has none);
    `link_latency_s` is one small all-reduce over it. `step_s`, `layer_s` and `row_s` are fixed costs of a step, of each
    of its layers and of each of its rows, `prefill_layer_s` more per layer where a row has several tokens.
    `front_end_s` is a client's time outside the scheduler. `host_gb_s` joins it to the host's memory, one direction.
    """

    name: str
    label: str
    tflops: float
    memory_gb: float
    bandwidth_gb_s: float
    link_gb_s: float
    link_latency_s: float
    fp8_factor: float = 1
    weights_share: float = WEIGHTS_SHARE
    kv_share: float = KV_SHARE
    step_s: float = 0.0
    layer_s: float = LAYER_S
    row_s: float = ROW_S
    prefill_layer_s: float = PREFILL_LAYER_S
    front_end_s: float = FRONT_END_S
    host_gb_s: float = PCIE_4_GB_S


NVLINK_S = 5e-6  # a custom all-reduce inside a captured graph; fitted to measured servers of 2 to 8 ranks
PCIE_S = 20e-6  # NCCL inside a decode graph over PCIe peer access (haohervchb/sglang-V100 pull request 2)

_TABLE = (
    Gpu("b200", "B200 SXM", 2250, 180, 8000, 1800, NVLINK_S, fp8_factor=2, host_gb_s=PCIE_5_GB_S),
    Gpu("gb200", "GB200", 2500, 186, 8000, 1800, NVLINK_S, fp8_factor=2, host_gb_s=C2C_GB_S),
    Gpu("h200", "H200 SXM", 989.5, 141, 4800, 900, NVLINK_S, fp8_factor=2, host_gb_s=PCIE_5_GB_S),
    Gpu("h100", "H100 SXM", 989.5, 80, 3350, 900, NVLINK_S, fp8_factor=2, host_gb_s=PCIE_5_GB_S),
    # Two sources contradict each other on the A100: servers on vLLM 0.15.1 read weights at 0.7 of the bandwidth, 0.20.1
    # in process at 0.83.
    Gpu("a100", "A100 80GB SXM", 312, 80, 2039, 600, NVLINK_S, weights_share=0.76, kv_share=0.78),
    Gpu("mi300x", "MI300X", 1307.4, 192, 5300, 896, NVLINK_S, fp8_factor=2, host_gb_s=PCIE_5_GB_S),
    Gpu("l40s", "L40S", 362, 48, 864, 64, PCIE_S, fp8_factor=2, weights_share=0.88, kv_share=0.57),
    Gpu("rtx6000", "RTX 6000 Ada", 364.2, 48, 960, 64, PCIE_S, fp8_factor=2, kv_share=0.57),
    Gpu("rtx4090", "RTX 4090", 165.2, 24, 1008, 64, PCIE_S, fp8_factor=2, kv_share=0.57),
    Gpu("a10g", "A10G", 70, 24, 600, 64, PCIE_S),
    Gpu("l4", "L4", 121, 24, 300, 64, PCIE_S, fp8_factor=2),
    # Rough: a laptop or small server with two cores and no graphs, so Python pays for every kernel. One core of
    # an AMD EPYC ran smollm2-135m in bf16 at 45 ms a token and 0.84 s per 512 prompt tokens.
    Gpu(
        "cpu",
        "2-core CPU (rough)",
        0.4,
        8,
        20,
        0,
        0.0,
        weights_share=0.8,
        kv_share=0.8,
        step_s=2e-3,
        layer_s=0.5e-3,
        prefill_layer_s=0.0,
        front_end_s=0.0,
    ),
)

GPUS = {gpu.name: gpu for gpu in _TABLE}


def read_gpu(path: Path) -> Gpu:
    """A GPU of one's own from a TOML file with the fields of `Gpu`. Raises `ConfigError`."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    try:
        gpu = msgspec.convert({"name": path.stem, "label": path.stem, "link_latency_s": PCIE_S, **fields}, Gpu)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    for name in ("tflops", "memory_gb", "bandwidth_gb_s", "fp8_factor", "weights_share", "kv_share", "host_gb_s"):
        if not 0 < getattr(gpu, name) < float("inf"):
            raise ConfigError(f"{path}: {name} must be above 0")
    for name in ("link_gb_s", "link_latency_s", "step_s", "layer_s", "row_s", "prefill_layer_s", "front_end_s"):
        if not 0 <= getattr(gpu, name) < float("inf"):
            raise ConfigError(f"{path}: {name} must not be negative")
    return gpu
