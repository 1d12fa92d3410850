"""A model's shape from its `config.json`: `sim:PATH@GPU`. What is not understood is refused, naming the field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from schedtop.engine.contract.config import ConfigError
from schedtop.engine.sim.models import ModelShape
from schedtop.engine.sim.state_layers import delta_layers, mamba2_layers

Config = Mapping[str, Any]
Fields = dict[str, Any]


def read_shape(path: Path) -> ModelShape:
    """The shape that a `config.json`, or a folder with one, describes; named after its folder or file.

    Raises `ConfigError` for a file that cannot be read, an architecture or quantisation that is not known, and a
    field that would change the shape in a way that is not known.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = "not valid JSON" if isinstance(error, ValueError | RecursionError) else error.strerror
        raise ConfigError(f"{file}: {reason}") from None
    name = path.name if path.is_dir() else (path.parent.name if path.name == "config.json" else path.stem)
    try:
        return shape_of(config, name or "model")
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def shape_of(config: Config, name: str) -> ModelShape:
    """The shape that a configuration describes. Raises `ConfigError`."""
    if not isinstance(config, dict):
        raise ConfigError("a model's configuration is a JSON object")
    settings = config.get("quantization_config")
    weight_bytes, fp8_arithmetic = _quantisation(settings)
    inner = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    config = {**config, **inner}
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise ConfigError(f"model_type {kind!r} is not supported; supported are {', '.join(FAMILIES)}")
    noted = _Noted({**LEFT_OUT.get(str(kind), {}), **config})
    fields = {**_common(noted), **family(noted), "plain_attention": _plain_attention(settings)}
    for field in inner:
        if _describes_shape(field, inner[field]) and field not in noted.read:
            raise ConfigError(
                f"{field}={inner[field]!r}: is not understood for {kind}; remove it if it changes nothing"
            )
    shape = ModelShape(name, layer_weight_bytes=weight_bytes, fp8_arithmetic=fp8_arithmetic, **fields)
    _check(shape)
    return shape


def _check(shape: ModelShape) -> None:
    if shape.active_experts > shape.experts:
        raise ConfigError(f"{shape.active_experts} experts for a token, of {shape.experts} in all")
    if not 0 <= shape.dense_layers <= shape.layers:
        raise ConfigError(f"{shape.dense_layers} layers without experts, of {shape.layers} in all")
    for name, value in (("head_dim", shape.head_dim), ("vocab_size", shape.vocab)):
        if not value:
            raise ConfigError(f"{name}=0: must be above 0")


