"""The peer's side of the CPU benchmark: run by a Python that has vLLM, never by hand.

python benchmarks/cpu_vllm.py MODEL CONCURRENCY compiled|eager
"""

from __future__ import annotations

import os
import sys
import time

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever else is printed is not an answer
os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
)
BEGAN_S = time.perf_counter()

from cpu_load import Meter, Tokens, obey  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402


def main() -> None:
    model, concurrency, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    llm = LLM(
        model,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=concurrency,
        max_num_batched_tokens=2048,
        enforce_eager=mode == "eager",
    )
    load_s = time.perf_counter() - BEGAN_S
    engine = llm.llm_engine

    def submit(name: str, prompt: str, max_tokens: int) -> None:
        engine.add_request(name, prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))

    def step() -> list[Tokens]:
        return [(output.request_id, len(output.outputs[0].token_ids)) for output in engine.step()]

    obey(Meter(submit, step, concurrency), load_s, OUT)


if __name__ == "__main__":
    main()
