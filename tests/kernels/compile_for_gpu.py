"""Compile every kernel for compute capability 9.0 without a GPU, by standing in for Triton's driver.

Run as a program: the interpreter of the other tests and the compiler cannot share a process. Prints one line
per compiled kernel (registers and spills come from the assembler) and exits 1 when one fails to compile.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)


class NoDevice:
    """The part of Triton's driver that compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiler:
    """Replaces launches by compilations and remembers what each gave."""

    def __init__(self) -> None:
        self.compiled: dict[str, Any] = {}

    def install(self) -> None:
        from triton.runtime import driver

        driver.set_active(NoDevice())
        compiler = self

        def compile_only(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*args: Any, **options: Any) -> None:
                compiler.compiled[kernel.fn.__name__] = kernel.run(*args, grid=grid, warmup=True, **options)

            return launch

        JITFunction.__getitem__ = compile_only  # type: ignore[method-assign]


def main() -> int:
    from schedtop.kernels import checks

    # CPU tensors stand for device memory: nothing is launched.
    checks.check_runnable.__code__ = (lambda name, tensor: None).__code__
    compiler = Compiler()
    compiler.install()
    failed = False
    for name, call in calls():
        if len(sys.argv) > 1 and sys.argv[1] not in name:
            continue
        compiler.compiled.clear()
        begin = time.monotonic()
        try:
            call()
        except Exception as error:
            failed = True
            print(f"{name}: FAILED {type(error).__name__}: {error}")
            continue
        for kernel_name, kernel in compiler.compiled.items():
            print(f"{name} {kernel_name}: {time.monotonic() - begin:.1f} s, {usage(kernel)}")
    return int(failed)


def usage(kernel: Any) -> str:
    """Registers, spills and shared memory of a compiled kernel."""
    shared = f"shared {kernel.metadata.shared}"
    dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not dump.exists():
        return shared
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run(
            [dump, "--dump-resource-usage", file.name], capture_output=True, text=True, check=False
        ).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    ops = [op for op in ("wgmma", "mma.sync", "cp.async.cg") if op in kernel.asm["ptx"]]
    return f"{shared}, {found}, {' '.join(ops)}"


def calls() -> list[tuple[str, Callable[[], object]]]:
    from schedtop.kernels.activation import silu_mul
    from schedtop.kernels.kv_write import kv_write
    from schedtop.kernels.norm import rms_norm
    from schedtop.kernels.paged_attention import paged_attention
    from schedtop.kernels.rotary import cos_sin_table, rotary
    from schedtop.kernels.sampling import sample
    from schedtop.kernels.sampling_params import SamplingParams

    bf16 = torch.bfloat16

    def attend(
        dtype: torch.dtype, head_size: int, query_len: int, splits: int, group: int = 4, **options: Any
    ) -> Callable[[], object]:
        rows, kv_heads, length = 16, 2, 4096
        query = torch.zeros(rows * query_len, kv_heads * group, head_size, dtype=dtype)
        cache = torch.zeros(64, 16, kv_heads, head_size, dtype=dtype)
        integers = {"dtype": torch.int32}
        return lambda: paged_attention(
            query,
            cache,
            cache.clone(),
            torch.zeros(rows, 256, **integers),
            torch.zeros(rows + 1, **integers),
            torch.full((rows,), length, **integers),
            max_query_len=query_len,
            max_seq_len=length,
            scale=head_size**-0.5,
            num_splits=splits,
            **options,
        )

    rows = 16
    heads = torch.zeros(rows, 32, 128, dtype=bf16)
    keys = torch.zeros(rows, 8, 128, dtype=bf16)
    cache = torch.zeros(64, 16, 8, 128, dtype=bf16)
    longs = torch.zeros(rows, dtype=torch.int64)
    floats = torch.zeros(rows)
    params = SamplingParams(floats, longs.int(), floats, floats, longs, longs)
    hidden = torch.zeros(rows, 4096, dtype=bf16)
    table = cos_sin_table(torch.ones(64), 32)
    return [
        ("kv_write", lambda: kv_write(keys, keys, cache, cache.clone(), longs)),
        ("norm", lambda: rms_norm(hidden, hidden[0].clone(), 1e-5)),
        ("norm+residual", lambda: rms_norm(hidden, hidden[0].clone(), 1e-5, residual=hidden.clone(), add_one=True)),
        ("norm per head", lambda: rms_norm(heads, heads[0, 0].clone(), 1e-5, out=heads)),
        ("rotary", lambda: rotary(heads, keys, longs, table)),
        ("silu_mul", lambda: silu_mul(hidden[:, :2048], hidden[:, 2048:])),
        ("sample", lambda: sample(torch.zeros(rows, 128256, dtype=bf16), params)),
        ("decode", attend(bf16, 128, 1, 1)),
        ("decode split", attend(bf16, 128, 1, 8)),
        ("decode window cap", attend(torch.float16, 256, 1, 1, window=512, soft_cap=50.0)),
        ("decode float32", attend(torch.float32, 80, 1, 4)),
        ("decode group 7", attend(bf16, 64, 1, 1, group=7)),
        ("prefill 64", attend(bf16, 64, 512, 1)),
        ("prefill 128", attend(bf16, 128, 512, 1)),
        ("prefill 96 float16", attend(torch.float16, 96, 512, 1)),
        ("prefill 256 window cap", attend(bf16, 256, 512, 1, window=512, soft_cap=50.0)),
        ("prefill 128 float32", attend(torch.float32, 128, 512, 1)),
        ("prefill 256 float32", attend(torch.float32, 256, 512, 1, window=512)),
    ]


if __name__ == "__main__":
    sys.exit(main())
