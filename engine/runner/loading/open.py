"""From settings to a worker that is ready: device, weights, pool, tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.contract.config import ConfigError, EngineConfig
from schedtop.engine.contract.knobs import BY_NAME
from schedtop.engine.contract.start_settings import check_settings
from schedtop.engine.runner.batch import Decoder
from schedtop.engine.runner.detokenize import Texts
from schedtop.engine.runner.drafting.draft_model import DraftModel, scratch_columns
from schedtop.engine.runner.forward import Forward
from schedtop.engine.runner.gpu.backend import make_graphs
from schedtop.engine.runner.gpu.graphs import DecodeGraphs
from schedtop.engine.runner.gpu.kernel_sampler import KernelSampler
from schedtop.engine.runner.gpu.torch_fallback import GuardedDecoder
from schedtop.engine.runner.loading.convert_gguf import convert
from schedtop.engine.runner.loading.hub import fetch
from schedtop.engine.runner.loading.hugepages import advise_huge_pages
from schedtop.engine.runner.loading.model_files import ModelFiles, look_up, look_up_draft
from schedtop.engine.runner.loading.pool_memory import Tenant, pool_blocks
from schedtop.engine.runner.loading.route import describe_route, make_attention, make_decoder, route_name
from schedtop.engine.runner.loading.tokenizer import Tokenizer, load_tokenizer
from schedtop.engine.runner.loading.weights import check_rope, choose_dtype, load_config, load_weights
from schedtop.engine.runner.models.kv_cache import CacheShape, PagedCache
from schedtop.engine.runner.models.llama import layer_window
from schedtop.engine.runner.worker import ModelWorker
from transformers import PreTrainedModel

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
CPU_DEFAULTS = {"max_num_batched_tokens": 256, "max_num_seqs": 16}
"""Steps of the default model stay under a quarter of a second on two cores."""
DRAFT_DEFAULTS = {"num_speculative_tokens": 4, "draft_slots": 1}
"""With a draft model, which takes in the token that a step gave each request: one row more than its model's."""
WORTH_HUGE_PAGES_BYTES = 64 << 20
"""Weights from this size on stream from memory in every step."""

OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the rest of the engine needs to know of an open model. `device` says which code runs it as well.

    `sliding_window` is given only where every layer has it, so that blocks before it may be released. `defaults`
    are scheduler settings that suit the device, for those not set. `sampling` is the model's own advice.
    `drafts` names who drafts.
    """

    model: str
    device: str
    dtype: str
    vocab_size: int
    max_model_len: int
    num_blocks: int
    sliding_window: int | None
    eos_token_ids: frozenset[int]
    sampling: SamplingParams
    tokenizer: Tokenizer | None
    defaults: dict[str, Any] = field(default_factory=dict)
    drafts: str = ""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a model takes, known before its weights are read. `max_model_len` is what will be served, in tokens."""

    vocab_size: int
    max_model_len: int
    tokenizer: Tokenizer | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory; `num_bytes` are its weights'. A decoder may take the weights out of it."""

    files: ModelFiles
    model: PreTrainedModel
    dtype: torch.dtype
    tokenizer: Tokenizer | None
    num_bytes: int


def open_model(
    config: EngineConfig,
    on_stage: OnStage = lambda name: None,
    kernels: bool | None = None,
    on_input: Callable[[ModelInput], None] = lambda taken: None,
) -> tuple[ModelWorker, ModelInfo]:
    """A worker for the model and device of `config`. Raises `ConfigError` with one line that says what to do.

    `kernels`: whether to run on this project's kernels; None: on a GPU. `on_stage` also gets what goes wrong there.
    `on_input` may refuse what is to be served, before the weights are read.
    """
    checked = check_settings(config)
    files = look_up(config)
    device = choose_device(config.device)

    def before_weights(model_config: Any, tokenizer: Tokenizer | None) -> None:
        longest = _model_len(model_config, checked)
        check_rope(files.name, model_config, longest)
        on_input(ModelInput(model_config.vocab_size, longest, tokenizer))

    loaded = load_model(files, config.dtype, device, on_stage, before_weights)
    defaults = {**device_defaults(device), **(DRAFT_DEFAULTS if config.draft_model is not None else {})}
    settings = {**defaults, **checked}
    # A draft model's sequences are not shorter.
    settings["max_model_len"] = _model_len(loaded.model.config, settings)
    notices: list[str] = []

    def tell(line: str) -> None:
        if line not in notices:  # a draft model may say the same
            notices.append(line)
            on_stage(line)

    tenants = [_host(loaded, device, settings, kernels, tell)]
    on_stage(f"running {files.name} on {describe_route(tenants[0].decoder)}")
    _advise_huge_pages(loaded, device, move=True)
    draft = None
    if config.draft_model is not None:
        draft = load_draft(config.draft_model, loaded, config.dtype, device, on_stage, settings["max_model_len"])
        tenants.append(_host(draft, device, settings, kernels, tell, scratch_blocks(settings)))
    on_stage("sizing the KV cache")
    num_blocks: int = settings.get("num_blocks") or pool_blocks(config, tenants, device, settings)
    for tenant in tenants:
        tenant.use_cache(PagedCache(tenant.shape, num_blocks + tenant.spare_blocks, device))
    _advise_huge_pages(loaded, device, move=False)
    drafter = None
    if draft is not None:
        drafter = _make_drafter(tenants[1], num_blocks, device, settings, _common_window(loaded.model), tell)
    worker = _make_worker(tenants[0], loaded, device, config.seed, settings, tell, drafter)
    worker.notices = notices
    worker.info = info = _describe(loaded, draft, device, tenants[0].decoder, num_blocks, defaults)
    return worker, info


