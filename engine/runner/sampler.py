"""From logits to token ids. A token depends on its request's logits, seed and position alone, not on the batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from schedtop.engine.contract.commands import SamplingParams
from schedtop.engine.handoff.plan import IntArray

GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one request's tokens are picked; `seed` is resolved."""

    params: SamplingParams
    seed: int


@dataclass(frozen=True, slots=True)
class Draws:
    """What each row of M sampled logits is drawn with, on the host: float64 but `top_k`, which is int64."""

    temperature: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]
    uniform: npt.NDArray[np.float64]


def make_draws(params: list[SamplingParams], seeds: list[int], positions: IntArray) -> Draws:
    """Draws for one token each: `positions` are the places the tokens will take in their sequences."""
    return Draws(
        temperature=np.array([p.temperature for p in params]),
        top_k=np.array([p.top_k for p in params], dtype=np.int64),
        top_p=np.array([p.top_p for p in params]),
        min_p=np.array([p.min_p for p in params]),
        uniform=uniform(np.array([seed & (2**64 - 1) for seed in seeds], dtype=np.uint64), positions),
    )


def uniform(seeds: npt.NDArray[np.uint64], positions: IntArray) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), a function of seed and position: splitmix64 (Steele et al., OOPSLA 2014), twice."""
    x = _splitmix(_splitmix(seeds) + positions.astype(np.uint64))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def sample(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """One token id for each row of `logits` [M, vocab]: int64 [M].

    Temperature, then min-p, top-k and top-p, each of what the one before left (vLLM's order, and the sampling
    kernel's); the draw inverts the cumulative distribution in vocabulary order, where near-equal logits cannot
    change places.
    """
    ladder = kept_weights(logits, draws).cumsum(-1)
    place = torch.searchsorted(ladder, _column(draws.uniform, logits) * ladder[:, -1:], right=True)
    return place.clamp_(max=logits.shape[-1] - 1)[:, 0]


def kept_weights(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Each token's probability over the likeliest one's, 0 for those a filter leaves out: float64 [M, vocab].

    The likeliest token always stays, and so does one that ties with the last one kept.
    """
    scaled = logits.double() / _column(draws.temperature, logits)
    weights = torch.exp(scaled - scaled.amax(-1, keepdim=True))
    if draws.min_p.any():
        weights.masked_fill_(weights < _column(draws.min_p, logits), 0.0)
    if draws.top_k.any() or (draws.top_p < 1).any():
        least = _least_kept(weights, _column(draws.top_k, logits), _column(draws.top_p, logits))
        weights.masked_fill_(weights < least, 0.0)
    return weights


def _least_kept(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest weight that top-k and then top-p keep: [M, 1]."""
    ordered = weights.sort(dim=-1, descending=True).values
    count = torch.where(top_k > 0, top_k, ordered.shape[-1]).clamp(max=ordered.shape[-1])
    ordered.masked_fill_(ordered < ordered.gather(-1, count - 1), 0.0)
    mass = ordered.cumsum(-1)
    # A cap of 1 keeps all, whatever rounding makes of the sum.
    stays = (mass - ordered < top_p * mass[:, -1:]) | (top_p >= 1)
    return ordered.masked_fill(~stays | (ordered == 0), float("inf")).amin(-1, keepdim=True)


def _column(values: npt.NDArray[np.generic], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device)[:, None]
