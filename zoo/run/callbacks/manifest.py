"""`start.json` and `end.json`: digests of how a run began, and its results and cost.

The digests show what several runs have in common.
"""

from __future__ import annotations

import hashlib
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
from zoo.reporting.numbers import finite
from zoo.run import loggers
from zoo.run.processes import StepSize
from zoo.tasks.base import Task
from zoo.utils import write_json

START, END = "start.json", "end.json"
NUM_FIRST_LOSSES = 20
"""Number of batches at the beginning of a run whose losses are kept."""
# epochs whose sample order is digested, and at most so many samples of each
DIGESTED_EPOCHS, DIGESTED_SAMPLES = 2, 100_000


class StartManifest(L.Callback):
    """Writes start.json at the first batch. Built before training, while weights are initial.

    The losses of the first batches follow when there are enough of them. They show whether a run on
    another processor begins as this one did, before rounding leads them apart.

    Args:
        run: The run directory.
        model: The model with its initial weights.
        facts: What else is known at the start.
    """

    def __init__(self, run: Path, model: nn.Module, facts: Mapping[str, Any]) -> None:
        self.path = run / START
        # buffers with weights that are drawn, but not learned
        buffers = [(name, b) for name, b in model.named_buffers() if b.is_floating_point()]
        self.content = {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "weights": {
                name: [*weight.shape, digest([weight])]
                for name, weight in (*model.named_parameters(), *buffers)
            },
            **facts,
        }
        self.losses: list[Tensor] = []
        """Losses of the first batches of this process."""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Add the number of steps, digests of first batch and sample order, and write the file."""
        # written already, at the first batch
        if "batch" in self.content:
            return
        self.content["planned_steps"] = int(trainer.estimated_stepping_batches)
        self.content["order"] = digest_order(trainer.train_dataloader)
        self.content["batch"] = digest(list_batch_tensors(batch))
        write_json(self.content, self.path)

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Keep the loss of the batch, and write the file again when there are enough."""
        if "first_losses" not in self.content and pl_module.batch_loss is not None:
            self.losses.append(pl_module.batch_loss)
            if len(self.losses) == NUM_FIRST_LOSSES:
                self._write_losses()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the losses of a training of few batches."""
        if self.losses:
            self._write_losses()

    def _write_losses(self) -> None:
        # read from the device at once, so that no batch waits for it
        self.content["first_losses"] = finite(torch.stack(self.losses).tolist())
        self.losses = []
        write_json(self.content, self.path)


def digest(values: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the types, shapes and bits of tensors."""
    hasher = hashlib.sha256()
    for value in values:
        # equal bits of another type or shape are other values
        hasher.update(f"{value.dtype} {tuple(value.shape)}".encode())
        hasher.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def digest_order(loader: Any) -> str | None:
    """Return the digest of the sample order of the first epochs; None for a stream."""
    if not isinstance(loader.epoch_sampler, ResumableSampler):
        return None
    hasher = hashlib.sha256()
    for epoch in range(DIGESTED_EPOCHS):
        # a copy: the sampler of training keeps its place
        sampler = copy(loader.epoch_sampler)
        # from the start of the epoch, wherever a resumed run continues
        sampler.skip = 0
        sampler.set_epoch(epoch)
        count = 0
        for keys in sampler:
            if count > DIGESTED_SAMPLES:
                break
            count += len(keys)
            hasher.update(repr(keys).encode())
    return hasher.hexdigest()


def list_batch_tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch of nested lists, tuples and mappings."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, list | tuple | Mapping):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from list_batch_tensors(part)


class CostTracker(L.Callback):
    """Tracks seconds and peak memory of training, in checkpoints: undone steps do not count."""

    def __init__(self) -> None:
        # of the attempts before
        self.seconds, self.memory = 0.0, 0
        self.processor_seconds: float | None = 0.0
        self.start: tuple[float, float] | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clocks."""
        self.start = (time.monotonic(), time.process_time())

    def state_dict(self) -> dict[str, Any]:
        """Return the costs until now, in seconds and bytes.

        `processor_seconds` are those in which the cores worked for this process, all cores
        together; None if an attempt before did not count them.
        """
        spent, worked, memory = 0.0, 0.0, 0
        # a run that resumes after its last step starts no clock
        if self.start is not None:
            spent = time.monotonic() - self.start[0]
            worked = time.process_time() - self.start[1]
            memory = measure_peak_memory()
        before = self.processor_seconds
        return {
            "seconds": self.seconds + spent,
            "processor_seconds": None if before is None else before + worked,
            "memory": max(self.memory, memory),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Add to the costs of the attempts before."""
        self.seconds, self.memory = state_dict["seconds"], state_dict["memory"]
        # checkpoints of earlier versions have none
        self.processor_seconds = state_dict.get("processor_seconds")


def measure_peak_memory() -> int:
    """Return the peak memory in bytes: of the GPU where one is used, else of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    # rusage would include the peak of the process that started this one
    if (peak := _read_status("VmHWM")) is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure_resident_memory() -> int | None:
    """Return the bytes of this process in memory; None on systems other than Linux."""
    return _read_status("VmRSS")


def _read_status(name: str) -> int | None:
    """Read a number of bytes that Linux counts for this process; None if it does not."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(rf"{name}:\s*(\d+) kB", status)
    return int(match[1]) * 1024 if match else None


def measure_step_seconds(recipe: Recipe, run: Path, processes: int) -> float | None:
    """Return the median seconds per step, from the rates in metrics.csv; None without rates."""
    _, rows = loggers.read(run / "metrics.csv")
    rates = [float(rate) for row in rows if (rate := row.get("perf/samples_per_second"))]
    samples_per_step = StepSize.plan(recipe, processes).total
    # the median ignores the first steps, which compile and warm up
    return samples_per_step / statistics.median(rates) if rates and samples_per_step else None
