"""`start.json`: what a run began with, as digests, so that it can be seen afterwards what several runs had in common."""

from __future__ import annotations

import hashlib
import io
import json
import re
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from zoo.config import Recipe
from zoo.data.sampler import ResumableSampler
from zoo.run import atomic_io, loggers

END = "end.json"


class Costs(L.Callback):
    """Seconds of training and the most memory held at once, kept in checkpoints: what a kill has undone does not count."""

    def __init__(self) -> None:
        self.seconds, self.memory = 0.0, 0  # of the tries before
        self.began: float | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.began = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """What it came to by now, in seconds and bytes."""
        if self.began is None:  # all was trained before
            return {"seconds": self.seconds, "memory": self.memory}
        return {
            "seconds": self.seconds + time.monotonic() - self.began,
            "memory": max(self.memory, peak()),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds, self.memory = state_dict["seconds"], state_dict["memory"]


def peak() -> int:
    """The most bytes held at once so far: of the GPU where it is in use, else of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:  # where it is told of this program alone; rusage goes on from what the one that started it had
        told = re.search(
            r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8")
        )
    except OSError:
        told = None
    if told:
        return int(told[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def step_seconds(recipe: Recipe, run: Path, processes: int) -> float | None:
    """The median over training, as `metrics.csv` has the rate of samples; None where no rate was logged."""
    _, rows = loggers.read(run / "metrics.csv")
    rates = [float(rate) for row in rows if (rate := row.get("perf/samples_per_second"))]
    together = (
        recipe.data.options.get("batch_size", 0)
        * processes
        * recipe.trainer.accumulate_grad_batches
    )
    return together / statistics.median(rates) if rates and together else None


def write(run: Path, told: Mapping[str, Any]) -> None:
    """Written last of all by a training: where it is, the run is complete."""
    atomic_io.write(io.BytesIO((json.dumps(told, indent=1) + "\n").encode()), run / END)


START = "start.json"
EPOCHS, SAMPLES = 2, 100_000  # whose order is digested, and how many samples of each at most


class Start(L.Callback):
    """Writes the file when the first batch is there. Made before training, with the weights of the model as they are then.

    `told` is what else is known at the start.
    """

    def __init__(self, run: Path, model: nn.Module, told: Mapping[str, Any]) -> None:
        self.path = run / START
        drawn = (
            pair for pair in model.named_buffers() if pair[1].is_floating_point()
        )  # weights that are not learned
        self.told = {
            "parameters": sum(one.numel() for one in model.parameters()),
            "weights": {
                name: [*one.shape, digest([one])]
                for name, one in (*model.named_parameters(), *drawn)
            },
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
        atomic_io.write(io.BytesIO(text.encode()), self.path)


def digest(values: Iterable[Tensor]) -> str:
    """Of types, shapes and every bit."""
    found = hashlib.sha256()
    for value in values:
        found.update(f"{value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def order(loader: Any) -> str | None:
    """Digest of which samples the first epochs read, one after another; None where a stream does not say before it is read."""
    if not isinstance(known := loader.order, ResumableSampler):
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
