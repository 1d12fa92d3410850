"""Tiny random models of every supported family, what transformers picks with them, and a serving loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import SchedulerConfig
from schedtop.engine.handoff.plan import StepPlan, Worker
from schedtop.engine.handoff.request import Request
from schedtop.engine.runner.drafting.draft_model import DraftModel, scratch_columns
from schedtop.engine.runner.forward import Forward
from schedtop.engine.runner.gpu.backend import make_kernel_decoder
from schedtop.engine.runner.gpu.kernel_decoders import KernelGeneralDecoder
from schedtop.engine.runner.gpu.kernel_sampler import KernelSampler
from schedtop.engine.runner.gpu.torch_fallback import GuardedDecoder
from schedtop.engine.runner.loading.route import layer_soft_cap
from schedtop.engine.runner.models.fused import NativeAttention, NativeOperations
from schedtop.engine.runner.models.general import GeneralDecoder
from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache
from schedtop.engine.runner.models.llama import LeanDecoder, is_lean, layer_window
from schedtop.engine.runner.models.native import Native, native_choices
from schedtop.engine.runner.models.soft_capped_attention import torch_attention
from schedtop.engine.runner.worker import ModelWorker
from schedtop.engine.scheduler.scheduler import Scheduler
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

CPU = torch.device("cpu")
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
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "short_factor": [1.0, 1.3, 1.7, 2.5],
    "long_factor": [2.0, 4.0, 9.0, 20.0],
    "original_max_position_embeddings": MODEL_LEN,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**COMMON, head_dim=8, tie_word_embeddings=True),
    "llama-bias": lambda: LlamaConfig(
        **COMMON, head_dim=16, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE
    ),
    "llama-yarn": lambda: LlamaConfig(**COMMON, head_dim=8, rope_parameters=YARN_ROPE),
    "llama-longrope": lambda: LlamaConfig(**COMMON, head_dim=8, rope_parameters=LONG_ROPE),
    "llama-dynamic": lambda: LlamaConfig(**COMMON, head_dim=8, rope_parameters=DYNAMIC_ROPE),
    "qwen2": lambda: Qwen2Config(**COMMON),
    "qwen2-window": lambda: Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=20, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**COMMON, head_dim=8),
    "mistral": lambda: MistralConfig(**COMMON, head_dim=8, sliding_window=24),
    "smollm3": lambda: SmolLM3Config(**COMMON),
    "gemma2": lambda: Gemma2Config(
        **COMMON,
        head_dim=8,
        sliding_window=20,
        query_pre_attn_scalar=2,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=8.0,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **COMMON,
        head_dim=8,
        sliding_window=20,
        query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


KERNEL_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_window_layers": 1,
}
"""Head sizes that the kernels know, and little work beside them: an interpreter runs them."""

LAYER_KINDS = ["sliding_attention", "full_attention"]


def build_config(name: str) -> Any:
    """The configuration `name` means; `name@kernels` is the same family in sizes that the kernels run."""
    family, _, small = name.partition("@")
    config = CONFIGS[family]()
    if not small:
        return config
    values = {**config.to_dict(), **KERNEL_SIZES}
    if "sliding_attention" in (values.pop("layer_types", None) or ()) and config.model_type != "mistral":
        values["layer_types"] = LAYER_KINDS
    if values.get("sliding_window"):
        values["sliding_window"] = 6
    return type(config)(**values)


def build_model(name: str) -> PreTrainedModel:
    """A float32 model with random weights, the same every time; no parameter keeps a special initial value."""
    torch.manual_seed(11)
    # Only transformers' eager attention knows a cap on scores.
    model = AutoModelForCausalLM.from_config(
        build_config(name), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.generation_config.eos_token_id = None
    return model


kept_model = cache(build_model)


def greedy_choices(name: str, prompt: list[int], output: list[int]) -> list[int]:
    """What transformers picks after the prompt and after each token of `output` but the last, in one pass.

    It is `output` exactly where `transformers.generate` would give that greedily.
    """
    with torch.inference_mode():
        logits = kept_model(name)(torch.tensor([prompt + output[:-1]])).logits
    choices: list[int] = logits[0, len(prompt) - 1 :].argmax(-1).tolist()
    return choices


class Served:
    """A scheduler and a worker, stepped until all requests are done; keeps what happened on the way."""

    def __init__(self, config: SchedulerConfig, worker: Worker) -> None:
        self.scheduler = Scheduler(config)
        self.worker = worker
        self.requests: list[Request] = []
        self.preemptions = self.chunked = self.cached = self.accepted = self.mixed = 0
        self.drafts = self.steps = 0
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
        self.steps += 1
        self.drafts += int(plan.drafts[~padded(plan)].sum())
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


def padded(plan: StepPlan) -> Any:
    """Rows whose drafts, if any, are placeholders that nobody drafted."""
    fresh = [entry.request.number for entry in plan.started]
    return np.isin(plan.numbers, fresh)


def build_worker(name: str, route: str, config: SchedulerConfig, **options: Any) -> ModelWorker:
    """A worker on the CPU whose cache has exactly the blocks of `config`; `draft` names a draft model."""
    options.setdefault("num_speculative_tokens", config.num_speculative_tokens)
    tell = options.pop("tell", refuse)
    decoder = build_decoder(name, route, config, tell)
    draft, draft_tokens = options.pop("draft", None), options.pop("draft_tokens", config.max_num_batched_tokens)
    if draft is not None:
        num_rows = options.pop("scratch_rows", config.max_num_seqs)
        spare = num_rows * scratch_columns(config.block_size)
        decoder_of_draft = build_decoder(draft, route, config, tell, spare)
        graphs_of_draft = None if options.get("graphs") is None else options["graphs"](decoder_of_draft, config)
        options["drafter"] = DraftModel(
            Forward(decoder_of_draft, CPU, graphs_of_draft),
            block_size=config.block_size,
            num_blocks=config.num_blocks,
            num_rows=num_rows,
            max_tokens=draft_tokens,
            max_model_len=config.max_model_len,
            window=config.sliding_window,
        )
    if route.startswith("kernels"):
        graphs = options.pop("graphs", None)
        options["graphs"] = None if graphs is None else graphs(decoder, config)
        options["sampler"] = KernelSampler(CPU, tell)
    return ModelWorker(decoder, config.block_size, CPU, **options)


def build_decoder(
    name: str, route: str, config: SchedulerConfig, tell: Callable[[str], None], spare_blocks: int = 0
) -> Any:
    """A model's decoder on a route, with a cache of the blocks of `config` and some to spare."""
    model = build_model(name)
    head_size = model.model.layers[0].self_attn.head_dim
    shape = CacheShape(
        model.config.num_hidden_layers,
        config.block_size,
        model.config.num_key_value_heads,
        head_size,
        torch.float32,
    )
    cache = PagedCache(shape, config.num_blocks + spare_blocks, CPU)
    if route.startswith("kernels"):
        return kernel_decoder(model, route, cache, config.max_model_len, tell)
    attention, operations = torch_attention(cache, layer_soft_cap(model.config)), None
    if route.startswith("native"):
        native = pick_native(torch.float32, route.partition(":")[2])
        attention, operations = NativeAttention(cache, native), NativeOperations(native)
    if route == "general":
        return GeneralDecoder(model, attention)
    assert is_lean(model)
    return LeanDecoder(model, attention, config.max_model_len, operations)


