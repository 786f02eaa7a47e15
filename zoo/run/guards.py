"""What stops a run in good order: signals, and numbers that are no longer finite."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

import lightning as L
import torch
from torch import Tensor

from zoo.errors import NonFiniteError, Stopped, ZooError
from zoo.run import replay
from zoo.run.replay import Began
from zoo.run.saving import Checkpoints
from zoo.run.storage import kept, publish, serialised


class Signals(L.Callback):
    """SIGINT and SIGTERM save `last` at the next step and stop the run. A second SIGINT stops at once."""

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

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if not trainer.is_last_batch:  # an epoch that is all but done is validated and saved first
            self._stop(trainer)

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._stop(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop(trainer)

    def on_test_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._stop(trainer)

    def _stop(self, trainer: L.Trainer) -> None:
        if self.received is None:
            return
        name = signal.Signals(self.received).name
        if trainer.state.fn == "fit":
            path = self.checkpoints.save(trainer, "last")
            self.checkpoints.storage.drain()
            raise Stopped(self.received, f"stopped by {name} at step {trainer.global_step}; saved {path}")
        raise Stopped(self.received, f"stopped by {name} while testing; the training is complete")


class Finite(L.Callback):
    """Stops before the optimiser uses a loss or gradient that is infinite or NaN, and writes down how to see it again."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.steps: list[Began] = []  # those whose gradients the optimiser will use together

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.steps.append(Began.now(pl_module, batch, batch_idx))

    def on_before_zero_grad(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        del self.steps[:-1]

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self.loss = loss.detach()

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        named = [(name, p.grad) for name, p in pl_module.named_parameters() if p.grad is not None]
        checked = [self.loss]
        if trainer.precision != "16-mixed":  # where a scaler finds infinite gradients and skips the step itself
            checked.append(torch.nn.utils.get_total_norm([grad for _, grad in named]))
        if all(torch.isfinite(torch.stack(checked)).tolist()):
            return
        broken = next((name for name, grad in named if not torch.isfinite(grad).all()), None)
        what = f"the loss is {float(self.loss):g}" + (f", the gradient of {broken} is not finite" if broken else "")
        folder = self.checkpoints.folder
        good = kept(folder) if any(folder.glob("*.ckpt")) else "no epoch was finished before"
        told = f"stopped before the optimiser used it; {self._recorded(trainer, pl_module)}; {good}"
        raise NonFiniteError(f"step {trainer.global_step}: {what}; {told}")

    def _recorded(self, trainer: L.Trainer, task: L.LightningModule) -> str:
        """Find the module that it began with, and write what takes the step again; says where."""
        at, first = replay.find(trainer, task, self.steps)
        name = "replay.pt" if trainer.global_rank == 0 else f"replay-{trainer.global_rank}.pt"
        path = self.checkpoints.folder.parent / name
        record = {"step": trainer.global_step, "epoch": trainer.current_epoch, "first": first, **self.steps[at].plain()}
        content = {"zoo": self.checkpoints.about(trainer), "state_dict": task.state_dict(), "replay": record}
        try:
            publish(serialised(content), path)
        except ZooError as error:  # the numbers are what the run stops for
            return f"first: {first}; {error}"
        return f"first: {first}; batch, random states and weights are in {path}"
