"""Stop all processes of a run in good order at SIGINT or SIGTERM."""

from __future__ import annotations

import time
from signal import SIGINT, Signals
from types import FrameType
from typing import Any, Self

import lightning as L

from zoo.errors import AlreadyReported, Message, Setting, Stopped
from zoo.run.callbacks.checkpointing import Checkpoints
from zoo.run.processes import Processes
from zoo.tasks.base import Task
from zoo.utils import SignalHandler

WARM_UP = 8
"""Steps that are all followed by an exchange, while their duration is not known."""
SECONDS = 1.0
"""Time between two exchanges, after which a signal is noticed at the latest."""
MOST = 64
"""Steps between two exchanges at most, since later steps may be slower."""


class SignalRhythm:
    """Decides after which steps several processes exchange signals: about once in a second.

    An exchange waits for the slowest process, so that it does not follow every step.
    """

    def __init__(self) -> None:
        self._count = self._since = 0
        self._every, self._mark = 1, time.monotonic()

    def is_due(self) -> bool:
        """Count a step; return whether an exchange follows it, the same in all processes."""
        self._count += 1
        self._since += 1
        return self._since >= self._every

    def propose(self) -> int:
        """Return how many steps may pass until the next exchange, as this process measures."""
        if self._count < WARM_UP:
            return 1
        seconds = (time.monotonic() - self._mark) / max(self._since, 1)
        return int(min(max(SECONDS / max(seconds, 1e-9), 1), MOST))

    def begin(self, every: int) -> None:
        """Begin to count anew after an exchange that agreed on the steps to the next one."""
        self._every, self._since, self._mark = every, 0, time.monotonic()


class StopOnSignal(L.Callback):
    """Stops all processes at SIGINT or SIGTERM to any of them; used as a context manager.

    Training saves `last` after a step of the optimizer first: the next one, or in several processes
    the next one after which they exchange signals (`SignalRhythm`). A second SIGINT stops at once.

    Args:
        processes: The processes of the command.
        checkpoints: Saves `last`. None for a command that only tests.
    """

    def __init__(self, processes: Processes, checkpoints: Checkpoints | None = None) -> None:
        self.processes, self.checkpoints = processes, checkpoints
        self.received: int | None = None
        # batches of training, validation and test last differently long
        self.paces = {"train": SignalRhythm(), "val": SignalRhythm(), "test": SignalRhythm()}
        self._handler = SignalHandler(self._note)

    def __enter__(self) -> Self:
        """Handle the signals within the block."""
        self._handler.install()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        self._handler.restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        # a second Ctrl+C means now; SIGTERM is repeated by schedulers
        if self.received is not None and number == SIGINT:
            raise KeyboardInterrupt
        # no work here: a handler interrupts any line, also one that writes a checkpoint
        self.received = number

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Handle the signals again: Lightning has installed its own handlers by now."""
        self._handler.install()

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Handle the signals again, as above."""
        self._handler.install()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Stop between two steps of the optimizer; no checkpoint has accumulated gradients.

        Where validation follows, it comes first, and after an epoch its own checkpoint.
        """
        validates = trainer.is_last_batch or trainer.should_stop
        if self.checkpoints is not None:
            validates = validates or self.checkpoints.is_validation_due
        if pl_module.completes_step() and not validates:
            self._stop_if_received(trainer, "train")

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Stop, except after the last step: a run resumed there would not validate."""
        if not trainer.should_stop:
            self._stop_if_received(trainer, "val")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop after an epoch."""
        self._stop_if_received(trainer)

    def on_test_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Stop while testing."""
        self._stop_if_received(trainer, "test")

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Stop after a test, where no further batch would notice the signal."""
        if stage == "test":
            self._stop_if_received(trainer)

    def _stop_if_received(self, trainer: L.Trainer, stage: str | None = None) -> None:
        """Stop if a process has received a signal; within a stage, only where it is time to ask."""
        received = self.received or 0
        if self.processes.count > 1:
            pace = None if stage is None else self.paces[stage]
            if pace is not None and not pace.is_due():
                return
            # a scheduler may signal one process only, and all must stop after the same step
            proposed = 1 if pace is None else pace.propose()
            received, negated = self.processes.find_largest([received, -proposed])
            if pace is not None:
                pace.begin(-negated)
        if not received:
            return
        stop = f"stopped by {Signals(received).name}"
        message = Message(f"{stop} while testing; the training is complete")
        if self.checkpoints is None:
            message = Message(f"{stop} while testing; nothing was written")
        elif trainer.state.fn == "fit":
            path = self.checkpoints.save(trainer, "last")
            self.checkpoints.storage.drain()
            # a launcher may kill the other processes once one has ended
            trainer.strategy.barrier()
            saved = f"{stop} at step {trainer.global_step}; saved {path}; add "
            message = Message(saved, Setting("resume", "auto"), " to resume it")
        raise (
            Stopped(received, message) if self.processes.first else AlreadyReported(128 + received)
        )