class _Noted(dict[str, Any]):
    """A configuration that notes which of its fields were read."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


_SHAPES = re.compile(
    r"^num_|^n_|_(size|dim|rank|heads|layers?|step|freq|pattern)$|expert|window|layer_types|chunk|conv|ssm|mamba|linear_attn"
)
"""Names of fields that describe a shape."""
_CHANGE_NOTHING = frozenset(
    [
        *("num_beams", "num_beam_groups", "num_return_sequences", "num_labels"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "chunk_size_feed_forward"),
        *("n_group", "ep_size", "num_nextn_predict_layers", "qk_head_dim"),  # DeepSeek
        *("no_rope_layers", "_sliding_window_pattern", "experts_per_token"),  # Llama 4, Gemma 3, gpt-oss
        "rope_local_base_freq",  # Gemma 3
        "mamba_chunk_size",
    ]
)
"""Shape-like names that do not matter here."""


def _describes_shape(field: str, value: Any) -> bool:
    """Whether a field that nobody read might change the shape: it is named so, and says something."""
    if not value or isinstance(value, dict) or field in _CHANGE_NOTHING:
        return False
    return bool(_SHAPES.search(field)) and not (isinstance(value, list) and set(map(str, value)) == {FULL})


FULL = "full_attention"


def _number(config: Config, *names: str, default: int | None = None) -> int:
    """The first of some fields that is present, as a whole number."""
    for name, value in [(name, config.get(name)) for name in names]:
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise ConfigError(f"{name}={value!r}: must be a whole number from 0 to {(1 << 32) - 1}")
        return value
    if default is None:
        raise ConfigError(f"{names[0]} is missing")
    return default


def _listed(config: Config, name: str) -> list[Any]:
    """A field that is a list; empty where it is not there."""
    value = config.get(name)
    if value is not None and not isinstance(value, list):
        raise ConfigError(f"{name}={value!r}: must be a list")
    return value or []


def _layer_kinds(config: Config) -> list[str]:
    """What each layer is by `layer_types`; empty where it does not say."""
    kinds, layers = _listed(config, "layer_types"), _number(config, "num_hidden_layers")
    if kinds and len(kinds) != layers:
        raise ConfigError(f"layer_types: names {len(kinds)} layers, of {layers}")
    return list(map(str, kinds))


def _common(config: Config) -> Fields:
    heads, hidden = _number(config, "num_attention_heads"), _number(config, "hidden_size")
    if not heads or not hidden or not _number(config, "num_hidden_layers"):
        raise ConfigError("num_hidden_layers, hidden_size and num_attention_heads must be above 0")
    kv_heads = _number(config, "num_key_value_heads", default=heads)
    if not kv_heads or heads % kv_heads:
        raise ConfigError(f"num_key_value_heads={kv_heads}: must divide num_attention_heads={heads}")
    return {
        "layers": _number(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": _number(config, "head_dim", default=hidden // heads),
        "mlp": _number(config, "intermediate_size", default=4 * hidden),
        "vocab": _number(config, "vocab_size"),
        "max_model_len": _number(config, "max_position_embeddings"),
        "tied": bool(config.get("tie_word_embeddings", False)),
    }


def _dense(config: Config) -> Fields:
    return {}


def _with_window(config: Config) -> Fields:
    """Mistral and Qwen: a window for all layers (or for those above a number, or listed), if it is in use."""
    window, above = (_number(config, name, default=0) for name in ("sliding_window", "max_window_layers"))
    in_use, kinds = config.get("use_sliding_window", True), _layer_kinds(config)
    if not window or not in_use:
        return {}
    if kinds:
        return _alternating(config, 1)
    from_layer = above if "use_sliding_window" in config else 0
    windowed = max(_number(config, "num_hidden_layers") - from_layer, 0)
    return {"window": window, "windowed_layers": windowed, "window_first": not from_layer}


def _qwen3(config: Config) -> Fields:
    return {**_with_window(config), "qk_norm": True}


def _mixtral(config: Config) -> Fields:
    experts, active = _number(config, "num_local_experts"), _number(config, "num_experts_per_tok")
    return {**_with_window(config), "experts": experts, "active_experts": active}


def _qwen3_moe(config: Config) -> Fields:
    step, alone = _number(config, "decoder_sparse_step", default=1), _listed(config, "mlp_only_layers")
    if step != 1:
        raise ConfigError(f"decoder_sparse_step={step}: only 1 is supported")
    return {
        **_with_window(config),
        "qk_norm": True,
        "mlp": _number(config, "moe_intermediate_size"),
        "experts": _number(config, "num_experts", "num_local_experts"),
        "active_experts": _number(config, "num_experts_per_tok"),
        "dense_layers": len(alone),
        "dense_mlp": _number(config, "intermediate_size"),
    }


def _llama4(config: Config) -> Fields:
    layers, step = _number(config, "num_hidden_layers"), _number(config, "interleave_moe_layer_step", default=1)
    listed = config.get("moe_layers")
    with_experts = len(listed) if isinstance(listed, list) else layers // max(step, 1)
    chunk, kinds = _number(config, "attention_chunk_size", default=0), _layer_kinds(config)
    chunked = kinds.count("chunked_attention") if kinds else layers - layers // 4
    return {
        "experts": _number(config, "num_local_experts"),
        "active_experts": _number(config, "num_experts_per_tok"),
        "shared_mlp": _number(config, "intermediate_size"),
        "dense_layers": layers - with_experts,
        "dense_mlp": _number(config, "intermediate_size_mlp"),
        "window": chunk,
        "chunked": True,
        "windowed_layers": chunked if chunk else 0,
    }


def _alternating(config: Config, every: int) -> Fields:
    """Layers with a window, all but each `every`-th one unless `layer_types` lists them."""
    layers = _number(config, "num_hidden_layers")
    window = _number(config, "sliding_window", "sliding_window_size", default=0)
    if kinds := _layer_kinds(config):
        unknown = set(kinds) - {"sliding_attention", FULL}
        if unknown:
            raise ConfigError(f"layer_types: {min(unknown)} is not supported")
        windowed, first = kinds.count("sliding_attention"), kinds[:1] == ["sliding_attention"]
    else:
        windowed, first = layers - layers // every, True
    return {"window": window, "windowed_layers": windowed if window else 0, "window_first": first}


def _gemma2(config: Config) -> Fields:
    return {**_alternating(config, 2), "norms": 4, "tied": bool(config.get("tie_word_embeddings", True))}


def _gemma3(config: Config) -> Fields:
    every = _number(config, "sliding_window_pattern", default=6)
    if not every:
        raise ConfigError("sliding_window_pattern=0: must be above 0")
    tied = bool(config.get("tie_word_embeddings", True))
    return {**_alternating(config, every), "qk_norm": True, "norms": 4, "tied": tied}


def _gpt_oss(config: Config) -> Fields:
    experts, active = _number(config, "num_local_experts"), _number(config, "num_experts_per_tok")
    return {**_alternating(config, 2), "experts": experts, "active_experts": active}


def _deepseek(config: Config) -> Fields:
    """Multi-head latent attention, routed and shared experts after some dense layers."""
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    latent, rope = _number(config, "kv_lora_rank"), _number(config, "qk_rope_head_dim")
    plain, value = _number(config, "qk_nope_head_dim"), _number(config, "v_head_dim")
    low_rank = _number(config, "q_lora_rank", default=0)
    queries = low_rank * (hidden + heads * (plain + rope)) if low_rank else hidden * heads * (plain + rope)
    state = hidden * (latent + rope) + latent * heads * (plain + value)
    if _number(config, "moe_layer_freq", default=1) != 1:
        raise ConfigError(f"moe_layer_freq={config['moe_layer_freq']}: only 1 is supported")
    routed = _number(config, "n_routed_experts", default=0)
    expert_mlp = _number(config, "moe_intermediate_size", default=0)
    fields = {
        "head_dim": (plain + rope + value) // 2,
        "latent": latent + rope,
        "attention_params": queries + state + heads * value * hidden,
    }
    if not routed:
        return fields
    return {
        **fields,
        "mlp": expert_mlp,
        "experts": routed,
        "active_experts": _number(config, "num_experts_per_tok"),
        "shared_mlp": _number(config, "n_shared_experts", default=0) * expert_mlp,
        "dense_layers": _number(config, "first_k_dense_replace", default=0),
        "dense_mlp": _number(config, "intermediate_size"),
    }


def _gpt_neox(config: Config) -> Fields:
    return {"gated": False}


def _granite_hybrid(config: Config) -> Fields:
    """Mamba-2 beside attention; routed experts, if any, beside the shared MLP that every layer has."""
    shared, experts = _number(config, "shared_intermediate_size"), _number(config, "num_local_experts", default=0)
    fields: Fields = {"state": mamba2_layers(config, _number)}
    if not experts:
        return {**fields, "mlp": shared}
    active = _number(config, "num_experts_per_tok")
    return {**fields, "experts": experts, "active_experts": active, "shared_mlp": shared}


def _gated_delta(config: Config) -> Fields:
    """Gated delta nets beside attention whose queries may have a gate of their size."""
    hidden, size = _number(config, "hidden_size"), _number(config, "head_dim", default=256)
    heads, kv_heads = _number(config, "num_attention_heads"), _number(config, "num_key_value_heads")
    gated = bool(config.get("attn_output_gate", True))
    return {
        "state": delta_layers(config, _number),
        "head_dim": size,
        "attention_params": hidden * size * ((2 + gated) * heads + 2 * kv_heads),
        "qk_norm": True,
    }


def _gated_delta_moe(config: Config) -> Fields:
    experts = _qwen3_moe(config)
    if experts["dense_layers"]:
        raise ConfigError(f"mlp_only_layers={config['mlp_only_layers']}: only [] is supported")
    shared = _number(config, "shared_expert_intermediate_size")
    # The shared expert's gate is one vector more.
    return {**experts, **_gated_delta(config), "shared_mlp": shared, "norms": 3}


FAMILIES: dict[str, Callable[[Config], Fields]] = {
    "llama": _dense,
    "mistral": _with_window,
    "qwen2": _with_window,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "llama4_text": _llama4,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_neox": _gpt_neox,
    "granitemoehybrid": _granite_hybrid,
    "qwen3_next": _gated_delta_moe,
    "qwen3_5_text": _gated_delta,
    "qwen3_5_moe_text": _gated_delta_moe,
}
"""Architectures that can be simulated by their `model_type` (that of the text model, where there is one inside)."""

LEFT_OUT: dict[str, Fields] = {
    "qwen3_next": {"intermediate_size": 0},
    "qwen3_5_moe_text": {"intermediate_size": 0},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
}
"""Defaults that an architecture's published files leave out."""


