"""What encoding images takes."""

from __future__ import annotations

import pytest
from schedtop.engine.sim.devices import GPUS
from schedtop.engine.sim.vision import SIGLIP, encode_s


def test_an_encoders_work_follows_from_its_shape() -> None:
    weights = 27 * (4 * 1152**2 + 2 * 1152 * 4304)
    assert weights == 411_070_464 and SIGLIP.token_flops == pytest.approx(16 * (2 * weights + 4 * 27 * 1152 * 4096))


def test_time_grows_with_tokens_and_is_divided_by_gpus() -> None:
    h100 = GPUS["h100"]
    assert encode_s(h100, 1, 0) == 0
    one, two = encode_s(h100, 1, 256), encode_s(h100, 1, 512)
    assert one < two < 2 * one and encode_s(h100, 4, 256) < one < encode_s(GPUS["l4"], 1, 256)
