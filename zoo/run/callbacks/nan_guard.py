"""Stop before the optimizer uses a number that is infinite or NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.distributed.tensor import DTensor

from zoo.data.base import DataModule
from zoo.errors import AlreadyReported, NonFiniteError, ZooError
from zoo.run.callbacks import nan_replay
from zoo.run.callbacks.checkpointing import Checkpoints
from zoo.run.checkpoint import (
    build_metadata,
    describe_checkpoints,
    get_random_state,
    serialise,
    to_plain,
    write_sealed,
)
from zoo.tasks.base import Task


@dataclass(frozen=True)
class StepRecord:
    """The state at the beginning of a training step, enough to repeat it."""

    batch: Any
    index: int
    rng_state: dict[str, Any]
    batch_state: dict[str, Any]  # what the task carries from the batch before

    @classmethod
    def capture(cls, task: Task, batch: Any, index: int) -> StepRecord:
        """Record the step that begins now."""
        return cls(batch, index, get_random_state(), task.batch_state())

    def move_to_host(self) -> StepRecord:
        """Return the record with its batch on the CPU; nothing waits for the copy.

        The numbers are there once the host has read anything else from the device.
        """

        def copy(tensor: Tensor) -> Tensor:
            return tensor.to("cpu", non_blocking=True)

        return replace(self, batch=apply_to_collection(self.batch, Tensor, copy))

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data and tensors on the CPU."""
        return {
            "batch": to_plain(self.batch),
            "index": self.index,
            "rng_state": self.rng_state,
            "batch_state": to_plain(self.batch_state),
        }


class FiniteGuard(L.Callback):
    """Stops before the optimizer uses a loss, gradient or weight that is infinite or NaN.

    Weights are checked too, since those that a batch does not use leave its loss finite. The guard
    writes `replay.pt`, from which the step can be repeated. It also stops before weights are saved
    that are not finite. All processes stop where one of them has such a number.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.steps: list[StepRecord] = []  # whose gradients the optimizer will use together
        self.losses: list[Tensor] = []  # of these steps

    def on_train_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Record what the step begins with."""
        # a device has no room for the earlier batches of a step that accumulates many
        if self.steps:
            self.steps[-1] = self.steps[-1].move_to_host()
        self.steps.append(StepRecord.capture(pl_module, batch, batch_idx))

    def on_before_zero_grad(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any
    ) -> None:
        """Forget the steps that the optimizer has used."""
        del self.steps[:-1], self.losses[:]

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor
    ) -> None:
        """Keep the loss."""
        self.losses.append(loss.detach())

    def on_before_optimizer_step(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        optimizer: Any,
    ) -> None:
        """Raise NonFiniteError where a loss, a gradient or a weight is not finite."""
        named = [(name, p.grad) for name, p in pl_module.named_parameters() if p.grad is not None]
        checked = [*self.losses, _compute_norm([p.detach() for p in pl_module.parameters()])]
        # a gradient scaler finds infinite gradients itself and skips the step
        if trainer.precision != "16-mixed":
            checked.append(_compute_norm([grad for _, grad in named]))
        # one transfer from the GPU for all of them
        sums = torch.stack([one.float() for one in checked])
        is_broken = not all(torch.isfinite(sums).tolist())
        processes = self.checkpoints.processes
        # all ranks must reach the collectives below. They share gradients, which `Task.backward`
        # makes NaN where a loss is not finite; without gradients to look at, they ask each other
        if trainer.precision == "16-mixed":
            is_broken = bool(processes.all_reduce_max(is_broken))
        if not is_broken:
            # the next batch arrives while the optimizer is at work
            self.steps.clear()
            return

        loss = next((one for one in self.losses if not one.isfinite()), self.losses[-1])
        losses = processes.all_gather(float(loss))
        problem = f"the loss is {', '.join(f'{loss:g}' for loss in losses)}"
        weight = self._find_broken_weight(pl_module)
        gradient = next((name for name, grad in named if not _is_finite(gather(grad))), None)
        if weight:
            problem += f", the weight {weight} is not finite"
        elif gradient:
            problem += f", the gradient of {gradient} is not finite"
        replay = self._write_replay(trainer, pl_module, f"the weight {weight}" if weight else "")
        if not processes.first:
            raise AlreadyReported(NonFiniteError.code)
        raise NonFiniteError(
            f"step {trainer.global_step}: {problem}; stopped before the optimizer used it; "
            f"{replay}; {self._describe_checkpoints()}"
        )

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Raise NonFiniteError where the last step broke a weight; no loss has used it yet."""
        self._check_weights(trainer, pl_module)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Raise NonFiniteError where the last step broke a weight that would now be saved."""
        self._check_weights(trainer, pl_module)

    def _check_weights(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        name = self._find_broken_weight(task)
        if not name:
            return
        if not self.checkpoints.processes.first:
            raise AlreadyReported(NonFiniteError.code)
        raise NonFiniteError(
            f"step {trainer.global_step}: {name} is not finite after it; "
            f"{self._describe_checkpoints()}"
        )

    def _find_broken_weight(self, task: L.LightningModule) -> str:
        """Return a weight that is not finite in some process. Collective: every rank calls it."""
        broken = ""
        for name, weight in task.named_parameters():
            if not _is_finite(weight.to_local() if isinstance(weight, DTensor) else weight):
                broken = name
                break
        return next(filter(None, self.checkpoints.processes.all_gather(broken)), "")

    def _describe_checkpoints(self) -> str:
        folder = self.checkpoints.folder
        if any(folder.glob("*.ckpt")):
            return describe_checkpoints(folder)
        return "no epoch was finished before"

    def _write_replay(self, trainer: L.Trainer, task: Task, weight: str) -> str:
        """Find the first module with such a number and write replay.pt; returns a message.

        A weight that is broken without any module noticing is named itself.
        """
        processes = self.checkpoints.processes
        found = nan_replay.find_origin(trainer, task, self.steps)
        weights = trainer.strategy.lightning_module_state_dict()
        origins = processes.all_gather(found and found[1])
        rank = next((rank for rank, origin in enumerate(origins) if origin), 0)
        first = origins[rank] or weight or "none when the step was repeated"
        # the rank that saw it first knows the batch
        step = processes.broadcast(self.steps[found[0] if found else -1].plain(), by=rank)

        path, outcome = self.checkpoints.folder.parent / "replay.pt", ""
        if processes.first:
            position = {"step": trainer.global_step, "epoch": trainer.current_epoch}
            data: DataModule = trainer.datamodule  # type: ignore[attr-defined]
            content = {
                "zoo": build_metadata(self.checkpoints.recipe, data.spec),
                "state_dict": weights,
                "replay": {**position, "first": first, **step},
            }
            outcome = f"batch, random states and weights are in {path}"
            try:
                write_sealed(serialise(content), path)
            except ZooError as error:
                # the run stops for the numbers, not for a full disk
                outcome = str(error)
        # a launcher may kill the other processes once one has ended
        trainer.strategy.barrier()
        where = f" in process {rank}" if processes.count > 1 else ""
        return f"first: {first}{where}; {outcome}"


def gather(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded over processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _compute_norm(tensors: list[Tensor]) -> Tensor:
    """Compute the norm of all numbers of some tensors, which is not finite where one is not."""
    return gather(torch.nn.utils.get_total_norm(tensors))


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
