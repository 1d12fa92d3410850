"""Latency samples by second of the engine's clock: with them any window is known without reading its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from schedtop.engine.contract.latencies.samples import Samples, of_records
from schedtop.engine.contract.telemetry import StepRecord
from schedtop.engine.recording.packing.columns import Column, differences, pack, sums, unpack

_MAX_SAMPLES = 1 << 22


@dataclass(frozen=True, slots=True)
class SecondSamples:
    """TTFT and ITL samples of the steps that ended in one second of the engine's clock."""

    second: int
    ttft: Samples
    itl: Samples


class StoredSecond(msgspec.Struct, array_like=True, frozen=True):
    """A second's samples: how many distinct values, the values, their counts; for TTFT, then for ITL."""

    second: int
    num_ttft: int
    ttft: tuple[Column, Column]
    num_itl: int
    itl: tuple[Column, Column]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[StoredSecond])


def second_of(record: StepRecord) -> int:
    """The second of the engine's clock in which a step ended."""
    return int(record.end_s // 1.0)


def sample(second: int, records: Iterable[StepRecord]) -> SecondSamples:
    """The samples of some records."""
    return SecondSamples(second, **of_records(records))


def encode_seconds(seconds: Sequence[SecondSamples]) -> bytes:
    """Seconds as stored, before compression."""
    return _encoder.encode(
        [
            StoredSecond(s.second, len(s.ttft.values), _pack(s.ttft), len(s.itl.values), _pack(s.itl))
            for s in seconds
        ]
    )


def decode_seconds(data: bytes) -> list[SecondSamples]:
    """Undo `encode_seconds`. Raises `ValueError` for bytes that are none."""
    stored = _decoder.decode(data)
    sizes = [size for s in stored for size in (s.num_ttft, s.num_itl)]
    if sizes and (min(sizes) < 0 or sum(sizes) > _MAX_SAMPLES):
        raise ValueError("impossible numbers of samples")
    return [SecondSamples(s.second, _unpack(s.ttft, s.num_ttft), _unpack(s.itl, s.num_itl)) for s in stored]


def _pack(samples: Samples) -> tuple[Column, Column]:
    return pack(differences(samples.values)), pack(samples.counts)


def _unpack(stored: tuple[Column, Column], count: int) -> Samples:
    values, counts = stored
    return Samples(sums(unpack(values, count)), unpack(counts, count))
