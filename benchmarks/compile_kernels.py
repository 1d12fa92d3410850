# mypy: allow-untyped-calls
"""Compile every kernel for several GPUs, without one: what does not compile, spills registers or needs too much.

    python benchmarks/compile_kernels.py [--arch 80,89,90,100] [--quick] [--only TEXT]

The wrappers choose tilings and options as on the GPU, for a stand-in driver says which one it is; each launch becomes
a compilation, whose code Triton's own assembler then reports on. A line ends in OK, SPILL (a half type that spills
registers to memory), SHARED (more shared memory than a program may have) or FAILED; float32 may spill a little. Exits
1 unless all are OK. Needs torch and Triton; `--quick` takes a few kernels and under a minute.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # unset, a warning says that it will be off one day

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime import driver
from triton.runtime.jit import JITFunction

try:
    from schedtop.kernels import checks, paged_attention
except ImportError:
    # Not installed: map the import root onto the checkout, as the packaging does.
    package = types.ModuleType("schedtop")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["schedtop"] = package
    from schedtop.kernels import checks, paged_attention

LIMITS = {80: (108, 166_912), 89: (142, 101_376), 90: (132, 232_448), 100: (148, 232_448)}
"""Multiprocessors, and bytes of shared memory that a program may have: A100, L40S, H100, B200."""

FLOAT32_SPILL_BYTES = 128
HALF, FLOAT = (torch.bfloat16, torch.float16), torch.float32

Call = Callable[[], object]


class NoDevice:
    """The part of Triton's driver that compiling asks for."""

    arch = 90

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return self.arch  # compiled kernels are kept by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


DEVICE = NoDevice()
COMPILED: list[tuple[str, Any]] = []


