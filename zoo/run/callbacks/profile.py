"""A trace of some training steps, by torch.profiler."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning as L
from torch.profiler import ProfilerActivity, profile, schedule

log = logging.getLogger("zoo")


class StepProfile(L.Callback):
    """Writes a trace of some steps of this process to the run directory.

    A resumed run keeps a trace that is there, and profiles only if all of the steps are to come.

    Args:
        run: The run directory.
        first: The first step to profile, from 1.
        last: The last one.
    """

    def __init__(self, run: Path, first: int, last: int) -> None:
        self.path = run / f"trace-{first}-{last}.json.gz"
        self.first, self.last = first, last
        self.steps = f"step {first}" if first == last else f"steps {first} to {last}"
        self.begin: int | None = None
        """Step before which the profiler starts; None if it does not start any more."""
        self.profiler: profile | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Decide whether the steps are profiled."""
        following, planned = trainer.global_step + 1, pl_module.count_planned_steps()
        self.begin = None
        if self.path.exists():
            log.info("Profile of %s: written before, %s", self.steps, self.path)
        elif following > self.first:
            log.warning("No profile of %s: training goes on at step %d", self.steps, following)
        elif planned < self.last:
            log.warning("No profile of %s: training ends after step %d", self.steps, planned)
        else:
            # the step before warms the profiler up, whose start takes time on a GPU
            self.begin = max(self.first - 1, following)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Start the profiler before the first batch of its first step."""
        if self.begin != trainer.global_step + 1:
            return
        activities = [ProfilerActivity.CPU]
        if trainer.strategy.root_device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        warmup, count = self.first - self.begin, self.last - self.first + 1
        # torch warns of a schedule without a step to warm up
        plan = schedule(wait=0, warmup=warmup, active=count, repeat=1) if warmup else None
        self.profiler, self.begin = profile(activities=activities, schedule=plan), None
        self.profiler.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Mark the end of a step, and write the trace after the last one."""
        if self.profiler is None or not pl_module.completes_step():
            return
        if trainer.global_step < self.last:
            self.profiler.step()
            return
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        # written elsewhere and moved: a file that is there is a whole trace
        unfinished = self.path.with_name(f"unfinished-{self.path.name}")
        profiler.export_chrome_trace(str(unfinished))
        unfinished.replace(self.path)
        log.info(
            "Profile of %s: %s, to open in https://ui.perfetto.dev or chrome://tracing",
            self.steps,
            self.path,
        )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop the profiler of a training that ended early."""
        self._discard()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Stop the profiler of a training that failed or was stopped."""
        self._discard()

    def _discard(self) -> None:
        if self.profiler is not None:
            self.profiler.stop()
            self.profiler = None
            log.warning("No profile of %s: training ended before", self.steps)
