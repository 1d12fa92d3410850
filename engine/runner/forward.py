"""A model run on a batch: replayed from a recorded graph where that holds, eagerly otherwise."""

from __future__ import annotations

import torch
from schedtop.engine.runner.batch import Decoder, HostBatch
from schedtop.engine.runner.gpu.graphs import DecodeGraphs
from schedtop.engine.runner.staging import TensorStaging


class Forward:
    """Takes batches from the host to logits on the device."""

    def __init__(self, decoder: Decoder, device: torch.device, graphs: DecodeGraphs | None = None) -> None:
        self.decoder = decoder
        self._graphs = graphs
        self._staging = TensorStaging(device)

    def __call__(self, host: HostBatch) -> torch.Tensor | None:
        """Logits [N, vocab] of the batch's `logit_tokens`, None if it asks for none; the next call may overwrite."""
        logits = None if self._graphs is None else self._graphs.run(host)
        return self.decoder.forward(host.to_device(self._staging)) if logits is None else logits
