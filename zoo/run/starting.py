"""`start.json`: what a run began with, as digests, so that it can be seen afterwards what several runs had in common."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from zoo.data.order import Order
from zoo.run import storage

START = "start.json"
EPOCHS, SAMPLES = 2, 100_000  # whose order is digested, and how many samples of each at most


class Start(L.Callback):
    """Writes the file when the first batch is there. Made before training, with the weights of the model as they are then.

    `told` is what else is known at the start.
    """

    def __init__(self, run: Path, model: nn.Module, told: Mapping[str, Any]) -> None:
        self.path = run / START
        drawn = (pair for pair in model.named_buffers() if pair[1].is_floating_point())  # weights that are not learned
        self.told = {
            "parameters": sum(one.numel() for one in model.parameters()),
            "weights": {name: [*one.shape, digest([one])] for name, one in (*model.named_parameters(), *drawn)},
            **told,
        }

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if "batch" in self.told:
            return
        self.told["order"] = order(trainer.train_dataloader)
        self.told["batch"] = digest(tensors(batch))
        text = json.dumps(self.told, indent=1) + "\n"
        storage.write(io.BytesIO(text.encode()), self.path)


def digest(values: Iterable[Tensor]) -> str:
    """Of types, shapes and every bit."""
    found = hashlib.sha256()
    for value in values:
        found.update(f"{value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def order(loader: Any) -> str | None:
    """Digest of which samples the first epochs read, one after another; None where a stream does not say before it is read."""
    if not isinstance(known := loader.order, Order):
        return None
    found = hashlib.sha256()
    for epoch in range(EPOCHS):
        each = copy(known)
        each.skip = 0
        each.set_epoch(epoch)
        read = 0
        for keys in each:
            if read > SAMPLES:
                break
            read += len(keys)
            found.update(repr(keys).encode())
    return found.hexdigest()


def tensors(batch: Any) -> Iterator[Tensor]:
    """Those of a batch, however it is put together."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, list | tuple | Mapping):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors(part)
