"""When a run saves its checkpoints, what is in them, and how they get to the disk."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from math import isfinite
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.plugins.io import CheckpointIO

from zoo.config import Recipe
from zoo.run import atomic_io
from zoo.run import checkpoint as checkpoints
from zoo.run.callbacks.nan_replay import plain
from zoo.run.distributed import Processes
from zoo.run.rng import part_ways, random_state, restore_random
from zoo.tasks.base import Task

log = logging.getLogger("zoo")

AHEAD = 2  # checkpoints that may wait for the disk: `best` and `last` of one epoch


class Storage(CheckpointIO):
    """Lightning's way to checkpoint files: sealed, whole or not at all, verified before anything of them is read.

    In the background, training waits until its state is a copy in memory, and not for the disk. What goes wrong there is
    raised by the next `save_checkpoint`, or by `drain`.
    """

    def __init__(self, *, background: bool) -> None:
        self._thread = (
            ThreadPoolExecutor(1) if background else None
        )  # one: files are written in their order
        self._waiting: deque[Future[None]] = deque()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        self._wait(AHEAD - 1)
        file = atomic_io.serialised(checkpoint)
        if self._thread is None:
            atomic_io.publish(file, Path(path))
        else:
            self._waiting.append(self._thread.submit(atomic_io.publish, file, Path(path)))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        self.drain()
        return checkpoints.read(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        self.drain()
        Path(path).unlink(missing_ok=True)

    def drain(self) -> None:
        """Wait until all is on the disk. Raises what went wrong on the way."""
        self._wait(0)

    def teardown(self) -> None:
        self.drain()

    def _wait(self, allowed: int) -> None:
        while len(self._waiting) > allowed or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()


class Checkpoints(L.Callback):
    """Writes `last` after every epoch whatever the metric says, and `best` when the metric that a task names improves."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        storage: Storage,
        task: Task,
        processes: Processes | None = None,
    ) -> None:
        self.folder, self.recipe, self.storage, self.monitor = (
            folder / "checkpoints",
            recipe,
            storage,
            task.monitor,
        )
        self.processes = processes or Processes()
        self.sign = 1.0 if task.mode == "max" else -1.0
        self.best: float | None = None
        self.validated = False  # since the epoch before
        self._resumed: dict[str, Any] | None = None

    def about(self, trainer: L.Trainer) -> dict[str, Any]:
        return checkpoints.about(self.recipe, trainer.datamodule.samples)  # type: ignore[attr-defined]

    def on_save_checkpoint(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        checkpoint: dict[str, Any],
    ) -> None:
        checkpoint["zoo"] = self.about(trainer)
        checkpoint["random"] = self.processes.all_gather(
            self._before_validation if trainer.validating else random_state()
        )
        checkpoint["carried"] = self.processes.all_gather(plain(pl_module.batch_state()))
        checkpoint["loader"] = trainer.train_dataloader.state_dict()  # type: ignore[union-attr]
        checkpoint["best"] = self.best
        if trainer.validating:
            _rewind(checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"])

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn == "fit":
            there = atomic_io.whole(
                self.folder / "best.ckpt"
            )  # else the next one is the best that can be had
            self.best, self._resumed = checkpoint["best"] if there else None, checkpoint

    def on_train_start(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        part_ways(self.recipe.seed, self.processes.rank)
        if self._resumed is None:
            return
        # Lightning makes the loader before it reads a checkpoint, so that its own restoration comes too late
        trainer.train_dataloader.load_state_dict(self._resumed["loader"])  # type: ignore[union-attr]
        if len(self._resumed["random"]) == self.processes.count:
            restore_random(self._resumed["random"][self.processes.rank])
            pl_module.load_batch_state(self._resumed["carried"][self.processes.rank])
        else:
            log.warning(
                "it was saved by %d processes and goes on in %d: random numbers are drawn anew",
                len(self._resumed["random"]),
                self.processes.count,
            )
        self._resumed = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._before_validation = random_state()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = (
                True  # by which Lightning validates also what ends in the middle of an epoch
            )

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.validated = True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.train_dataloader.given = 0  # type: ignore[union-attr]  # also where it has more, that nobody asks for
        value = trainer.callback_metrics.get(self.monitor) if self.validated else None
        if value is not None and isfinite(value) and self._improved(float(value)):
            self.best = float(value)
            self.save(trainer, "best")
        self.validated = False
        self.save(trainer, "last")

    def _improved(self, value: float) -> bool:
        """Of equals the later one counts, which has seen more."""
        return self.best is None or self.sign * value >= self.sign * self.best

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.storage.drain()
        trainer.strategy.barrier()  # the others may read what the first has written

    def save(self, trainer: L.Trainer, name: str) -> Path:
        """Save checkpoints/<name>.ckpt, on all processes; in the background it is on the disk after `storage.drain()`."""
        path = self.folder / f"{name}.ckpt"
        trainer.save_checkpoint(path)
        return path


def _rewind(progress: dict[str, Any]) -> None:
    """Have a validation that was broken off begin again: what it had measured is not in a checkpoint.

    Lightning takes it up only where a batch is under way, so the first one is said to be.
    """
    progress["total"] = progress["current"] = {
        "ready": 1,
        "started": 1,
        "processed": 0,
        "completed": 0,
    }
    progress["is_last_batch"] = False
