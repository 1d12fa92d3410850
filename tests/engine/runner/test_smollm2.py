"""SmolLM2 itself, where it has been pulled: real text, the real tokenizer, float32."""

from __future__ import annotations

import numpy as np
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
    reference.generation_config.eos_token_id = None
    for request in requests:
        ids = torch.from_numpy(request.prompt_token_ids.astype(np.int64))[None]
        mask = torch.ones_like(ids)
        out = reference.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=16)
        assert list(request.output_token_ids) == out[0, ids.shape[1] :].tolist()
