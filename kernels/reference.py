"""Plain-torch answers to what the kernels compute, for tests and for devices without Triton.

Every function computes in `compute_dtype` (float64 by default) and returns that dtype: callers
round. Nothing here is fast, and nothing here needs Triton.
"""

from __future__ import annotations

import torch
from schedtop.kernels.sampling_params import SamplingTensors

FLOAT64 = torch.float64


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write keys and values to their slots, in place; shapes as `kv_write.kv_write`."""
    block_size = k_cache.shape[1]
    live = slot_mapping >= 0
    slots = slot_mapping[live]
    k_cache[slots // block_size, slots % block_size] = key[live].to(k_cache.dtype)
    v_cache[slots // block_size, slots % block_size] = value[live].to(v_cache.dtype)


def gather_row(cache: torch.Tensor, blocks: torch.Tensor, seq_len: int) -> torch.Tensor:
    """The first `seq_len` tokens of a row, [seq_len, num_kv_heads, head_size], in token order."""
    num_blocks = -(-seq_len // cache.shape[1])
    return cache[blocks[:num_blocks].long()].flatten(0, 1)[:seq_len]


def attend_row(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention of a row's last `query_len` tokens to its `seq_len` keys.

    query: [query_len, num_heads, head_size]; keys, values: [seq_len, num_kv_heads, head_size].
    """
    query_len, num_heads, _ = query.shape
    seq_len, num_kv_heads, _ = keys.shape
    group = num_heads // num_kv_heads
    keys, values = (tensor.repeat_interleave(group, dim=1) for tensor in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    query_positions = torch.arange(seq_len - query_len, seq_len, device=query.device)[:, None]
    key_positions = torch.arange(seq_len, device=query.device)[None, :]
    seen = key_positions <= query_positions
    if window is not None:
        seen &= key_positions > query_positions - window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    # A key no query sees may hold NaN, which a weight of 0 would not keep out.
    values = values.masked_fill(~seen.any(dim=0)[:, None, None], 0.0)
    return torch.einsum("hqk,khd->qhd", weights, values)


def paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    compute_dtype: torch.dtype = FLOAT64,
) -> torch.Tensor:
    """Attention over the paged cache; shapes as `paged_attention.paged_attention`. Padding gives zeros."""
    out = torch.zeros(query.shape, dtype=compute_dtype, device=query.device)
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for row, seq_len in enumerate(lengths):
        begin, end = starts[row], starts[row + 1]
        if begin == end or seq_len == 0:
            continue
        keys, values = (
            gather_row(cache, block_table[row], seq_len).to(compute_dtype) for cache in (k_cache, v_cache)
        )
        out[begin:end] = attend_row(
            query[begin:end].to(compute_dtype), keys, values, scale=scale, window=window, soft_cap=soft_cap
        )
    return out


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    add_one: bool = False,
    compute_dtype: torch.dtype = FLOAT64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised x (+ residual), and the sum that was normalised, rounded to x's dtype as a model keeps it."""
    total = x if residual is None else (x.to(compute_dtype) + residual.to(compute_dtype)).to(x.dtype)
    wide = total.to(compute_dtype)
    scale = weight.to(compute_dtype) + (1.0 if add_one else 0.0)
    inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return wide * inverse * scale, total.to(compute_dtype)


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    compute_dtype: torch.dtype = FLOAT64,
) -> torch.Tensor:
    """Rotated heads; x: [num_tokens, num_heads, head_size], cos_sin as `rotary.rotary`."""
    wide = x.to(compute_dtype)
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions].to(compute_dtype)[:, None, :].chunk(2, dim=-1)
    first, second, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def silu_mul(gate: torch.Tensor, up: torch.Tensor, compute_dtype: torch.dtype = FLOAT64) -> torch.Tensor:
    """silu(gate) * up."""
    wide = gate.to(compute_dtype)
    return wide * torch.sigmoid(wide) * up.to(compute_dtype)


def logit_gaps(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """How far each logit is below its row's largest, in units of temperature; float32 as in the kernel."""
    wide = logits.float()
    return (wide.amax(dim=-1, keepdim=True) - wide) / temperature.clamp_min(1e-30)[:, None]


def kept_tokens(gaps: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """Which tokens min-p, top-k and top-p leave, in this order; a tie with the last kept token is kept too."""
    kept = torch.zeros_like(gaps, dtype=torch.bool)
    for row in range(gaps.shape[0]):
        gap = gaps[row]
        limit = torch.tensor(torch.finfo(torch.float32).max)
        if (min_p := float(params.min_p[row])) > 0:
            limit = torch.minimum(limit, -torch.log(torch.tensor(min_p)))
        inside = torch.sort(gap[gap <= limit]).values
        if 0 < (top_k := int(params.top_k[row])) < len(inside):
            inside = inside[inside <= inside[top_k - 1]]
        mass = torch.exp(-inside.double()).cumsum(0)
        if (top_p := float(params.top_p[row])) < 1:
            enough = int((mass < top_p * mass[-1]).sum())
            inside = inside[: enough + 1]
        kept[row] = gap <= inside[-1]
    return kept


def philox_word(seed: int, position: int, tokens: torch.Tensor) -> torch.Tensor:
    """First word of Philox4x32-10 (Salmon et al., SC 2011) with counter (token, position, 0, 0); int64."""
    mask = 0xFFFFFFFF
    words = [tokens.long(), torch.full_like(tokens.long(), position & mask)]
    words += [torch.zeros_like(words[0]), torch.zeros_like(words[0])]
    key_low, key_high = seed & mask, (seed >> 32) & mask
    for _ in range(10):
        # int64 wraps, but the bits of the 64-bit product are right; the shift's sign bits are masked away.
        low, high = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [
            ((high >> 32) & mask) ^ words[1] ^ key_low,
            high & mask,
            ((low >> 32) & mask) ^ words[3] ^ key_high,
            low & mask,
        ]
        key_low, key_high = (key_low + 0x9E3779B9) & mask, (key_high + 0xBB67AE85) & mask
    return words[0]


def race_times(seed: int, position: int, num_tokens: int) -> torch.Tensor:
    """Exponential waiting times of a request's tokens at a position, float64 [num_tokens]."""
    bits = philox_word(seed, position, torch.arange(num_tokens))
    uniform = ((bits.double() + 0.5) * 2.0**-32).clamp_max(1 - 2.0**-24)
    return -torch.log1p(-uniform)


def sample(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """The sampled token of every row, int64 [num_rows]; see `sampling.sample`."""
    gaps = logit_gaps(logits, params.temperature)
    kept = kept_tokens(gaps, params)
    tokens = logits.float().argmax(dim=-1)
    for row in range(logits.shape[0]):
        if params.temperature[row] == 0:
            continue
        times = race_times(int(params.seeds[row]), int(params.positions[row]), logits.shape[1])
        scores = (-gaps[row].double() - torch.log(times)).masked_fill(~kept[row], float("-inf"))
        tokens[row] = scores.argmax()
    return tokens
