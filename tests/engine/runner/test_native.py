"""The compiled routines give what torch gives, for every instruction set there is; without them torch serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.runner.loading.open import open_model
from schedtop.engine.runner.models.fused import NativeOperations, TorchOperations
from schedtop.engine.runner.models.native import load_native, native_choices

CPU = torch.device("cpu")
CHOICES = [(dtype, choice) for dtype in (torch.float32, torch.bfloat16) for choice in native_choices(dtype)]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}

each_choice = pytest.mark.parametrize(
    ("dtype", "native"), CHOICES, ids=[f"{dtype}-{choice.instructions}" for dtype, choice in CHOICES]
)


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, rtol=TOLERANCE[got.dtype], atol=TOLERANCE[got.dtype])


@each_choice
@pytest.mark.parametrize("shape", [(1, 8), (3, 37), (130, 576)], ids=str)
def test_norms(dtype: torch.dtype, native: Any, shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    x, more, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    ours, theirs = NativeOperations(native), TorchOperations(torch.nn.functional.silu)
    for other in (None, more):
        for got, wanted in zip(
            ours.add_norm(x, other, weight, 1e-5), theirs.add_norm(x, other, weight, 1e-5), strict=True
        ):
            assert_close(got, wanted)


@each_choice
@pytest.mark.parametrize("shape", [(1, 2, 8), (5, 4, 64), (70, 9, 64)], ids=str)
def test_rotary_positions(dtype: torch.dtype, native: Any, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(2)
    rows, heads, size = shape
    x = torch.randn(rows, heads + 3, size).to(dtype)[:, :heads]  # as cut out of a product
    cos, sin = torch.randn(2, rows, 1, size).to(dtype)
    wanted = TorchOperations(torch.nn.functional.silu).rotate(x.double(), cos.double(), sin.double()).to(dtype)
    assert_close(NativeOperations(native).rotate(x, cos, sin), wanted)


@each_choice
@pytest.mark.parametrize("shape", [(1, 3), (5, 40), (90, 1536)], ids=str)
def test_gates(dtype: torch.dtype, native: Any, shape: tuple[int, int]) -> None:
    torch.manual_seed(3)
    gate_up = (torch.randn(shape[0], 2 * shape[1]) * 20).to(dtype)
    gate_up[0, 0], gate_up[-1, 1] = 1e30, -1e30
    wanted = TorchOperations(torch.nn.functional.silu).gate(gate_up.clone())
    assert_close(NativeOperations(native).gate(gate_up), wanted)


def open_tiny(lab: Any, folder: Path) -> Any:
    lab.build_model("llama").save_pretrained(folder)
    stages: list[str] = []
    config = EngineConfig(device="cpu", model=str(folder), dtype="float32", scheduler={"num_blocks": 8})
    worker, info = open_model(config, stages.append)
    return stages, worker.notices, info


def test_the_route_is_said_at_start(lab: Any, tmp_path: Path) -> None:
    best = lab.pick_native(torch.float32).instructions
    stages, notices, info = open_tiny(lab, tmp_path / "tiny")
    assert f"running tiny on compiled CPU routines ({best})" in stages
    assert info.device.endswith(f", {best}")
    assert not notices


def test_an_instruction_set_can_be_asked_for(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.pick_native(torch.float32)
    monkeypatch.setenv("SCHEDTOP_NATIVE", "baseline")
    assert open_tiny(lab, tmp_path)[2].device.endswith(", baseline")
    monkeypatch.setenv("SCHEDTOP_NATIVE", "mmx")
    stages, notices, info = open_tiny(lab, tmp_path)
    assert info.device.endswith(", torch")
    assert notices[0].startswith("SCHEDTOP_NATIVE=mmx (this processor has ")
    assert notices[0] in stages


def test_torch_serves_where_the_routines_were_not_built(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "schedtop.engine.runner.models._native", None)
    stages, notices, info = open_tiny(lab, tmp_path / "tiny")
    assert load_native(torch.float32, CPU) is None
    assert info.device.endswith(", torch")
    assert "running tiny on torch" in stages
    assert len(notices) == 1 and "were not built" in notices[0] and "slower" in notices[0]


def test_switched_off_is_no_news(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDTOP_NATIVE", "0")
    _, notices, info = open_tiny(lab, tmp_path)
    assert info.device.endswith(", torch")
    assert not notices


def test_wrong_arguments_are_errors_not_crashes() -> None:
    if not CHOICES:
        pytest.skip("the compiled routines are not built")
    native = CHOICES[0][1]
    with pytest.raises(TypeError):
        native.silu_mul(0, 0, 0)
    with pytest.raises(TypeError):
        native.silu_mul(0, 0, 0, "x", 1)


def test_small_numbers_stay_numbers() -> None:
    """Loading the routines, which are compiled for fast arithmetic, must not flush everyone's small numbers to zero."""
    code = (
        "import torch, schedtop.engine.runner.models.native as n; n.native_choices(torch.float32)\n"
        "import numpy as np; print(float(np.float32(1e-40) * np.float32(1.0)) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
