"""The GPUs that can be simulated: one row each, from data sheets. `docs/devices.md` gives the sources."""

from __future__ import annotations

from dataclasses import dataclass

GPUS_PER_NODE = 8
"""Links between nodes are not described, so no group of GPUs may be larger than this."""

STEP_S = 0.5e-3
"""Host time of a step that asynchronous scheduling does not hide: input preparation, sampling, hand-over."""

LAYER_S = 20e-6
"""About ten kernels a layer in a captured CUDA graph, each with some 2 µs of launch gap, ramp and drain."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device, in the vendor's decimal units.

    `tflops` is dense bf16 on tensor cores; `fp8_factor` what FP8 multiplies it by (1: none, weights are
    converted). `memory_gb` and `bandwidth_gb_s` are the device memory's. `link_gb_s` joins it to its
    neighbours, both directions together (0: it has none); `link_latency_s` is one small all-reduce over it.
    `step_s` and `layer_s` are fixed costs of a step and of each of its layers.
    """

    name: str
    label: str
    tflops: float
    memory_gb: float
    bandwidth_gb_s: float
    link_gb_s: float
    link_latency_s: float
    fp8_factor: int = 1
    step_s: float = STEP_S
    layer_s: float = LAYER_S


NVLINK_S = 10e-6  # 6 µs alone between two H100s (NVIDIA/nccl issue 1259), plus ranks waiting for each other
PCIE_S = 20e-6  # NCCL inside a decode graph over PCIe peer access (haohervchb/sglang-V100 pull request 2)

_TABLE = (
    Gpu("h200", "H200 SXM", 989.5, 141, 4800, 900, NVLINK_S, fp8_factor=2),
    Gpu("h100", "H100 SXM", 989.5, 80, 3350, 900, NVLINK_S, fp8_factor=2),
    Gpu("a100", "A100 80GB SXM", 312, 80, 2039, 600, NVLINK_S),
    Gpu("l40s", "L40S", 362, 48, 864, 64, PCIE_S, fp8_factor=2),
    Gpu("l4", "L4", 121, 24, 300, 64, PCIE_S, fp8_factor=2),
    # Rough: a laptop or small server with two cores and no graphs, so Python pays for every kernel. One core of
    # an AMD EPYC ran smollm2-135m in bf16 at 45 ms a token and 0.84 s per 512 prompt tokens.
    Gpu("cpu", "2-core CPU (rough)", 0.4, 8, 20, 0, 0.0, step_s=2e-3, layer_s=0.5e-3),
)

GPUS = {gpu.name: gpu for gpu in _TABLE}