def _quantisation(settings: Any) -> tuple[float, bool]:
    """Bytes of a weight inside the layers, and whether products with it run in FP8."""
    if settings is None:
        return 2, True
    if not isinstance(settings, dict):
        raise ConfigError("quantization_config must be an object")
    method = settings.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        return 1, True
    if method in ("awq", "gptq"):
        return _bytes_of_bits(_number(settings, "bits", "w_bit", default=4), _group(settings, 128)), False
    if method == "mxfp4":
        return _bytes_of_bits(4, group=32, scale_bits=8), False
    if method == "compressed-tensors":
        weights, inputs = _compressed(settings)
        bits = _number(weights, "num_bits")
        scale_bits = 8 if weights.get("type") == "float" else 16
        size = 1.0 if bits == 8 else _bytes_of_bits(bits, _group(weights), scale_bits)
        return size, bits == 8 and bool(inputs)
    raise ConfigError(f"quant_method {method!r} is not supported; supported are {QUANTISATIONS}")


def _plain_attention(settings: Any) -> bool:
    """Whether attention weights are not quantised."""
    if not isinstance(settings, dict):
        return False
    names = _listed(settings, "modules_to_not_convert") or _listed(settings, "ignore")
    return any("self_attn" in str(name) for name in names)


QUANTISATIONS = "fp8, fbgemm_fp8, awq, gptq, mxfp4, compressed-tensors"


def _compressed(settings: Config) -> tuple[Config, Config | None]:
    groups = settings.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise ConfigError("quantization_config.config_groups names no weights")
    return group["weights"], group.get("input_activations")


def _group(settings: Config, default: int | None = None) -> float:
    """Weights that share a scale; whole rows, so many that the scale does not matter, for none or -1."""
    size = settings.get("group_size", default)
    if size in (None, -1):
        return math.inf
    return max(_number(settings, "group_size", default=default), 1)


def _bytes_of_bits(bits: int, group: float, scale_bits: int = 16) -> float:
    """Bytes of a weight with its share of the scale of its group."""
    return (bits + scale_bits / group) / 8
