"""`end.json`: what a run came to and what it cost, all tries together where it was stopped and went on."""

from __future__ import annotations

import io
import json
import re
import resource
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch

from zoo.recipe import Recipe
from zoo.run import metrics, storage

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
        return {"seconds": self.seconds + time.monotonic() - self.began, "memory": max(self.memory, peak())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seconds, self.memory = state_dict["seconds"], state_dict["memory"]


def peak() -> int:
    """The most bytes held at once so far: of the GPU where it is in use, else of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:  # where it is told of this program alone; rusage goes on from what the one that started it had
        told = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    except OSError:
        told = None
    if told:
        return int(told[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def step_seconds(recipe: Recipe, run: Path, processes: int) -> float | None:
    """The median over training, as `metrics.csv` has the rate of samples; None where no rate was logged."""
    _, rows = metrics.read(run / "metrics.csv")
    rates = [float(rate) for row in rows if (rate := row.get("perf/samples_per_second"))]
    together = recipe.data.options.get("batch_size", 0) * processes * recipe.trainer.accumulate_grad_batches
    return together / statistics.median(rates) if rates and together else None


def write(run: Path, told: Mapping[str, Any]) -> None:
    """Written last of all by a training: where it is, the run is complete."""
    storage.write(io.BytesIO((json.dumps(told, indent=1) + "\n").encode()), run / END)
