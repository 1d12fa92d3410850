"""The route a GPU takes, run by Triton's interpreter: greedy outputs are those of transformers, token for token."""

from __future__ import annotations

from typing import Any

import pytest

from tests.thorough import pick

pytest.importorskip("triton")

LEAN = ("llama", "llama-bias", "llama-yarn", "qwen2", "qwen3", "mistral")
GENERAL = ("smollm3", "gemma2", "gemma3")
MAX_TOKENS = 10


@pytest.mark.parametrize("name", pick(("llama-bias", "qwen3", "mistral", "gemma2"), (*LEAN, *GENERAL)))
def test_equals_transformers(lab: Any, name: str) -> None:
    """Chunks beside decodes, a prefix hit, preemption and speculation in one run."""
    name = f"{name}@kernels"
    first = lab.prompts(1, seed=21, low=11, high=12)[0]
    second = first[:8] + lab.prompts(1, seed=22, low=3, high=4)[0]
    served = lab.serve(name, "kernels", num_blocks=4, max_num_batched_tokens=10, num_speculative_tokens=2)
    served.add(first, MAX_TOKENS)
    served.step()
    served.add(second, MAX_TOKENS)
    lab.check_greedy(name, [first, second], served.run(), MAX_TOKENS)
    # A window releases blocks: there the pool is not too small.
    assert served.chunked and served.cached and served.accepted
    assert served.preemptions or name == "mistral@kernels"
