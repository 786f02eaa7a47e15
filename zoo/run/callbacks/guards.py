"""What stops a run in good order: signals, and numbers that are no longer finite."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from zoo.errors import AlreadyReported, NonFiniteError, Stopped, ZooError
from zoo.run.atomic_io import kept, publish, serialised
from zoo.run.callbacks import nan_replay
from zoo.run.callbacks.checkpointing import Checkpoints
from zoo.run.callbacks.nan_replay import Began
from zoo.tasks.base import Task


class Signals(L.Callback):
    """SIGINT and SIGTERM, to any process, save `last` at the next step of the optimiser and stop the run, in all.

    A second SIGINT stops at once.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Take over both signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._note)
            self._before.setdefault(number, before)

    def remove(self) -> None:
        """Give both signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.install()  # again: Lightning has put its own handlers in place by now

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        # between two steps gradients wait that no checkpoint has; an epoch that is all but done is validated and saved first
        done = trainer.is_last_batch or trainer.should_stop
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and not done:
            self._stop(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if (
            not trainer.should_stop
        ):  # after the last step it is done to its end: a run resumed there would not validate
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop(trainer)

    def on_test_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
        received = self.checkpoints.processes.all_reduce_max(self.received or 0)
        if not received:
            return
        name = signal.Signals(received).name
        told = f"stopped by {name} while testing; the training is complete"
        if trainer.state.fn == "fit":
            path = self.checkpoints.save(trainer, "last")
            self.checkpoints.storage.drain()
            trainer.strategy.barrier()  # a launcher may kill those that are left once one has ended
            told = f"stopped by {name} at step {trainer.global_step}; saved {path}; the same command with --resume auto goes on"
        raise (
            Stopped(received, told)
            if self.checkpoints.processes.first
            else AlreadyReported(128 + received)
        )


class Finite(L.Callback):
    """Stops before the optimiser uses a loss or gradient that is infinite or NaN, and writes down how to see it again; and
    before weights are saved that are.

    All processes stop where one of them has such a number.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.steps: list[Began] = []  # those whose gradients the optimiser will use together

    def on_train_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        batch: Any,
        batch_idx: int,
    ) -> None:
        self.steps.append(Began.now(pl_module, batch, batch_idx))

    def on_before_zero_grad(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any
    ) -> None:
        del self.steps[:-1]

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        self.loss = loss.detach()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Task, optimizer: Any) -> None:  # type: ignore[override]
        named = [(name, p.grad) for name, p in pl_module.named_parameters() if p.grad is not None]
        checked = [self.loss]
        if (
            trainer.precision != "16-mixed"
        ):  # where a scaler finds infinite gradients and skips the step itself
            checked.append(whole(torch.nn.utils.get_total_norm([grad for _, grad in named])))
        processes = self.checkpoints.processes
        if not processes.all_reduce_max(not all(torch.isfinite(torch.stack(checked)).tolist())):
            return
        broken = next((name for name, grad in named if not torch.isfinite(whole(grad)).all()), None)
        losses = processes.all_gather(float(self.loss))
        what = f"the loss is {', '.join(f'{loss:g}' for loss in losses)}"
        what += f", the gradient of {broken} is not finite" if broken else ""
        where = self._recorded(trainer, pl_module)
        if not processes.first:
            raise AlreadyReported(NonFiniteError.code)
        raise NonFiniteError(
            f"step {trainer.global_step}: {what}; stopped before the optimiser used it; {where}; {self._good()}"
        )

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Before anything of an epoch is saved: no loss has seen what the last step made of the weights."""
        named = (
            (name, p.to_local() if isinstance(p, DTensor) else p)
            for name, p in pl_module.named_parameters()
        )
        broken = next((name for name, p in named if not torch.isfinite(p).all()), "")
        found = [name for name in self.checkpoints.processes.all_gather(broken) if name]
        if not found:
            return
        if not self.checkpoints.processes.first:
            raise AlreadyReported(NonFiniteError.code)
        raise NonFiniteError(
            f"step {trainer.global_step}: {found[0]} is not finite after it; {self._good()}"
        )

    def _good(self) -> str:
        folder = self.checkpoints.folder
        return kept(folder) if any(folder.glob("*.ckpt")) else "no epoch was finished before"

    def _recorded(self, trainer: L.Trainer, task: Task) -> str:
        """Find the module that it began with, and write what takes the step again; says where, in all processes."""
        found = nan_replay.find(trainer, task, self.steps)
        processes, weights = (
            self.checkpoints.processes,
            trainer.strategy.lightning_module_state_dict(),
        )
        findings = processes.all_gather(found and found[1])
        at = next((rank for rank, finding in enumerate(findings) if finding), 0)
        first = findings[at] or "it did not show again when the step was taken once more"
        shown = f"first: {first}" + (f" in process {at}" if processes.count > 1 else "")
        path, told = self.checkpoints.folder.parent / "replay.pt", ""
        step = processes.broadcast(self.steps[found[0] if found else -1].plain(), by=at)
        if processes.first:
            record = {
                "step": trainer.global_step,
                "epoch": trainer.current_epoch,
                "first": first,
                **step,
            }
            content = {
                "zoo": self.checkpoints.about(trainer),
                "state_dict": weights,
                "replay": record,
            }
            told = _published(content, path)
        trainer.strategy.barrier()  # as above
        return f"{shown}; {told}"


def _published(content: dict[str, Any], path: Path) -> str:
    try:
        publish(serialised(content), path)
    except ZooError as error:  # the numbers are what the run stops for
        return str(error)
    return f"batch, random states and weights are in {path}"


def whole(tensor: Tensor) -> Tensor:
    """A tensor whose parts may be on several processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
