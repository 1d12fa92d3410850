"""SmolLM2 itself, where it has been pulled: real text, the real tokenizer, float32."""

from __future__ import annotations

import pytest
import torch
from schedtop.engine.build import build_engine
from schedtop.engine.contract.config import EngineConfig
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.loading.convert_gguf import converted_folder
from schedtop.engine.runner.loading.model_files import find_model
from schedtop.engine.runner.loading.pull import pulled_path
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.skipif(pulled_path("smollm2") is None, reason="smollm2 is not pulled")

PROMPTS = (
    "The capital of France is",
    "one two three four one two three four one two",
    "Write a short story about a lighthouse keeper who finds a message in a bottle. It begins on a cold morning",
    "The capital of France is Paris. The capital of Italy is",
)


@pytest.mark.parametrize("speculation", [0, 3])
def test_greedy_equals_transformers(speculation: int) -> None:
    scheduler = {"num_blocks": 6, "max_num_batched_tokens": 16, "num_speculative_tokens": speculation}
    engine = build_engine(
        EngineConfig(device="cpu", model="smollm2", dtype="float32", workload=None, scheduler=scheduler)
    )
    tokenizer = engine.worker.info.tokenizer  # type: ignore[attr-defined]
    requests = [Request(str(i), tokenizer.encode(prompt), 16) for i, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.submit(request)
    while engine.num_unfinished:
        engine.step()
    assert sum(request.num_preemptions for request in requests)
    reference = AutoModelForCausalLM.from_pretrained(
        converted_folder(find_model("smollm2"), torch.float32), dtype=torch.float32
    )
    for request in requests:
        outputs = list(request.output_token_ids)
        assert len(outputs) == 16
        with torch.inference_mode():
            logits = reference(torch.tensor([[*request.prompt_token_ids.tolist(), *outputs[:-1]]])).logits
        assert logits[0, -16:].argmax(-1).tolist() == outputs
