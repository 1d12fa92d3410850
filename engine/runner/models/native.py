"""The C files, compiled on this machine the first time and kept in the user's cache; torch does their work without.

`SCHEDTOP_NATIVE=0` switches it off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import platformdirs
import torch

SOURCES = tuple(Path(__file__).with_name(name) for name in ("fused.c", "linear.c"))
COMPILE = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-c")
LINK = ("-shared", "-fopenmp")
"""Without -ffast-math: linking with it would switch the whole process to flushing small numbers to zero."""
DTYPE_FLAGS: dict[torch.dtype, tuple[str, ...]] = {torch.float32: (), torch.bfloat16: ("-DBF16",)}
MAX_HEAD_SIZE, MAX_SHARED_HEADS, MAX_BLOCK_SIZE = 256, 64, 256

_POINTER, _LONG, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
SIGNATURES = {
    "add_norm": [*[_POINTER] * 5, _LONG, _LONG, _FLOAT, _INT],
    "rotate": [*[_POINTER] * 3, *[_LONG] * 4, _INT],
    "silu_mul": [_POINTER, _POINTER, _LONG, _LONG, _INT],
    "attend": [*[_POINTER] * 8, *[_LONG] * 8, _FLOAT, _INT],
    "attend_tiles": [*[_POINTER] * 9, *[_LONG] * 8, _FLOAT, _INT],
}
PRODUCTS = {"linear": [*[_POINTER] * 4, *[_LONG] * 3, _INT]}
"""Only where `panel_width` is not 0."""


def load_native(dtype: torch.dtype, device: torch.device) -> ctypes.CDLL | None:
    """The compiled functions for a dtype; None where there is no compiler, or they cannot serve."""
    switched_off = os.environ.get("SCHEDTOP_NATIVE", "1") in ("0", "off", "false", "no")
    if device.type != "cpu" or dtype not in DTYPE_FLAGS or switched_off or platform.system() != "Linux":
        return None
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    try:
        library = ctypes.CDLL(str(_compiled(compiler, DTYPE_FLAGS[dtype])))
    except (OSError, subprocess.SubprocessError):
        return None
    library.panel_width.restype = _LONG
    for name, arguments in (SIGNATURES | PRODUCTS if library.panel_width() else SIGNATURES).items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def _compiled(compiler: str, flags: tuple[str, ...]) -> Path:
    """The shared library, compiled now unless these sources were compiled for this processor before."""
    key = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES))
    key.update(" ".join((compiler, *COMPILE, *LINK, *flags, _processor())).encode())
    folder = Path(platformdirs.user_cache_dir("schedtop")) / "native"
    target = folder / f"{key.hexdigest()[:24]}.so"
    if not target.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made, units = Path(work) / target.name, [Path(work) / f"{source.stem}.o" for source in SOURCES]
            for source, unit in zip(SOURCES, units, strict=True):
                _run([compiler, *COMPILE, *flags, str(source), "-o", str(unit)])
            _run([compiler, *LINK, *map(str, units), "-o", str(made), "-lm"])
            os.replace(made, target)
    return target


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def _processor() -> str:
    """What decides which instructions may be used; a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
