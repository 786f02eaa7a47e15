"""When a run saves checkpoints, what is in them, and how they are written."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins.io import CheckpointIO

from zoo.config import Recipe
from zoo.config.schema import EarlyStoppingOptions
from zoo.data.base import DataModule
from zoo.run import checkpoint as checkpoints
from zoo.run import shard_files
from zoo.run.checkpoint import get_random_state, seed_rank, set_random_state
from zoo.run.processes import Processes, StepSize
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
        # memory holds a copy of the state for each, so that a slow disk must hold training up
        self._wait(MAX_PENDING - 1)
        # in this thread: the next step changes the weights in place
        file = checkpoints.serialise(checkpoint)
        if self._executor is None:
            checkpoints.write_sealed(file, Path(path))
        else:
            self._pending.append(self._executor.submit(checkpoints.write_sealed, file, Path(path)))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a verified checkpoint, which holds only plain data and tensors."""
        self.drain()
        return checkpoints.read(Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove a checkpoint."""
        self.drain()
        shard_files.remove(Path(path))

    def drain(self) -> None:
        """Wait until all checkpoints are on the disk. Raises ZooError if one cannot be written."""
        self._wait(0)

    def teardown(self) -> None:
        """Wait for the disk."""
        self.drain()

    def _wait(self, allowed: int) -> None:
        # those that are done are collected too, so that their errors surface early
        while len(self._pending) > allowed or (self._pending and self._pending[0].done()):
            self._pending.popleft().result()


class KeptCheckpoint(NamedTuple):
    """A checkpoint kept in addition to `best` and `last`, and the monitored metric of its step."""

    step: int
    value: float

    @property
    def name(self) -> str:
        return f"step-{self.step:08}"


class Checkpoints(L.Callback):
    """Writes `last` after every epoch, and `best` when the monitored metric improves.

    The recipe may ask for more: validations within an epoch, `last` within an epoch, and the
    checkpoints of the best validations.
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
        self.kept: list[KeptCheckpoint] = []  # the best first
        self.is_validation_due = False
        """Whether a validation within the epoch follows the step."""
        self._is_validating = False
        self._has_validated = False  # at the end of this epoch
        self._resumed: dict[str, Any] | None = None

    def on_save_checkpoint(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        checkpoint: dict[str, Any],
    ) -> None:
        """Add what an exact resume needs in addition to Lightning's state."""
        # a resumed run validates again, and draws the numbers that training would have drawn after
        # it
        rng_state = self._before_validation if self._is_validating else get_random_state()
        data: DataModule = trainer.datamodule  # type: ignore[attr-defined]
        # the data of a training with stages have the windows of the longest one
        spec = pl_module.spec if self.recipe.stages else data.spec
        checkpoint["zoo"] = checkpoints.build_metadata(self.recipe, spec)
        checkpoint["num_threads"] = torch.get_num_threads()
        # Lightning saves one file for all processes, so each has to contribute its state
        checkpoint["rng_states"] = self.processes.all_gather(rng_state)
        checkpoint["batch_states"] = self.processes.all_gather(
            checkpoints.to_plain(pl_module.batch_state())
        )
        checkpoint["loader"] = trainer.train_dataloader.state_dict()  # type: ignore[union-attr]
        checkpoint["best_metric"] = self.best
        checkpoint["kept"] = [list(entry) for entry in self.kept]
        checkpoint["is_validation_due"] = self.is_validation_due
        if self._is_validating:
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            _restart_validation(progress)

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the state until training starts."""
        if trainer.state.fn == "fit":
            # without an intact `best` the next validated checkpoint is the best
            has_best = checkpoints.is_intact(self.folder / "best.ckpt")
            self.best = checkpoint["best_metric"] if has_best else None
            listed = [KeptCheckpoint(*entry) for entry in checkpoint.get("kept", ())]
            self.kept = [
                entry for entry in listed if checkpoints.is_intact(self._find_path(entry.name))
            ]
            self._resumed = checkpoint

    def on_train_start(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Restore the loader, the random state and what the task carries between batches."""
        rank = self.processes.rank
        # weights are drawn by now, equally in all processes; dropout has to differ
        seed_rank(self.recipe.seed, rank)
        self._batches = trainer.val_check_batch
        if self._resumed is None:
            return
        if trainer.fit_loop.restarted_on_epoch_end:
            _begin_next_epoch(trainer)
        # Lightning then goes on with this validation, or after it
        self._plan_validation(trainer, self._resumed.get("is_validation_due", False))
        # Lightning builds the loader before it reads a checkpoint, too early to restore it
        loader: Any = trainer.train_dataloader
        loader.load_state_dict(self._resumed["loader"])
        saved_by = len(self._resumed["rng_states"])
        if saved_by == self.processes.count:
            # the number of a process means the same samples only among as many processes
            set_random_state(self._resumed["rng_states"][rank])
            pl_module.load_batch_state(self._resumed["batch_states"][rank])
        else:
            log.warning(
                "The checkpoint was saved by %d processes and is resumed by %d: "
                "random numbers are drawn anew",
                saved_by,
                self.processes.count,
            )
        before = StepSize.read(self._resumed["zoo"]["recipe"], saved_by)
        now = StepSize.read(self.recipe.plain(), self.processes.count)
        if warning := now.explain_change(before):
            log.warning(warning)
        self._resumed = None

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remember the random state for a checkpoint that a signal demands during validation."""
        self._before_validation = get_random_state()
        self._is_validating = True

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop at the last step, so that Lightning validates even in the middle of an epoch.

        Before it validate or save `last` where the recipe asks for it, between two steps of the
        optimizer. The end of an epoch validates and saves by itself.
        """
        if trainer.global_step == trainer.max_steps:
            trainer.should_stop = True
        is_within = (
            pl_module.completes_step() and not trainer.is_last_batch and not trainer.should_stop
        )
        options = self.recipe.trainer
        self._plan_validation(
            trainer, is_within and _is_due(options.val_every_n_steps, trainer.global_step)
        )
        if is_within and not self.is_validation_due:
            self._save_if_due(trainer)

    def _plan_validation(self, trainer: L.Trainer, is_due: bool) -> None:
        """Set whether Lightning validates after this step or after the last batch of the epoch."""
        self.is_validation_due = is_due
        # Lightning itself counts batches: of a step there are several where gradients are
        # accumulated, and an epoch may end before the planned number
        trainer.val_check_batch = 1 if is_due or trainer.is_last_batch else self._batches

    def _save_if_due(self, trainer: L.Trainer) -> None:
        if _is_due(self.recipe.trainer.save_every_n_steps, trainer.global_step):
            self.save(trainer, "last")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save what a validation within an epoch asks for; the end of an epoch does so later."""
        self._is_validating = False
        if trainer.is_last_batch or trainer.should_stop:
            self._has_validated = True
            return
        self._save_best(trainer)
        self._save_if_due(trainer)
        self._remove_others(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save `best` where the metric is finite and not worse, and `last`."""
        # the next epoch begins anew, even where a limit left samples of this one
        trainer.train_dataloader.consumed = 0  # type: ignore[union-attr]
        if self._has_validated:
            self._save_best(trainer)
        self._has_validated = False
        self.save(trainer, "last")
        # only now: a kill before this line leaves too many files, never too few
        self._remove_others(trainer)

    def _save_best(self, trainer: L.Trainer) -> None:
        """Save `best` and the checkpoint of this step, where the metric of this step asks for it.

        Each file knows the best metric and the list of kept checkpoints that it belongs to.
        """
        metric = trainer.callback_metrics.get(self.monitor)
        if metric is None or not isfinite(metric):
            return
        value, step = float(metric), trainer.global_step
        # of equals the later one, which has trained longer
        is_best = self.best is None or self.sign * value >= self.sign * self.best
        if is_best:
            self.best = value

        candidate = KeptCheckpoint(step, value)
        other_checkpoints = [entry for entry in self.kept if entry.step != step]
        ranked = sorted(
            [*other_checkpoints, candidate],
            key=lambda entry: (-self.sign * entry.value, -entry.step),
        )
        self.kept = ranked[: self.recipe.trainer.save_top_k or 0]
        if candidate in self.kept:
            self.save(trainer, candidate.name)
        if is_best:
            self.save(trainer, "best")

    def _remove_others(self, trainer: L.Trainer) -> None:
        """Remove checkpoints that are kept no more, once a newer checkpoint does not list them."""
        if self.recipe.trainer.save_top_k is None:
            return
        kept_paths = {self._find_path(entry.name) for entry in self.kept}
        for path in sorted(self.folder.glob("step-*.ckpt")):
            if path not in kept_paths:
                trainer.strategy.remove_checkpoint(path)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Wait for the disk, since other processes read what the first has written."""
        self.storage.drain()
        trainer.strategy.barrier()

    def save(self, trainer: L.Trainer, name: str) -> Path:
        """Save checkpoints/<name>.ckpt, in all processes; `storage.drain()` waits for the disk."""
        path = self._find_path(name)
        trainer.save_checkpoint(path)
        return path

    def _find_path(self, name: str) -> Path:
        return self.folder / f"{name}.ckpt"


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
            # FiniteGuard stops at such numbers, with a replay
            check_finite=False,
            check_on_train_epoch_end=False,
        )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop at once where the run had stopped before it was resumed."""
        if self.wait_count >= self.patience:
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log why training has ended."""
        if self.wait_count >= self.patience:
            log.info(
                "Stopped early at step %d: %s has not improved in %d validations",
                trainer.global_step,
                self.monitor,
                self.wait_count,
            )


def _begin_next_epoch(trainer: L.Trainer) -> None:
    """Go on with the next epoch after a checkpoint of the end of one.

    Where `max_steps` limits training, Lightning would end the epoch once more, count a step too
    many and take other samples. This is what it does where epochs limit training.
    """
    loop = trainer.fit_loop
    for nested_loop in (loop, loop.epoch_loop, loop.epoch_loop.val_loop):
        nested_loop._restarting = False
    loop.update_restart_stage()
    progress = loop.epoch_progress
    progress.increment_completed()
    progress.current.completed = progress.current.processed  # type: ignore[attr-defined]


def _is_due(period: int | None, step: int) -> bool:
    return period is not None and step % period == 0


def _restart_validation(progress: dict[str, Any]) -> None:
    """Mark an interrupted validation as not begun: a checkpoint has none of its measurements.

    Lightning resumes a validation only where a batch is under way, so the first one is marked so.
    """
    started = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    progress["total"] = progress["current"] = started
    progress["is_last_batch"] = False
