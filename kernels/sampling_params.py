"""The sampling settings of a batch of rows, one tensor per setting."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SamplingTensors:
    """Settings of `num_rows` rows; every tensor has shape [num_rows].

    temperature: float32, at least 0; 0 takes the largest logit.
    top_k: int32; at most this many of the likeliest tokens stay; 0 or less for no limit.
    top_p: float32 in (0, 1]; the likeliest tokens that together hold this share stay; 1 for all.
    min_p: float32 in [0, 1]; tokens at least this likely, relative to the likeliest, stay; 0 for all.
    seeds: int64, one per request.
    positions: int64, the position the sampled token will take in its request, below 2^31. Seed and position
        alone decide the noise, so a request samples the same tokens in any batch.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor
