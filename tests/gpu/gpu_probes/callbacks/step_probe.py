"""Measure the steps of a training, and plant a fault in one of them."""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch._dynamo.utils import counters

from zoo.registry import register

WARM, LAST = 6, 12
"""Steps from which and up to which the host's waits are recorded, before the trace begins."""


def catch_waits(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """Return the lines at which CUDA warned that the host waits."""
    waits = [one for one in caught if "synchroniz" in str(one.message)]
    return sorted({f"{Path(one.filename).name}:{one.lineno}" for one in waits})


@register
class StepProbe(L.Callback):
    """Writes what a training's steps cost to a file, after each step.

    Args:
        out: The file.
        plant: A fault: `wait` reads a number in every step, `nan` breaks a weight, `stop` sends
            SIGTERM, each at step `at`.
        at: The step, counted from 1.
    """

    def __init__(
        self, *, out: str, plant: Literal["nothing", "wait", "nan", "stop"] = "nothing", at: int = 5
    ) -> None:
        self.out, self.plant, self.at = Path(out), plant, at
        self.facts: dict[str, Any] = {}
        self.loading, self.stepping = list[float](), list[float]()
        self.caught: warnings.catch_warnings[list[warnings.WarningMessage]] | None = None
        self.log: list[warnings.WarningMessage] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Begin the clock."""
        self.first, self.is_gpu = trainer.global_step, trainer.strategy.root_device.type == "cuda"
        self.ended = self.began = time.perf_counter()
        counters.clear()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Measure the time since the step before, and begin to record waits."""
        self.batch = time.perf_counter()
        self.loading.append(self.batch - self.ended)
        if self.is_gpu and self.caught is None and trainer.global_step == self.first + WARM:
            self.caught = warnings.catch_warnings(record=True)
            self.log = self.caught.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Measure the step, plant the fault, and write the file."""
        step = trainer.global_step
        if self.plant == "wait":
            float(outputs["loss"])
        if self.caught is not None and step == self.first + LAST:
            torch.cuda.set_sync_debug_mode("default")
            self.caught.__exit__(None, None, None)
            self.facts["waits"] = catch_waits(self.log)
            self.plant = "nothing"
        elif step == self.first + 1 and "first_step_seconds" not in self.facts:
            if self.is_gpu:
                torch.cuda.synchronize()
            self.facts["first_step_seconds"] = time.perf_counter() - self.began
        self.stepping.append(time.perf_counter() - self.batch)
        self._plant(step, pl_module)
        self._write(step)
        self.ended = time.perf_counter()

    def _plant(self, step: int, module: L.LightningModule) -> None:
        """Plant the fault of this step."""
        if step != self.at:
            return
        if self.plant == "nan":
            with torch.no_grad():
                next(module.parameters()).view(-1)[0] = float("nan")
        elif self.plant == "stop":
            self.plant = "nothing"
            os.kill(os.getpid(), signal.SIGTERM)

    def _write(self, step: int) -> None:
        middle = len(self.stepping) // 2
        facts: dict[str, Any] = {
            "steps": step,
            "graphs": counters["stats"]["unique_graphs"],
            "breaks": sum(counters["graph_break"].values()),
            # of the later half, in which everything has been compiled and allocated
            "loader_ms": 1e3 * sum(self.loading[middle:]) / len(self.loading[middle:]),
            "step_ms": 1e3 * sum(self.stepping[middle:]) / len(self.stepping[middle:]),
        }
        if self.is_gpu:
            facts["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        self.facts.update(facts)
        self.out.write_text(json.dumps(self.facts))
