"""When a run saves checkpoints, what is in them, and how they are written."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from math import isfinite
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins.io import CheckpointIO

from zoo.config import Recipe
from zoo.config.schema import EarlyStoppingOptions
from zoo.data.base import DataModule
from zoo.run import atomic_io
from zoo.run import checkpoint as checkpoints
from zoo.run.callbacks.nan_replay import to_plain
from zoo.run.checkpoint import get_random_state, seed_rank, set_random_state
from zoo.run.distributed import Processes
from zoo.tasks.base import Task

log = logging.getLogger("zoo")

MAX_PENDING = 2  # checkpoints that may wait for the disk: `best` and `last` of one epoch


class SealedCheckpointIO(CheckpointIO):
    """Lightning's way to checkpoint files: sealed, written whole or not at all, verified when read.

    In the background, training waits for a copy of its state in memory, but not for the disk. An
    error there is raised by the next `save_checkpoint`, or by `drain`.
    """

    def __init__(self, *, background: bool) -> None:
        # one thread, so that files are written in their order
        self._executor = ThreadPoolExecutor(1) if background else None
        self._pending: deque[Future[None]] = deque()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, or have it written in the background."""
        self._wait(MAX_PENDING - 1)
        file = atomic_io.serialise(checkpoint)
        if self._executor is None:
            atomic_io.write_sealed(file, Path(path))
        else:
            self._pending.append(self._executor.submit(atomic_io.write_sealed, file, Path(path)))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a verified checkpoint; plain data and tensors alone."""
        self.drain()
        return checkpoints.read(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint."""
        self.drain()
        Path(path).unlink(missing_ok=True)

    def drain(self) -> None:
        """Wait until all checkpoints are on the disk. Raises ZooError if one cannot be written."""
        self._wait(0)

    def teardown(self) -> None:
        """Wait for the disk."""
        self.drain()

    def _wait(self, allowed: int) -> None:
        while len(self._pending) > allowed or (self._pending and self._pending[0].done()):
            self._pending.popleft().result()


class Checkpoints(L.Callback):
    """Writes `last` after every epoch, and `best` when the monitored metric improves.

    The recipe may ask for `last` within an epoch too, after every so many steps.
    """

    def __init__(
        self,
        run: Path,
        recipe: Recipe,
        storage: SealedCheckpointIO,
        task: Task,
        processes: Processes | None = None,
    ) -> None:
        self.folder, self.recipe, self.storage = run / "checkpoints", recipe, storage
        self.monitor, self.sign = task.monitor, 1.0 if task.mode == "max" else -1.0
        self.processes = processes or Processes()
        self.best: float | None = None
        self._has_validated = False  # since the epoch before
        self._resumed: dict[str, Any] | None = None

    def build_metadata(self, trainer: L.Trainer) -> dict[str, Any]:
        """Return what a checkpoint says about itself."""
        data: DataModule = trainer.datamodule  # type: ignore[attr-defined]
        return checkpoints.build_metadata(self.recipe, data.spec)

    def on_save_checkpoint(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        checkpoint: dict[str, Any],
    ) -> None:
        """Add what an exact resume needs beside Lightning's state."""
        rng_state = self._before_validation if trainer.validating else get_random_state()
        checkpoint["zoo"] = self.build_metadata(trainer)
        checkpoint["rng_states"] = self.processes.all_gather(rng_state)
        checkpoint["batch_states"] = self.processes.all_gather(to_plain(pl_module.batch_state()))
        checkpoint["loader"] = trainer.train_dataloader.state_dict()  # type: ignore[union-attr]
        checkpoint["best_metric"] = self.best
        if trainer.validating:
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            _restart_validation(progress)

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the state until training starts."""
        if trainer.state.fn == "fit":
            # without an intact `best` the next validated checkpoint is the best
            has_best = atomic_io.is_intact(self.folder / "best.ckpt")
            self.best = checkpoint["best_metric"] if has_best else None
            self._resumed = checkpoint

    def on_train_start(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Restore the loader, the random state and what the task carries between batches."""
        rank = self.processes.rank
        seed_rank(self.recipe.seed, rank)
        if self._resumed is None:
            return
        # Lightning builds the loader before it reads a checkpoint, too early to restore it
        loader: Any = trainer.train_dataloader
        loader.load_state_dict(self._resumed["loader"])
        saved_by = len(self._resumed["rng_states"])
        if saved_by == self.processes.count:
            set_random_state(self._resumed["rng_states"][rank])
            pl_module.load_batch_state(self._resumed["batch_states"][rank])
        else:
            log.warning(
                "The checkpoint was saved by %d processes and is resumed by %d: "
                "random numbers are drawn anew",
                saved_by,
                self.processes.count,
            )
        self._resumed = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remember the random state for a checkpoint that a signal demands during validation."""
        self._before_validation = get_random_state()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop at the last step, so that Lightning validates even in the middle of an epoch.

        Before it save `last` where the recipe asks for it, between two steps of the optimiser; the
        end of an epoch saves by itself, after validation.
        """
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True
        every = self.recipe.trainer.save_every_n_steps
        is_between = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        is_last = trainer.is_last_batch or trainer.should_stop
        if every and is_between and not is_last and trainer.global_step % every == 0:
            self.save(trainer, "last")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note that the metric is of this epoch."""
        self._has_validated = True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save `best` where the metric is finite and not worse, and `last`."""
        # the next epoch begins anew, even where a limit left samples of this one
        trainer.train_dataloader.consumed = 0  # type: ignore[union-attr]
        value = trainer.callback_metrics.get(self.monitor) if self._has_validated else None
        if value is not None and isfinite(value) and self._is_best(float(value)):
            self.best = float(value)
            self.save(trainer, "best")
        self._has_validated = False
        self.save(trainer, "last")

    def _is_best(self, value: float) -> bool:
        """Tell whether a metric is the best; of equals the later one, which has trained longer."""
        return self.best is None or self.sign * value >= self.sign * self.best

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Wait for the disk, since other processes read what the first has written."""
        self.storage.drain()
        trainer.strategy.barrier()

    def save(self, trainer: L.Trainer, name: str) -> Path:
        """Save checkpoints/<name>.ckpt, in all processes; `storage.drain()` waits for the disk."""
        path = self.folder / f"{name}.ckpt"
        trainer.save_checkpoint(path)
        return path


class StopWithoutImprovement(EarlyStopping):
    """Stops after a validation where the monitored metric has not improved for long.

    It counts before the epoch ends, so that the checkpoint of the epoch has the count.

    Args:
        task: Whose metric it monitors.
        options: How long, and what counts as an improvement.
    """

    def __init__(self, task: Task, options: EarlyStoppingOptions) -> None:
        super().__init__(
            task.monitor,
            mode=task.mode,
            patience=options.patience,
            min_delta=options.min_delta,
            check_finite=False,
            check_on_train_epoch_end=False,
        )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop at once where the run had stopped before it was resumed."""
        if self.wait_count >= self.patience:
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say why training has ended."""
        if self.wait_count >= self.patience:
            log.info(
                "Stopped early at step %d: %s has not improved in %d validations",
                trainer.global_step,
                self.monitor,
                self.wait_count,
            )


def _restart_validation(progress: dict[str, Any]) -> None:
    """Have an interrupted validation start again: a checkpoint has nothing of what it measured.

    Lightning resumes a validation only where a batch is under way, so the first one is marked so.
    """
    started = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    progress["total"] = progress["current"] = started
    progress["is_last_batch"] = False