def pick_native(dtype: torch.dtype, instructions: str = "") -> Native:
    """The compiled routines for an instruction set, or the best there are."""
    for choice in native_choices(dtype):
        if instructions in ("", choice.instructions):
            return choice
    pytest.skip(f"no compiled routines here for {instructions or dtype}")


def refuse(line: str) -> None:
    """What the kernels have to tell is a failure."""
    raise AssertionError(line)


def kernel_decoder(
    model: PreTrainedModel, route: str, cache: PagedCache, max_model_len: int, tell: Callable[[str], None]
) -> GuardedDecoder:
    """The model on kernels, interpreted: by the route it would take, or by the general one."""
    soft_cap = layer_soft_cap(model.config)
    if route == "kernels-general":
        return GuardedDecoder(KernelGeneralDecoder(model, None), cache, tell, soft_cap)
    return make_kernel_decoder(model, cache, max_model_len, soft_cap, tell)


def scheduler_config(name: str, **changes: Any) -> SchedulerConfig:
    """Small steps and a small pool; the window is the scheduler's to know where every layer has it."""
    config = build_config(name)
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


OPTIONS = ("texts", "seed", "graphs", "tell", "draft", "draft_tokens", "scratch_rows")


class Lab:
    """What the tests of this folder build from."""

    vocab = VOCAB
    pick_native = staticmethod(pick_native)
    build_config = staticmethod(build_config)
    build_model = staticmethod(build_model)
    layer_window = staticmethod(layer_window)
    greedy_choices = staticmethod(greedy_choices)

    @staticmethod
    def serve(name: str, route: str = "lean", **changes: Any) -> Served:
        options = {key: changes.pop(key) for key in OPTIONS if key in changes}
        config = scheduler_config(name, **changes)
        return Served(config, build_worker(name, route, config, **options))

    @staticmethod
    def check_greedy(name: str, prompts: list[list[int]], outputs: list[list[int]], *max_tokens: int) -> None:
        """Outputs are those of transformers, as long as `max_tokens` (one for all, or one each) allows."""
        assert [len(output) for output in outputs] == list(
            max_tokens if len(max_tokens) > 1 else max_tokens * len(prompts)
        )
        for prompt, output in zip(prompts, outputs, strict=True):
            assert output == greedy_choices(name, prompt, output)

    @staticmethod
    def decoder(name: str, route: str, config: SchedulerConfig) -> Any:
        return build_decoder(name, route, config, refuse)

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
def lab(quick_interpreter: None) -> Lab:
    return Lab()
