"""Tiny random models of every supported family, what transformers generates with them, and a serving loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from schedtop.engine.config import SchedulerConfig
from schedtop.engine.plan import Worker
from schedtop.engine.request import Request, SamplingParams
from schedtop.engine.runner.attention import TorchAttention
from schedtop.engine.runner.cache import CacheShape, PagedCache
from schedtop.engine.runner.fused import NativeAttention, NativeOperations
from schedtop.engine.runner.general import GeneralDecoder
from schedtop.engine.runner.lean import LeanDecoder, is_lean, layer_window
from schedtop.engine.runner.native import load_native
from schedtop.engine.runner.worker import ModelWorker
from schedtop.engine.scheduler.scheduler import Scheduler
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

VOCAB = 211
MODEL_LEN = 256
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**COMMON, head_dim=8, tie_word_embeddings=True),
    "llama-bias": lambda: LlamaConfig(
        **COMMON, head_dim=16, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE
    ),
    "llama-yarn": lambda: LlamaConfig(**COMMON, head_dim=8, rope_parameters=YARN_ROPE),
    "qwen2": lambda: Qwen2Config(**COMMON),
    "qwen2-window": lambda: Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**COMMON, head_dim=8),
    "mistral": lambda: MistralConfig(**COMMON, head_dim=8, sliding_window=24),
    "smollm3": lambda: SmolLM3Config(**COMMON),
}


def build_model(name: str) -> PreTrainedModel:
    """A float32 model with random weights, the same every time; no parameter keeps a special initial value."""
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.generation_config.eos_token_id = None
    return model


class Reference:
    """What `transformers.generate` gives greedily, without stopping."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._model = build_model(name)

    def __call__(self, prompt: list[int], max_tokens: int) -> list[int]:
        with torch.inference_mode():
            ids = torch.tensor([prompt])
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens
            )
        generated: list[int] = out[0, len(prompt) :].tolist()
        return generated


class Served:
    """A scheduler and a worker, stepped until all requests are done; keeps what happened on the way."""

    def __init__(self, config: SchedulerConfig, worker: Worker) -> None:
        self.scheduler = Scheduler(config)
        self.worker = worker
        self.requests: list[Request] = []
        self.preemptions = self.chunked = self.cached = self.accepted = self.mixed = 0
        self.texts: dict[int, str] = {}
        self.reasons: dict[int, str] = {}

    def add(self, prompt: list[int], max_tokens: int, sampling: SamplingParams | None = None) -> Request:
        request = Request(f"r{len(self.requests)}", np.array(prompt, dtype=np.int32), max_tokens, sampling=sampling)
        assert self.scheduler.add(request) is None
        self.requests.append(request)
        return request

    def step(self) -> None:
        plan = self.scheduler.schedule(0.0)
        result = self.worker.execute(plan)
        self.chunked += int((~plan.samples).sum())
        self.mixed += bool((plan.tokens > 8).any() and (plan.tokens == 1).any())
        self.accepted += int(np.maximum(result.num_sampled - 1, 0).sum())
        for number, text in result.texts.items():
            self.texts[number] = self.texts.get(number, "") + text
        for finish in self.scheduler.update(plan, result, 0.0).finishes:
            self.reasons[finish.number] = finish.reason
        self.scheduler.audit()

    def run(self) -> list[list[int]]:
        """The outputs of every request, in order of `add`."""
        while self.scheduler.num_unfinished:
            self.step()
        self.preemptions = sum(request.num_preemptions for request in self.requests)
        self.cached = sum(request.cached_tokens for request in self.requests)
        return [list(request.output_token_ids) for request in self.requests]


def build_worker(name: str, route: str, config: SchedulerConfig, **options: Any) -> ModelWorker:
    """A worker on the CPU whose cache has exactly the blocks of `config`."""
    model = build_model(name)
    head_size = model.model.layers[0].self_attn.head_dim
    shape = CacheShape(
        model.config.num_hidden_layers,
        config.block_size,
        model.config.num_key_value_heads,
        head_size,
        torch.float32,
    )
    cache = PagedCache(shape, config.num_blocks, torch.device("cpu"))
    attention, operations = TorchAttention(cache), None
    if route == "native":
        library = load_native(torch.float32, torch.device("cpu"))
        if library is None:
            pytest.skip("no C compiler here")
        attention, operations = NativeAttention(cache, library), NativeOperations(library)
    if route != "general":
        assert is_lean(model)
        decoder: Any = LeanDecoder(model, attention, config.max_model_len, operations)
    else:
        decoder = GeneralDecoder(model, attention)
    options.setdefault("num_speculative_tokens", config.num_speculative_tokens)
    return ModelWorker(decoder, config.block_size, torch.device("cpu"), **options)


def scheduler_config(name: str, **changes: Any) -> SchedulerConfig:
    """Small steps and a small pool; the window is the scheduler's to know where every layer has it."""
    config = CONFIGS[name]()
    values: dict[str, Any] = {
        "num_blocks": 256,
        "block_size": 8,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 16,
        "max_model_len": MODEL_LEN,
    }
    if config.model_type == "mistral":
        values["sliding_window"] = config.sliding_window
    return SchedulerConfig(**{**values, **changes})


class Lab:
    """What the tests of this folder build from."""

    vocab = VOCAB
    build_model = staticmethod(build_model)
    layer_window = staticmethod(layer_window)
    reference = staticmethod(cache(Reference))

    @staticmethod
    def serve(name: str, route: str = "lean", **changes: Any) -> Served:
        options = {key: changes.pop(key) for key in ("texts", "seed") if key in changes}
        config = scheduler_config(name, **changes)
        return Served(config, build_worker(name, route, config, **options))

    @staticmethod
    def prompts(count: int, seed: int, shared: int = 0, low: int = 3, high: int = 60) -> list[list[int]]:
        """Random prompts of `low` to `high` own tokens, every second one behind the same `shared` tokens."""
        rng = np.random.default_rng(seed)
        head = rng.integers(3, VOCAB, shared).tolist()
        sizes = rng.integers(low, high, count)
        return [
            (head if index % 2 else []) + rng.integers(3, VOCAB, size).tolist() for index, size in enumerate(sizes)
        ]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads, and the machine may be busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
