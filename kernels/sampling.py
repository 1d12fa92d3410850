# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Choose each row's next token: greedily, or at random after temperature, min-p, top-k and top-p.

All three filters keep the tokens whose gap to the largest logit, in units of temperature, is below some limit,
so a row needs one number: the limit. Min-p gives it in closed form; top-k and top-p by bisection over the bit
patterns of the gaps, which order as the gaps do because these are never negative: at most 31 passes over the
row, and exact. Tokens that tie with the last one kept are kept too.

The draw is an exponential race: token i arrives at E_i / p_i with E_i standard exponential, and the first to
arrive is a sample of p (the Gumbel-max trick under a logarithm: Maddison, Tarlow and Minka, "A* Sampling",
2014). E_i comes from Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011),
keyed by the request's seed with the counter (token, position): neither the batch nor the tiling enters.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from schedtop.kernels.checks import (
    FLOATS,
    check_bounds,
    check_contiguous,
    check_last_contiguous,
    check_runnable,
    check_tensor,
    check_writable,
)
from schedtop.kernels.sampling_params import SamplingTensors

TILE_TOKENS = 8192
# Bit pattern of the largest finite float32: a limit that only keeps out forbidden tokens.
LARGEST_FINITE_BITS = tl.constexpr(0x7F7FFFFF)
# Above every token id.
NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _load_gaps(row_logits, start, largest, temperature, vocab_size, tile: tl.constexpr):
    """A tile's token ids and gaps to the largest logit; infinite past the vocabulary."""
    tokens = start + tl.arange(0, tile)
    logits = tl.load(row_logits + tokens, mask=tokens < vocab_size, other=float("-inf")).to(tl.float32)
    return tokens, (largest - logits) / temperature


@triton.jit
def _greedy(row_logits, vocab_size, tile: tl.constexpr):
    """The largest logit and the first token that has it."""
    best = tl.full((), float("-inf"), dtype=tl.float32)
    best_token = tl.full((), 0, dtype=tl.int32)
    for start in tl.range(0, vocab_size, tile):
        tokens = start + tl.arange(0, tile)
        logits = tl.load(row_logits + tokens, mask=tokens < vocab_size, other=float("-inf")).to(tl.float32)
        tile_best = tl.max(logits, 0)
        tile_token = tl.min(tl.where(logits == tile_best, tokens, NO_TOKEN), 0)
        # Strictly: of equal logits the earlier token stays.
        best_token = tl.where(tile_best > best, tile_token, best_token)
        best = tl.maximum(tile_best, best)
    return best, best_token


@triton.jit
def _measure(row_logits, limit_bits, largest, temperature, vocab_size, tile: tl.constexpr):
    """Number and mass (sum of exp(-gap)) of the tokens within a limit."""
    limit = limit_bits.to(tl.float32, bitcast=True)
    counts = tl.zeros([tile], dtype=tl.int32)
    masses = tl.zeros([tile], dtype=tl.float32)
    for start in tl.range(0, vocab_size, tile):
        _, gaps = _load_gaps(row_logits, start, largest, temperature, vocab_size, tile)
        inside = gaps <= limit
        counts += inside.to(tl.int32)
        masses += tl.where(inside, tl.exp(-gaps), 0.0)
    return tl.sum(counts, 0), tl.sum(masses, 0)


@triton.jit
def _smallest_limit(
    row_logits, limit_bits, want_count, want_mass, largest, temperature, vocab_size, tile: tl.constexpr
):
    """The smallest limit, at most the given one, within which both wishes are met; in bits.

    Stops early once a single token is between the bounds: both sides of it then mean the same set.
    """
    high = limit_bits
    high_count, _ = _measure(row_logits, high, largest, temperature, vocab_size, tile)
    # A limit of -1 in bits is below every gap: nothing is inside.
    low = high * 0 - 1
    low_count = high_count * 0
    while (high - low > 1) & (high_count - low_count > 1):
        middle = low + (high - low) // 2
        count, mass = _measure(row_logits, middle, largest, temperature, vocab_size, tile)
        enough = (count >= want_count) & (mass >= want_mass) & (count > 0)
        high = tl.where(enough, middle, high)
        high_count = tl.where(enough, count, high_count)
        low = tl.where(enough, low, middle)
        low_count = tl.where(enough, low_count, count)
    return high


@triton.jit
def _waiting_times(seed, position, tokens):
    """Standard exponential times of the tokens, resolved to 2^-32 where the winners are."""
    bits, _, _, _ = tl.philox(seed, tokens, position, 0, 0)
    uniform = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    uniform = tl.minimum(uniform, 0.99999994)
    # log(1 - u) loses small u to rounding; the series is exact to float32 there.
    series = 1.0 + uniform * (0.5 + uniform * (0.33333333 + uniform * (0.25 + uniform * 0.2)))
    return tl.where(uniform < 0.03125, uniform * series, -tl.log(1.0 - uniform))


