"""Layers that keep one state of fixed size instead of keys and values: Mamba-2, and gated delta nets.

Their groups share the pool with full attention, so a block must hold a whole state: its size in tokens follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from schedtop.engine.contract.config import ConfigError
from schedtop.engine.contract.kv_groups import KVGroup

KERNEL_BLOCK = 16
"""Blocks are a multiple of what attention kernels read at once."""

NUMBER_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}

GROUP = KVGroup(mamba="align")
"""Of such layers where prefixes are cached: a state is kept at the ends of chunks."""


@dataclass(frozen=True, slots=True)
class StateLayers:
    """`count` layers of a model, the first one among them where `first`.

    A layer keeps a state of `heads` × `head_numbers`, each of `number_bytes`, and the last `conv_kernel` - 1 positions
    of its convolution's `conv_width` + `conv_groups` × `group_width` numbers in bf16, one more for each draft.
    `params` are its weights without norms and MLP.
    """

    count: int
    first: bool
    heads: int
    head_numbers: int
    conv_kernel: int
    conv_width: int
    params: int
    conv_groups: int = 1
    group_width: int = 0
    number_bytes: int = 2

    @property
    def numbers(self) -> int:
        """Of a layer's state."""
        return self.heads * self.head_numbers

    def state_bytes(self, ranks: int = 1, drafts: int = 0) -> int:
        """What one of `ranks` GPUs keeps of a layer; groups that cannot be divided are repeated, as in vLLM."""
        groups = self.conv_groups + (ranks - self.conv_groups if self.conv_groups % ranks else 0)
        width = (self.conv_width + groups * self.group_width) // ranks
        return width * (self.conv_kernel - 1 + drafts) * 2 + self.numbers // ranks * self.number_bytes

    def block_size(self, wanted: int, token_bytes: int, ranks: int = 1, drafts: int = 0) -> int:
        """Tokens of a block, at least the `wanted`: so many that keys and values of an attention layer, of
        `token_bytes` each, take no less than a state (vLLM's `_align_hybrid_block_size`)."""
        unit = max(wanted, KERNEL_BLOCK)
        size = unit * -(-self.state_bytes(ranks, drafts) // (unit * token_bytes))
        return max(wanted, -(-size // KERNEL_BLOCK) * KERNEL_BLOCK)


Number = Callable[..., int]
"""Reads a field of a configuration (`model_config.number`)."""


def mamba2_layers(config: Mapping[str, Any], number: Number) -> StateLayers:
    """Granite 4 hybrid: the layers that `layer_types` calls `mamba`. Raises `ConfigError`."""
    named = {name: config.get(name) for name in ("layer_types", "layers_block_type")}
    name = next((name for name, kinds in named.items() if kinds is not None), "layer_types")
    kinds = _kinds(named[name], name, number(config, "num_hidden_layers"), {"mamba"})
    hidden, heads = number(config, "hidden_size"), number(config, "mamba_n_heads")
    width = number(config, "mamba_expand", default=2) * hidden
    if not heads or width % heads or config.get("mamba_d_head") not in (None, "auto", width // heads):
        raise ConfigError(
            f"mamba_d_head={config.get('mamba_d_head')!r}: mamba_n_heads={heads} of that size must be"
            f" mamba_expand × hidden_size = {width} wide"
        )
    state, groups = number(config, "mamba_d_state"), number(config, "mamba_n_groups", default=1)
    kernel, conv = number(config, "mamba_d_conv", default=4), width + 2 * groups * state
    bias = conv * bool(config.get("mamba_conv_bias", True))
    projections = hidden * (width + conv + heads) + width * hidden
    if config.get("mamba_proj_bias"):
        projections += width + conv + heads + hidden
    return StateLayers(
        count=kinds.count("mamba"),
        first=kinds[0] == "mamba",
        heads=heads,
        head_numbers=width // heads * state,
        conv_kernel=kernel,
        conv_width=width,
        conv_groups=groups,
        group_width=2 * state,
        params=projections + conv * kernel + bias + 3 * heads + width,
    )


def delta_layers(config: Mapping[str, Any], number: Number) -> StateLayers:
    """Qwen3-Next and Qwen3.5: the layers that `layer_types` calls `linear_attention`. Raises `ConfigError`."""
    named, layers = config.get("layer_types"), number(config, "num_hidden_layers")
    if named is None:
        every = max(number(config, "full_attention_interval", default=4), 1)
        named = [f"{'linear' if layer % every else 'full'}_attention" for layer in range(1, layers + 1)]
    kinds = _kinds(named, "layer_types", layers, {"linear_attention"})
    hidden, values = number(config, "hidden_size"), number(config, "linear_num_value_heads")
    key_size, value_size = number(config, "linear_key_head_dim"), number(config, "linear_value_head_dim")
    key_width, value_width = number(config, "linear_num_key_heads") * key_size, values * value_size
    kernel, conv = number(config, "linear_conv_kernel_dim", default=4), 2 * key_width + value_width
    kept = config.get("mamba_ssm_dtype", "bfloat16")
    if kept not in NUMBER_BYTES:
        raise ConfigError(f"mamba_ssm_dtype={kept!r}: must be one of {', '.join(NUMBER_BYTES)}")
    return StateLayers(
        count=kinds.count("linear_attention"),
        first=kinds[0] == "linear_attention",
        heads=values,
        head_numbers=key_size * value_size,
        conv_kernel=kernel,
        conv_width=conv,
        params=hidden * (conv + 2 * value_width + 2 * values) + conv * kernel + 2 * values + value_size,
        number_bytes=NUMBER_BYTES[kept],
    )


def _kinds(kinds: object, name: str, layers: int, own: set[str]) -> list[str]:
    """What each layer is by a field of this name: one of `own`, or attention; at least one of both."""
    if not isinstance(kinds, list) or len(kinds) != layers or not all(isinstance(kind, str) for kind in kinds):
        raise ConfigError(f"{name}: must name what each of the {layers} layers is")
    known = own | {"attention", "full_attention"}
    if unknown := set(kinds) - known:
        raise ConfigError(f"{name}: {min(unknown)} is not supported; known are {', '.join(sorted(known))}")
    if not set(kinds) & own or not set(kinds) - own:
        raise ConfigError(f"{name}: must name layers of both kinds")
    return kinds