def stand_in_for_the_device() -> None:
    """Launches become compilations; CPU tensors stand for device memory."""

    def compile_only(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            COMPILED.append((kernel.fn.__name__, kernel.run(*args, grid=grid, warmup=True, **options)))

        return launch

    driver.set_active(DEVICE)
    JITFunction.__getitem__ = compile_only  # type: ignore[method-assign]
    checks.check_runnable.__code__ = (lambda name, tensor: None).__code__
    paged_attention._device_limits = lambda device: LIMITS[DEVICE.arch]  # type: ignore[assignment]


def attention(
    heads: tuple[int, int, int], rows: int, query_len: int, length: int, dtype: torch.dtype, **options: Any
) -> Call:
    """`heads`: query heads, key heads, head size. With `rows` above 1 a query longer than 8 stands beside decodes."""
    num_heads, kv_heads, size = heads
    lens = [1] * (rows - 1) + [query_len] if query_len > 8 else [query_len] * rows
    # A view of a fused product, as in a decoder.
    query = torch.zeros(sum(lens), num_heads + 2 * kv_heads, size, dtype=dtype)[:, :num_heads]
    cache = torch.zeros(2, 4, 16, kv_heads, size, dtype=dtype)
    table = torch.zeros(rows, -(-length // 16), dtype=torch.int32)
    starts = torch.tensor([0, *itertools.accumulate(lens)], dtype=torch.int32)
    lengths = torch.full((rows,), length, dtype=torch.int32)
    limits: dict[str, Any] = {"max_query_len": query_len, "max_seq_len": length, "scale": size**-0.5}
    return lambda: paged_attention.paged_attention(
        query, cache[0], cache[1], table, starts, lengths, **limits, **options
    )


MODELS = {
    "llama-8b": (32, 8, 128),
    "smollm2": (9, 3, 64),
    "gemma2-2b": (8, 4, 256),
    "gemma3-1b": (4, 1, 256),
    "qwen2.5-0.5b": (14, 2, 64),
    "llama-70b": (64, 8, 128),
    "phi-2": (32, 32, 80),
    "phi-3": (32, 32, 96),
}
SHAPES = {
    "prefill 2048": (1, 2048, 2048),
    "decode 64 x 4096": (64, 1, 4096),
    "decode 1 x 32768": (1, 1, 32768),
    "verify 8 x 8": (8, 8, 4096),
    "chunk of 512 beside 63 decodes": (64, 512, 4096),
}
CAPPED = {"window": 4096, "soft_cap": 50.0}


def attention_cases(quick: bool) -> Iterator[tuple[str, torch.dtype, Call]]:
    if quick:
        yield "gemma2-2b prefill", HALF[0], attention(MODELS["gemma2-2b"], 1, 2048, 2048, HALF[0])
        return
    for (model, heads), (shape, sizes) in itertools.product(MODELS.items(), SHAPES.items()):
        yield f"{model} {shape}", HALF[0], attention(heads, *sizes, HALF[0])
    for model, shape in itertools.product(("llama-8b", "gemma2-2b"), ("prefill 2048", "decode 64 x 4096")):
        sizes = SHAPES[shape]
        yield f"{model} {shape} float16", HALF[1], attention(MODELS[model], *sizes, HALF[1])
        yield f"{model} {shape} float32", FLOAT, attention(MODELS[model], *sizes, FLOAT)
        yield f"{model} {shape} capped", HALF[0], attention(MODELS[model], *sizes, HALF[0], **CAPPED)


def other_cases(quick: bool) -> Iterator[tuple[str, torch.dtype, Call]]:
    """Everything but attention; if `quick`, attention of decodes as well."""
    from schedtop.kernels.activation import silu_mul
    from schedtop.kernels.kv_write import kv_write
    from schedtop.kernels.norm import rms_norm
    from schedtop.kernels.rotary import rotary
    from schedtop.kernels.sampling import sample
    from schedtop.kernels.sampling_params import SamplingTensors

    if quick:
        yield "llama-8b decode", HALF[0], attention(MODELS["llama-8b"], 64, 1, 4096, HALF[0])
    rows = 64
    longs, floats = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows)
    params = SamplingTensors(floats, longs.int(), floats, floats, longs, longs)
    for dtype in HALF[:1] if quick else (*HALF, FLOAT):
        query, key, value = torch.zeros(rows, 48, 128, dtype=dtype).split((32, 8, 8), dim=1)
        cache = torch.zeros(2, 4, 16, 8, 128, dtype=dtype)
        x, weight = torch.zeros(rows, 4096, dtype=dtype), torch.ones(4096, dtype=dtype)
        table, gates = torch.zeros(64, 128, dtype=dtype), torch.zeros(rows, 2 * 14336, dtype=dtype)
        logits = torch.zeros(rows, 128256, dtype=dtype)
        calls: dict[str, Call] = {
            "kv_write": lambda k=key, v=value, c=cache: kv_write(k, v, c[0], c[1], longs),
            "norm": lambda x=x, w=weight: rms_norm(x, w, 1e-5),
            "norm with residual": lambda x=x, w=weight: rms_norm(x, w, 1e-5, residual=torch.zeros_like(x), out=x),
            "norm per head": lambda q=query, w=weight: rms_norm(q, w[:128], 1e-6, add_one=True, out=q),
            "rotary": lambda q=query, k=key, t=table: rotary(q, k, longs, t),
            "silu_mul": lambda g=gates: silu_mul(*g.chunk(2, dim=-1)),
            "sample": lambda logits=logits: sample(logits, params),
        }
        name = str(dtype).removeprefix("torch.")
        yield from ((f"{what} {name}", dtype, call) for what, call in calls.items())


def assemble(kernel: Any, arch: int) -> tuple[int, int]:
    """Registers and spilled bytes, as the assembler that Triton takes for this GPU tells them."""
    ptx: str = kernel.asm["ptx"]
    target = re.findall(r"^\.target ([^\s,]+)", ptx, re.M)[0]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={target}", str(source), "-o", str(source) + ".cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(text.strip().splitlines()[0])
    registers = re.findall(r"Used (\d+) registers", text)
    return int(registers[0]), sum(map(int, re.findall(r"(\d+) bytes spill", text)))


def judge(arch: int, dtype: torch.dtype, kernel: Any) -> tuple[str, str]:
    """What a compiled kernel needs, and the verdict."""
    registers, spilled = assemble(kernel, arch)
    shared, warps = kernel.metadata.shared, kernel.metadata.num_warps
    figures = f"{warps} warps, {registers} registers, {spilled} bytes spilled, {shared} of shared memory"
    if spilled > (FLOAT32_SPILL_BYTES if dtype is FLOAT else 0):
        return figures, "SPILL"
    return figures, "SHARED" if shared > LIMITS[arch][1] else "OK"


def check(arch: int, name: str, dtype: torch.dtype, call: Call, seen: set[str]) -> int:
    """Prints a line per kernel not seen yet; how many are not OK."""
    COMPILED.clear()
    bad = 0
    try:
        call()
        for kernel_name, kernel in COMPILED:
            if kernel.hash not in seen:
                seen.add(kernel.hash)
                figures, verdict = judge(arch, dtype, kernel)
                bad += verdict != "OK"
                print(f"sm_{arch} {name} {kernel_name}: {figures}: {verdict}", flush=True)
    except Exception as error:  # a compiler's failure has no type of its own
        bad += 1
        print(f"sm_{arch} {name}: {type(error).__name__}: {str(error).strip()[:200]}: FAILED", flush=True)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--arch", default="80,89,90,100", help="compute capabilities without their dots")
    parser.add_argument("--quick", action="store_true", help="a few kernels, for CI")
    parser.add_argument("--only", default="", help="kernels whose name holds this text")
    options = parser.parse_args()
    archs = [int(arch) for arch in options.arch.split(",")]
    stand_in_for_the_device()
    bad, seen = 0, set[str]()
    for arch in archs:
        DEVICE.arch = arch
        cases = [*attention_cases(options.quick), *(other_cases(options.quick) if arch == archs[-1] else ())]
        for name, dtype, call in cases:
            if options.only in name:
                bad += check(arch, name, dtype, call, seen)
    print(f"{len(seen)} kernels compiled, {bad} not OK")
    return int(bad > 0 or not seen)


if __name__ == "__main__":
    sys.exit(main())