@triton.jit
def _race(row_logits, limit_bits, seed, position, largest, temperature, vocab_size, tile: tl.constexpr):
    """The token within the limit that arrives first; of equals the earlier one."""
    limit = limit_bits.to(tl.float32, bitcast=True)
    best = tl.full((), float("-inf"), dtype=tl.float32)
    best_token = tl.full((), 0, dtype=tl.int32)
    for start in tl.range(0, vocab_size, tile):
        tokens, gaps = _load_gaps(row_logits, start, largest, temperature, vocab_size, tile)
        scores = -gaps - tl.log(_waiting_times(seed, position, tokens))
        scores = tl.where(gaps <= limit, scores, float("-inf"))
        tile_best = tl.max(scores, 0)
        tile_token = tl.min(tl.where(scores == tile_best, tokens, NO_TOKEN), 0)
        best_token = tl.where(tile_best > best, tile_token, best_token)
        best = tl.maximum(tile_best, best)
    return best_token


@triton.jit
def _sample(
    out,
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    row_stride,
    vocab_size,
    tile: tl.constexpr,
):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * row_stride
    temperature = tl.load(temperatures + row)
    largest, token = _greedy(row_logits, vocab_size, tile)
    if temperature > 0.0:
        limit_bits = tl.full((), LARGEST_FINITE_BITS, dtype=tl.int32)
        min_p = tl.load(min_ps + row)
        if min_p > 0.0:
            # Without its sign bit, for min_p = 1 gives -0.0, whose bits order below every gap.
            limit_bits = (-tl.log(min_p)).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        top_k = tl.load(top_ks + row)
        if (top_k > 0) & (top_k < vocab_size):
            limit_bits = _smallest_limit(row_logits, limit_bits, top_k, 0.0, largest, temperature, vocab_size, tile)
        top_p = tl.load(top_ps + row)
        if top_p < 1.0:
            _, mass = _measure(row_logits, limit_bits, largest, temperature, vocab_size, tile)
            limit_bits = _smallest_limit(
                row_logits, limit_bits, 0, top_p * mass, largest, temperature, vocab_size, tile
            )
        seed = tl.load(seeds + row)
        position = tl.load(positions + row).to(tl.int32)
        token = _race(row_logits, limit_bits, seed, position, largest, temperature, vocab_size, tile)
    tl.store(out + row, token.to(tl.int64))


def sample(
    logits: torch.Tensor,
    params: SamplingTensors,
    *,
    out: torch.Tensor | None = None,
    check_values: bool = False,
) -> torch.Tensor:
    """Choose a token per row; rows with and without randomness may be mixed.

    logits: [num_rows, vocab_size] with a contiguous last axis; -inf forbids a token. At least one logit of a
        row must be finite.
    params: settings per row, see `SamplingTensors`. Filters apply in the order temperature, min-p, top-k, top-p,
        each to the tokens the one before left.
    out: int64 [num_rows], where to write.
    check_values: also check the settings' ranges, which waits for the device.

    Returns `out`, token ids. Of equal largest logits a greedy row takes the first.
    """
    check_tensor("logits", logits, shape=(None, None), dtypes=FLOATS)
    check_runnable("logits", logits)
    check_last_contiguous("logits", logits)
    num_rows, vocab_size = logits.shape
    if not 1 <= vocab_size < 2**31 - TILE_TOKENS:
        raise ValueError(f"logits: vocabulary of {vocab_size} tokens is out of range")
    _check_params(params, num_rows, logits.device)
    if check_values:
        _check_param_values(params)
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device) if out is None else out
    check_tensor("out", out, shape=(num_rows,), dtypes=(torch.int64,), device=logits.device)
    check_contiguous("out", out)
    check_writable("out", out)
    if num_rows == 0:
        return out
    _sample[(num_rows,)](
        out,
        logits,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.seeds,
        params.positions,
        logits.stride(0),
        vocab_size,
        tile=min(TILE_TOKENS, triton.next_power_of_2(vocab_size)),
        num_warps=16,
    )
    return out


def _check_params(params: SamplingTensors, num_rows: int, device: torch.device) -> None:
    floats, integer, long = (torch.float32,), (torch.int32,), (torch.int64,)
    for name, dtypes in (
        ("temperature", floats),
        ("top_k", integer),
        ("top_p", floats),
        ("min_p", floats),
        ("seeds", long),
        ("positions", long),
    ):
        tensor = getattr(params, name)
        check_tensor(name, tensor, shape=(num_rows,), dtypes=dtypes, device=device)
        check_contiguous(name, tensor)


def _check_param_values(params: SamplingTensors) -> None:
    for name, good in (
        ("temperature", (params.temperature >= 0) & params.temperature.isfinite()),
        ("top_p", (params.top_p > 0) & (params.top_p <= 1)),
        ("min_p", (params.min_p >= 0) & (params.min_p <= 1)),
    ):
        if not bool(good.all()):
            value = float(getattr(params, name)[~good][0])
            raise ValueError(f"{name}: {value} is out of range")
    check_bounds("positions", params.positions, 0, 2**31)
