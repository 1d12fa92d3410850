"""Without Triton, with sizes it does not know or a kernel that fails, torch serves the same tokens and says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from schedtop import kernels
from schedtop.engine.build import build_engine
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.gpu.backend import choose_kernels
from schedtop.engine.runner.gpu.kernel_modules import replace_modules
from schedtop.engine.runner.gpu.kernel_sampler import KernelSampler, setting_arrays
from schedtop.engine.runner.gpu.torch_fallback import GuardedDecoder
from schedtop.engine.runner.loading.open import open_model
from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache
from schedtop.engine.runner.sampler import RowSampling

pytest.importorskip("triton")

CPU = torch.device("cpu")


def shape(head_size: int = 64, block_size: int = 8) -> CacheShape:
    return CacheShape(2, block_size, 1, head_size, torch.float32)


def break_kernel(monkeypatch: pytest.MonkeyPatch, name: str, after: int = 0) -> None:
    """The kernel's wrapper raises after so many calls."""
    module = __import__(f"schedtop.kernels.{name}", fromlist=[name])
    function = {"sampling": "sample", "norm": "rms_norm"}.get(name, name)
    own: Callable[..., Any] = getattr(module, function)
    calls = 0

    def broken(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise RuntimeError(f"{name} does not compile\nsecond line")
        return own(*args, **options)

    monkeypatch.setattr(module, function, broken)


def test_sizes_the_kernels_know() -> None:
    reported: list[str] = []
    assert choose_kernels(shape(), 2, CPU, reported.append)
    assert not reported
    assert not choose_kernels(shape(head_size=72), 2, CPU, reported.append)
    assert not choose_kernels(shape(block_size=64), 2, CPU, reported.append)
    assert "head size 72" in reported[0]
    assert "block size 64" in reported[1]


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    assert not choose_kernels(shape(), 2, CPU, reported.append)
    assert reported == ["Triton is not installed: running on torch, which is slower"]


@pytest.mark.parametrize("name", ["paged_attention", "kv_write", "norm", "rotary"])
def test_a_kernel_that_fails_at_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    reported: list[str] = []
    break_kernel(monkeypatch, name)
    assert not choose_kernels(shape(), 2, CPU, reported.append)
    assert reported[0].startswith("the kernels do not run here")
    assert "\n" not in reported[0]


@pytest.mark.parametrize("name", ["llama@kernels", "smollm3@kernels"])
def test_a_kernel_that_fails_in_the_midst_of_serving(lab: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    reported: list[str] = []
    served = lab.serve(name, "kernels", tell=reported.append)
    prompts = lab.prompts(2, seed=41, low=3, high=8)
    for prompt in prompts:
        served.add(prompt, 6)
    served.step()
    break_kernel(monkeypatch, "paged_attention", after=3)
    lab.check_greedy(name, prompts, served.run(), 6)
    assert len(reported) == 1


def test_out_of_memory_is_no_reason_to_leave_the_kernels() -> None:
    class Full:
        attention: Any = None

        def forward(self, batch: Any) -> torch.Tensor:
            raise torch.OutOfMemoryError("full")

        def use_torch(self) -> None: ...

    guarded = GuardedDecoder(Full(), PagedCache(shape(), 1, CPU), print)
    with pytest.raises(torch.OutOfMemoryError):
        guarded.forward(None)  # type: ignore[arg-type]
    assert guarded.on_kernels


def test_open_model_says_why_it_runs_on_torch(lab: Any, tmp_path: Path) -> None:
    lab.build_model("llama").save_pretrained(tmp_path)
    stages: list[str] = []
    config = EngineConfig(device="cpu", model=str(tmp_path), dtype="float32", scheduler={"num_blocks": 8})
    worker, _ = open_model(config, stages.append, kernels=True)
    assert [line for line in stages if "head size 8" in line] == worker.notices != []


def test_open_model_on_kernels(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.build_model("qwen2@kernels").save_pretrained(tmp_path)
    config = EngineConfig(
        device="cpu", model=str(tmp_path), dtype="float32", workload=None, scheduler={"num_blocks": 8}
    )
    opened: list[Any] = []

    def on_kernels(*args: Any, **more: Any) -> Any:
        opened.append(open_model(*args, **more, kernels=True))
        return opened[0]

    monkeypatch.setattr("schedtop.engine.runner.loading.open.open_model", on_kernels)
    engine = build_engine(config)
    prompt = lab.prompts(1, seed=42, low=5, high=6)[0]
    request = Request("r", np.array(prompt, dtype=np.int32), 4)
    engine.submit(request)
    while engine.num_unfinished:
        engine.step()
    lab.check_greedy("qwen2@kernels", [prompt], [list(request.output_token_ids)], 4)
    assert not opened[0][0].notices


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma2", "gemma3"])
def test_a_replaced_module_computes_what_its_own_code_does(lab: Any, name: str) -> None:
    torch.manual_seed(3)
    model = lab.build_model(f"{name}@kernels")
    replaced = replace_modules(model)
    gelu = name.startswith("gemma")  # whose gate has no kernel
    kinds = {type(module).__name__[-3:] for module in replaced}
    assert kinds == ({"orm"} if gelu else {"orm", "MLP"})
    norms = [module for module in model.modules() if type(module).__name__.endswith("Norm")]
    assert set(norms) <= set(replaced)
    for module in replaced:
        weight = module.weight if hasattr(module, "weight") else module.gate_proj.weight
        x = torch.randn(1, 3, weight.shape[-1])
        with torch.inference_mode():
            ours, theirs = module(x), type(module).forward(module, x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_another_activation_keeps_its_own_code(lab: Any) -> None:
    model = lab.build_model("smollm3@kernels")
    model.config.hidden_act = "gelu"
    assert {type(module).__name__ for module in replace_modules(model)} == {"SmolLM3RMSNorm"}


def test_sampled_tokens_do_not_depend_on_the_batch() -> None:
    sampler = KernelSampler(CPU, print)
    logits = torch.randn(4, 99, generator=torch.Generator().manual_seed(2)) * 3
    settings = [
        None,
        RowSampling(SamplingParams(temperature=0.8), 2**63 + 5),
        RowSampling(SamplingParams(temperature=1.5, top_k=7, top_p=0.9, min_p=0.01), -3),
        None,
    ]
    positions = np.array([4, 9, 70, 1], dtype=np.int32)
    together = sampler.pick(logits, settings, positions)
    assert together is not None
    assert together[[0, 3]].tolist() == logits.argmax(-1)[[0, 3]].tolist()
    for row in range(4):
        alone = sampler.pick(logits[row : row + 1], settings[row : row + 1], positions[row : row + 1])
        assert alone is not None
        assert alone.tolist() == [together[row]]
    assert [array.tolist() for array in setting_arrays([None, None], positions[:2])][:4] == [
        [0.0, 0.0],
        [0, 0],
        [1.0, 1.0],
        [0.0, 0.0],
    ]


def test_a_failing_sampling_kernel(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    break_kernel(monkeypatch, "sampling")
    sampler = KernelSampler(CPU, reported.append)
    for _ in range(2):
        assert sampler.pick(torch.zeros(1, 9), [None], np.zeros(1, dtype=np.int32)) is None
    assert len(reported) == 1
    assert "sampling with torch" in reported[0]
