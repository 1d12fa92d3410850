"""Greedy outputs are those of transformers.generate, token for token, whatever the batch goes through."""

from __future__ import annotations

from typing import Any

import pytest
from schedtop.engine.runner.models.families import FAMILIES

LEAN = ("llama", "llama-bias", "llama-yarn", "llama-longrope", "qwen2", "qwen2-window", "qwen3", "mistral")
ROUTES = [
    *((name, "lean") for name in LEAN),
    *((name, "native") for name in ("llama", "llama-bias", "llama-dynamic", "qwen2-window", "qwen3", "mistral")),
    *(("llama", f"native:{instructions}") for instructions in ("avx2", "baseline")),
    *((name, "general") for name in ("llama-longrope", "qwen2-window", "qwen3", "mistral")),
    *((name, "general") for name in ("smollm3", "gemma2", "gemma3")),
]
each_route = pytest.mark.parametrize(("name", "route"), ROUTES)


@each_route
def test_chunks_beside_decodes(lab: Any, name: str, route: str) -> None:
    prompts = lab.prompts(5, seed=1, low=3, high=90)
    served = lab.serve(name, route, max_num_batched_tokens=24)
    for prompt in prompts:
        served.add(prompt, 8)
    lab.check_greedy(name, prompts, served.run(), 8)
    assert served.chunked and served.mixed


@each_route
def test_prefix_hits(lab: Any, name: str, route: str) -> None:
    prompts = lab.prompts(4, seed=2, shared=40, high=20)
    served = lab.serve(name, route)
    outputs = []
    for prompt in prompts:
        served.add(prompt, 5)
        outputs = served.run()
    lab.check_greedy(name, prompts, outputs, 5)
    assert served.cached


@each_route
def test_preemption_and_resumption(lab: Any, name: str, route: str) -> None:
    prompts = lab.prompts(6, seed=3, shared=16, low=10, high=40)
    # A window releases blocks, so it takes a smaller pool to run out.
    served = lab.serve(name, route, num_blocks=10 if name == "mistral" else 14, max_num_batched_tokens=32)
    for prompt in prompts:
        served.add(prompt, 20)
    lab.check_greedy(name, prompts, served.run(), 20)
    assert served.preemptions


@each_route
def test_speculation(lab: Any, name: str, route: str) -> None:
    prompts = [prompt * 4 for prompt in lab.prompts(4, seed=4, low=4, high=12)]
    served = lab.serve(name, route, num_speculative_tokens=4, max_num_batched_tokens=40)
    for prompt in prompts:
        served.add(prompt, 20)
    lab.check_greedy(name, prompts, served.run(), 20)
    assert served.accepted


def test_arrivals_and_aborts_between_steps(lab: Any) -> None:
    prompts = lab.prompts(10, seed=5, shared=24)
    served = lab.serve("llama", num_blocks=40)
    for index, prompt in enumerate(prompts):
        served.add(prompt, 20)
        served.step()
        if index == 4:
            served.scheduler.abort(served.requests[3].number, 0.0)
    outputs = served.run()
    lengths = [len(outputs[3]) if index == 3 else 20 for index in range(10)]
    lab.check_greedy("llama", prompts, outputs, *lengths)
    assert len(outputs[3]) < 20


def test_every_family_is_tried_on_each_of_its_routes(lab: Any) -> None:
    tried = {(lab.build_config(name).model_type, route) for name, route in ROUTES}
    for model_type, family in FAMILIES.items():
        assert (model_type, "general") in tried
        assert not family.lean or {(model_type, "lean"), (model_type, "native")} <= tried
