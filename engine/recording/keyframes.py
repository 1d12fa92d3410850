"""Snapshots as a segment's first frame. They name what came before, so that a reader can start here."""

from __future__ import annotations

import msgspec
import numpy as np
from schedtop.engine.contract.telemetry import RequestState, Snapshot
from schedtop.engine.recording.packing.columns import differences, sums

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode_keyframe(snapshot: Snapshot, keep_text: bool) -> bytes:
    """A snapshot without what the `Arrival` records have anyway: prefix keys, which do not compress, and previews
    unless `keep_text`."""
    requests = [_slim(request, keep_text) for request in snapshot.requests]
    return _encoder.encode(msgspec.structs.replace(snapshot, requests=requests))


def decode_keyframe(data: bytes) -> Snapshot:
    """Undo `encode_keyframe`; `prefix_keys` of its requests are empty. Raises `ValueError`."""
    snapshot = _decoder.decode(data)
    requests = [
        msgspec.structs.replace(request, table=sums(_ids(request.table)).tobytes()) for request in snapshot.requests
    ]
    return msgspec.structs.replace(snapshot, requests=requests)


def _slim(request: RequestState, keep_text: bool) -> RequestState:
    arrival = request.arrival
    slim = msgspec.structs.replace(arrival, prefix_keys=b"", preview=arrival.preview if keep_text else "")
    return msgspec.structs.replace(request, arrival=slim, table=differences(_ids(request.table)).tobytes())


def _ids(table: bytes) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(table, dtype=np.int32)
