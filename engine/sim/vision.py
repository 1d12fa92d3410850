"""What encoding images takes: a vision transformer over patches, several of which make one token."""

from __future__ import annotations

from dataclasses import dataclass

from schedtop.engine.sim.devices import Gpu

MATRIX_SHARE = 0.6
"""Of peak arithmetic, as in the language model's projections (`roofline.py`)."""


@dataclass(frozen=True, slots=True)
class VisionEncoder:
    """`layers` of width `hidden` with MLPs of `mlp` (two matrices); all `patches` of an image attend to each other, and
    `patches_per_token` of them make one token of the prompt."""

    layers: int
    hidden: int
    mlp: int
    patches: int
    patches_per_token: int

    @property
    def token_flops(self) -> float:
        """2 FLOPs per weight and patch, 4 per pair of patches, dimension and layer, of the patches of a token."""
        weights = self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.mlp)
        pairs = self.layers * self.hidden * self.patches
        return self.patches_per_token * float(2 * weights + 4 * pairs)


SIGLIP = VisionEncoder(layers=27, hidden=1152, mlp=4304, patches=4096, patches_per_token=16)
"""SigLIP-So400m at 896 pixels, 16 patches to a token: Gemma 3's (its `vision_config`; arXiv 2503.19786)."""


def encode_s(gpu: Gpu, ranks: int, tokens: int) -> float:
    """Seconds that `ranks` GPUs take to encode images of `tokens` tokens in one step, before the step itself."""
    if not tokens:
        return 0.0
    arithmetic_s = tokens * SIGLIP.token_flops / (ranks * gpu.tflops * 1e12 * MATRIX_SHARE)
    return arithmetic_s + SIGLIP.layers * gpu.layer_s