def load_model(
    files: ModelFiles,
    dtype_name: str,
    device: torch.device,
    on_stage: OnStage,
    before_weights: Callable[[Any, Tokenizer | None], None] = lambda config, tokenizer: None,
) -> Loaded:
    """The model on its device, in the dtype that the setting means there. Raises `ConfigError`."""
    if files.gguf is not None:
        on_stage(f"reading {files.name}")
        files = convert(files, choose_dtype(dtype_name, None, device))
        if files.gguf is not None:
            on_stage(f"{files.name} is too large for the model cache, or that has no room: expanded at each start")
    on_stage(f"loading {files.name}")
    files = fetch(files)
    config = load_config(files)
    dtype = choose_dtype(dtype_name, config, device)
    tokenizer = _tokenizer(files)
    before_weights(config, tokenizer)
    model = load_weights(files, config, dtype, device)
    return Loaded(files, model, dtype, tokenizer, model.num_parameters() * dtype.itemsize)


def load_draft(
    name: str, served: Loaded, dtype_name: str, device: torch.device, on_stage: OnStage, max_model_len: int
) -> Loaded:
    """A model that drafts for `served`. Raises `ConfigError` if its token ids mean something else."""
    draft = load_model(
        look_up_draft(name),
        dtype_name,
        device,
        on_stage,
        lambda config, tokenizer: check_rope(f"--draft-model {name}", config, max_model_len),
    )
    sizes = (draft.model.config.vocab_size, served.model.config.vocab_size)
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"--draft-model {name}: its vocabulary has {sizes[0]} tokens, that of {served.files.name} has {sizes[1]}:"
            " a draft model must share the model's vocabulary"
        )
    # Added tokens are left out: tokenizers of one vocabulary may add a few of their own.
    tables = [loaded.tokenizer.table.get_vocab(False) for loaded in (draft, served) if loaded.tokenizer is not None]
    if len(tables) == 2 and tables[0] != tables[1]:
        raise ConfigError(
            f"--draft-model {name}: its token ids stand for other text than those of {served.files.name}:"
            " a draft model must share the model's vocabulary"
        )
    return draft


def device_defaults(device: torch.device) -> dict[str, Any]:
    """Scheduler settings that suit a device, for those not set."""
    return CPU_DEFAULTS if device.type == "cpu" else {}


def choose_device(name: str) -> torch.device:
    """The device `name` means; `auto` is the best there is. Respects OMP_NUM_THREADS and the process's share."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: no CUDA device is usable here: use --device cpu, or a sim: device")
    if name == "cuda" or (name == "auto" and torch.cuda.is_available()):
        return torch.device("cuda", torch.cuda.current_device())
    if "OMP_NUM_THREADS" not in os.environ and hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(min(torch.get_num_threads(), len(os.sched_getaffinity(0))))
    return torch.device("cpu")


def describe_device(device: torch.device) -> str:
    """A device as the console names it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"cpu, {threads} thread{'s' if threads > 1 else ''}"


def cache_shape(model: PreTrainedModel, block_size: int, dtype: torch.dtype) -> CacheShape:
    """The paged cache's layout for a model."""
    config = model.config
    return CacheShape(
        num_layers=config.num_hidden_layers,
        block_size=block_size,
        num_kv_heads=config.num_key_value_heads,
        head_size=model.model.layers[0].self_attn.head_dim,
        dtype=dtype,
    )


def _host(
    loaded: Loaded,
    device: torch.device,
    settings: dict[str, Any],
    kernels: bool | None,
    tell: OnStage,
    spare_blocks: int = 0,
) -> Tenant:
    """The model on its fastest route, yet without a cache to serve from."""
    shape = cache_shape(loaded.model, _setting(settings, "block_size"), loaded.dtype)
    # A cache just large enough to try the route.
    decoder = make_decoder(
        loaded.model, PagedCache(shape, 1, device), device, settings["max_model_len"], kernels, tell
    )

    def use_cache(cache: PagedCache) -> None:
        if isinstance(decoder, GuardedDecoder):
            decoder.use_cache(cache)
        else:
            decoder.attention = make_attention(cache, loaded.model.config, device)

    return Tenant(shape, decoder, use_cache, spare_blocks)


def _setting(settings: dict[str, Any], name: str) -> int:
    """A scheduler setting of whole numbers, or its default."""
    return int(settings.get(name) or BY_NAME[name].default or 0)


def scratch_blocks(settings: dict[str, Any]) -> int:
    """Blocks that a draft model has for drafts beyond those that requests hold."""
    return _setting(settings, "max_num_seqs") * scratch_columns(_setting(settings, "block_size"))


def _advise_huge_pages(loaded: Loaded, device: torch.device, *, move: bool) -> None:
    if device.type == "cpu" and loaded.num_bytes > WORTH_HUGE_PAGES_BYTES:
        advise_huge_pages(move=move)


def _make_worker(
    tenant: Tenant,
    loaded: Loaded,
    device: torch.device,
    seed: int,
    settings: dict[str, Any],
    tell: OnStage,
    drafter: DraftModel | None,
) -> ModelWorker:
    return ModelWorker(
        tenant.decoder,
        tenant.shape.block_size,
        device,
        seed=seed,
        texts=None if loaded.tokenizer is None else Texts(loaded.tokenizer.table),
        num_speculative_tokens=settings.get("num_speculative_tokens") or 0,
        graphs=_make_graphs(tenant, settings, tell),
        sampler=KernelSampler(device, tell) if isinstance(tenant.decoder, GuardedDecoder) else None,
        drafter=drafter,
    )


def _make_drafter(
    tenant: Tenant,
    num_blocks: int,
    device: torch.device,
    settings: dict[str, Any],
    window: int | None,
    tell: OnStage,
) -> DraftModel:
    return DraftModel(
        Forward(tenant.decoder, device, _make_graphs(tenant, settings, tell)),
        block_size=tenant.shape.block_size,
        num_blocks=num_blocks,
        num_rows=_setting(settings, "max_num_seqs"),
        max_tokens=_setting(settings, "max_num_batched_tokens"),
        max_model_len=settings["max_model_len"],
        window=window,
    )


def _make_graphs(tenant: Tenant, settings: dict[str, Any], tell: OnStage) -> DecodeGraphs | None:
    if not isinstance(tenant.decoder, GuardedDecoder):
        return None
    return make_graphs(tenant.decoder, tenant.shape, settings["max_model_len"], tell)


def _describe(
    loaded: Loaded,
    draft: Loaded | None,
    device: torch.device,
    decoder: Decoder,
    num_blocks: int,
    defaults: dict[str, Any],
) -> ModelInfo:
    model = loaded.model
    return ModelInfo(
        model=loaded.files.name,
        device=f"{describe_device(device)}, {route_name(decoder)}",
        dtype=str(loaded.dtype).removeprefix("torch."),
        vocab_size=model.config.vocab_size,
        max_model_len=model.config.max_position_embeddings,
        num_blocks=num_blocks,
        sliding_window=_common_window(model),
        eos_token_ids=_eos_token_ids(model, loaded.tokenizer),
        sampling=_sampling_defaults(model),
        tokenizer=loaded.tokenizer,
        defaults=defaults,
        drafts="prompt look-up" if draft is None else f"draft model {draft.files.name}",
    )


def _model_len(config: Any, settings: dict[str, Any]) -> int:
    """The longest sequence that will be served, in tokens."""
    return int(settings.get("max_model_len") or config.max_position_embeddings)


def _common_window(model: PreTrainedModel) -> int | None:
    windows = {layer_window(layer, model.config) for layer in model.model.layers}
    return windows.pop() if len(windows) == 1 else None


def _tokenizer(files: ModelFiles) -> Tokenizer | None:
    folder = Path(files.source)
    if files.gguf is None and folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    return load_tokenizer(files)


def _eos_token_ids(model: PreTrainedModel, tokenizer: Tokenizer | None) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    for found in (getattr(generation, "eos_token_id", None), getattr(model.config, "eos_token_id", None)):
        if found is not None:
            return frozenset(found if isinstance(found, list | tuple) else [found])
    own = tokenizer.eos_token_id if tokenizer is not None else None
    return frozenset() if own is None else frozenset([own])


def _sampling_defaults(model: PreTrainedModel) -> SamplingParams:
    """What the model's generation settings advise; greedy where they do not ask for sampling."""
    advice = getattr(model, "generation_config", None)
    if advice is None or not getattr(advice, "do_sample", False):
        return SamplingParams()

    def value(name: str, off: float) -> float:
        found = getattr(advice, name, None)
        return off if found is None else found

    return SamplingParams(
        temperature=float(value("temperature", 1.0)),
        top_k=int(value("top_k", 0)),
        top_p=float(value("top_p", 1.0)),
        min_p=float(value("min_p", 0.0)),
        repetition_penalty=float(value("repetition_penalty", 1.0)),
    )
