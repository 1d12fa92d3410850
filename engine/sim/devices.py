"""The GPUs that can be simulated: one row each, from data sheets. `docs/devices.md` gives the sources."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from schedtop.engine.contract.config import ConfigError

GPUS_PER_NODE = 8
"""Links between nodes are not described, so no group of GPUs may be larger than this."""

# Fitted to measured servers and public decode points by `benchmarks/fit_step_times.py`.

LAYER_S = 55e-6
"""Per layer of a step in captured graphs: some ten kernels with a launch gap, ramp and drain each, and small ones that
read no weights."""

EXPERT_LAYER_S = 30e-6
"""More per layer with experts: router, sorting tokens by expert, adding their outputs up."""

PREFILL_LAYER_S = 64e-6
"""More per layer where a row has several tokens: attention then runs outside the captured graph."""

LOGIT_S = 60e-12
"""Per request and entry of the vocabulary: the sampler's passes over float logits (9 µs a request at 150k entries)."""

WEIGHTS_SHARE = 0.92
"""Of peak bandwidth, when streaming weights. An L4 reaches 81 % in batch-1 decode (arXiv 2605.30571); Calculon's A100
file has 90 % from 100 MB on."""

KV_SHARE = 0.91
"""Of peak bandwidth, when reading the KV cache of many rows."""

FRONT_END_S = 4e-3
"""A client's time outside the scheduler: HTTP, the chat template, and the way back of the first token."""

FRONT_END_ROW_S = 42e-6
"""More per request of the step that gave the token: one process streams the outputs of all of them, in order."""

FRONT_END_TOKEN_S = 1.5e-6
"""More per token of the prompt: one thread of `tokenizers` took 1.0 to 2.5 µs for each of 600 to 8,000 tokens of prose.
The measured servers' prompts are of 575 to 1,082 tokens, too alike to separate it from the fixed time."""


PCIE_4_GB_S, PCIE_5_GB_S, C2C_GB_S = 32.0, 64.0, 450.0
"""Of one direction: 16 lanes, or NVLink-C2C."""


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device, in the vendor's decimal units.

    `tflops` is dense bf16 on tensor cores; `fp8_factor` what FP8 multiplies it by (1: none, weights are converted).
    `memory_gb` and `bandwidth_gb_s` are the device memory's; `weights_share` and `kv_share` of that bandwidth are
    reached. `link_gb_s` joins it to its neighbours, both directions together (0: it has none); `link_latency_s` is one
    small all-reduce over it. `step_s`, `layer_s` and `row_s` are fixed costs of a step, of each of its layers and of
    each of its rows; `expert_layer_s` is more per layer with experts, `prefill_layer_s` where a row has several
    tokens, `logit_s` per row and entry of the vocabulary. `front_end_s` is a client's time outside the scheduler (0:
    not known), `front_end_row_s` more for each row of the step that gave the token, `front_end_token_s` for each token
    of the prompt. `host_gb_s` joins it to the host's memory, one direction.
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
    expert_layer_s: float = EXPERT_LAYER_S
    prefill_layer_s: float = PREFILL_LAYER_S
    row_s: float = 0.0
    logit_s: float = LOGIT_S
    front_end_s: float = FRONT_END_S
    host_gb_s: float = PCIE_4_GB_S
    front_end_row_s: float = FRONT_END_ROW_S
    front_end_token_s: float = FRONT_END_TOKEN_S


NVLINK_S = 2.2e-6  # a custom all-reduce inside a captured graph; fitted to measured servers of 2 to 8 ranks
PCIE_S = 20e-6  # NCCL inside a decode graph over PCIe peer access (haohervchb/sglang-V100 pull request 2)

_TABLE = (
    Gpu("b200", "B200 SXM", 2250, 180, 7700, 1800, NVLINK_S, fp8_factor=2, host_gb_s=PCIE_5_GB_S),
    Gpu("gb200", "GB200", 2500, 186, 8000, 1800, NVLINK_S, fp8_factor=2, host_gb_s=C2C_GB_S),
    Gpu("h200", "H200 SXM", 989.5, 141, 4800, 900, NVLINK_S, fp8_factor=2, host_gb_s=PCIE_5_GB_S),
    Gpu("h100", "H100 SXM", 989.5, 80, 3350, 900, NVLINK_S, fp8_factor=2, host_gb_s=PCIE_5_GB_S),
    # Batch 1 on vLLM 0.20.1 gives the shares, a server on 0.15.1 the rest: a request more costs it far more than
    # reading its KV cache. TensorRT-LLM 0.17 contradicts that at some hundred requests (`docs/devices.md`).
    Gpu(
        "a100",
        "A100 80GB SXM",
        312,
        80,
        2039,
        600,
        NVLINK_S,
        weights_share=0.8,
        kv_share=0.8,
        row_s=75e-6,
        prefill_layer_s=165e-6,
        front_end_s=5.1e-3,
    ),
    Gpu("mi300x", "MI300X", 1307.4, 192, 5300, 896, NVLINK_S, fp8_factor=2, host_gb_s=PCIE_5_GB_S),
    Gpu("l40s", "L40S", 362, 48, 864, 64, PCIE_S, fp8_factor=2, weights_share=0.88, kv_share=0.57),
    Gpu("rtx6000", "RTX 6000 Ada", 364.2, 48, 960, 64, PCIE_S, fp8_factor=2, kv_share=0.57),
    Gpu("rtx4090", "RTX 4090", 165.2, 24, 1008, 64, PCIE_S, fp8_factor=2, kv_share=0.57),
    Gpu("a10g", "A10G", 70, 24, 600, 64, PCIE_S, kv_share=0.57),
    Gpu("l4", "L4", 121, 24, 300, 64, PCIE_S, fp8_factor=2, kv_share=0.57),
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
        expert_layer_s=0.0,
        prefill_layer_s=0.0,
        row_s=9e-6,
        logit_s=0.0,
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
        own = {"name": path.stem, "label": path.stem, "link_gb_s": 0.0, "link_latency_s": PCIE_S}
        gpu = msgspec.convert(own | fields, Gpu)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    for name in ("tflops", "memory_gb", "bandwidth_gb_s", "fp8_factor", "weights_share", "kv_share", "host_gb_s"):
        if not 0 < getattr(gpu, name) < float("inf"):
            raise ConfigError(f"{path}: {name} must be above 0")
        if name.endswith("_share") and getattr(gpu, name) > 1:
            raise ConfigError(f"{path}: {name} must be at most 1")
    for name in gpu.__struct_fields__:
        if name.endswith("_s") and not 0 <= getattr(gpu, name) < float("inf"):
            raise ConfigError(f"{path}: {name} must not be negative")
    return gpu
