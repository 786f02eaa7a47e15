"""Stop before the optimizer uses a number that is infinite or NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, distributed
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

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
from zoo.run.sharded_strategy import gather_weights
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


@dataclass(frozen=True)
class StepCheck:
    """A check that all numbers of an optimizer step are finite, which a GPU may still compute."""

    position: dict[str, int]
    """The steps and epochs before it."""
    records: list[StepRecord]
    losses: list[Tensor]
    gradients: list[str]
    """Names of the weights that have a gradient."""
    norms: Tensor
    """Their norms [gradients], of the parts that this process has."""
    broken: Tensor
    """A scalar on the device: 1 if a number of some process is not finite, else 0."""
    on_host: Tensor
    copied: torch.cuda.Event | None
    """Tells that the copy on the host is complete; None if it is no copy."""

    @classmethod
    def start(
        cls, trainer: L.Trainer, task: Task, steps: list[StepRecord], losses: list[Tensor]
    ) -> StepCheck:
        """Check the losses, weights and gradients of a step on the device; nothing waits for it."""
        named = [(name, p.grad) for name, p in task.named_parameters() if p.grad is not None]
        norms = _compute_norms([grad for _, grad in named])
        weights = _compute_norms([weight.detach() for weight in task.parameters()])
        checked = [torch.stack([loss.float() for loss in losses]), weights]
        # a gradient scaler finds infinite gradients itself and skips the step
        if trainer.precision != "16-mixed":
            checked += [norms, torch.linalg.vector_norm(norms).view(1)]
        broken = 1 - torch.cat(checked).isfinite().all().float()
        # each process has checked its own shards
        if any(isinstance(weight, DTensor) for weight in task.parameters()):
            distributed.all_reduce(broken, distributed.ReduceOp.MAX)

        on_host, copied = broken.to("cpu", non_blocking=True), None
        if broken.is_cuda:
            copied = torch.cuda.Event()
            copied.record()
        position = {"step": trainer.global_step, "epoch": trainer.current_epoch}
        names = [name for name, _ in named]
        return cls(position, steps, losses, names, norms, broken, on_host, copied)

    def is_broken(self) -> bool:
        """Return whether a number is not finite, once the device has computed it."""
        if self.copied is not None:
            self.copied.synchronize()
        return bool(self.on_host.tolist())

    def find_loss(self) -> float:
        """Return the first loss that is not finite, or else the last one."""
        return float(next((loss for loss in self.losses if not loss.isfinite()), self.losses[-1]))

    def find_gradient(self) -> str:
        """Return the name of the first gradient that is not finite in this process, or nothing."""
        are_finite = self.norms.isfinite().tolist()
        pairs = zip(self.gradients, are_finite, strict=True)
        return next((name for name, is_finite in pairs if not is_finite), "")


class KeptWeights:
    """The weights before an optimizer step, which come back after it if a flag is set.

    Its state may change all the same: a run that has such a step ends, and saves nothing of it.
    """

    def __init__(self, optimizer: Optimizer, broken: Tensor) -> None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        # integers, since a number that is not finite, times 0, is not 0
        self.bits = [_view_bits(weight.detach()) for weight in weights if weight.grad is not None]
        self.before = [torch.empty_like(bits) for bits in self.bits]
        torch._foreach_copy_(self.before, self.bits)
        self.broken = broken.to(torch.int16)

    def restore(self) -> None:
        """Undo the step if its numbers were broken; nothing waits for the device."""
        torch._foreach_sub_(self.before, self.bits)
        torch._foreach_mul_(self.before, self.broken)
        torch._foreach_add_(self.bits, self.before)


class FiniteGuard(L.Callback):
    """Stops before the optimizer uses a loss, gradient or weight that is infinite or NaN.

    Weights are checked too, since those that a batch does not use leave its loss finite. The guard
    writes `replay.pt`, from which the step can be repeated. It also stops before weights are saved
    that are not finite. All processes stop where one of them has such a number.

    A GPU checks a step while the host prepares the next one, before whose optimizer step the host
    reads the outcome. Until then the GPU itself keeps a broken step from changing weights.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.steps: list[StepRecord] = []  # whose gradients the optimizer will use together
        self.losses: list[Tensor] = []  # of these steps
        self.check: StepCheck | None = None  # of the step before, where it is read later
        self.kept: KeptWeights | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Undo broken steps of the optimizers."""
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(self._end_step)

    def _end_step(self, *_: Any) -> None:
        if self.kept is not None:
            self.kept.restore()
            self.kept = None

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
        self._read_check(trainer, pl_module)
        check = StepCheck.start(trainer, pl_module, self.steps, [*self.losses])
        if not _reads_later(trainer):
            self._read(trainer, pl_module, check)
        else:
            self.check = check
            # a fused kernel looks at the flag itself
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                optimizer.found_inf = check.broken
            else:
                self.kept = KeptWeights(optimizer, check.broken)
        # the next batch arrives while the optimizer is at work
        self.steps = []

    def on_validation_start(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Raise NonFiniteError where the last step was broken, or broke a weight."""
        self._read_check(trainer, pl_module)
        self._check_weights(trainer, pl_module)

    def on_save_checkpoint(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        checkpoint: dict[str, Any],
    ) -> None:
        """Raise NonFiniteError where the last step was broken, or broke a weight to be saved."""
        self._read_check(trainer, pl_module)
        self._check_weights(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Raise NonFiniteError where the last step was broken."""
        self._read_check(trainer, pl_module)

    def _read_check(self, trainer: L.Trainer, task: Task) -> None:
        """Raise NonFiniteError where the step before was broken."""
        check, self.check = self.check, None
        if check is not None:
            self._read(trainer, task, check)

    def _read(self, trainer: L.Trainer, task: Task, check: StepCheck) -> None:
        is_broken, processes = check.is_broken(), self.checkpoints.processes
        # all ranks must reach the collectives below. They share gradients, which `Task.backward`
        # makes NaN where a loss is not finite; without gradients to look at, they ask each other
        if trainer.precision == "16-mixed":
            is_broken = bool(processes.all_reduce_max(is_broken))
        if not is_broken:
            return

        # Lightning has divided it
        loss = check.find_loss() * trainer.accumulate_grad_batches
        losses = processes.all_gather(loss)
        message = f"the loss is {', '.join(f'{loss:g}' for loss in losses)}"
        weight = self._find_broken_weight(task)
        gradient = next(filter(None, processes.all_gather(check.find_gradient())), "")
        if weight:
            message += f", the weight {weight} is not finite"
        elif gradient:
            message += f", the gradient of {gradient} is not finite"
        replay = self._write_replay(trainer, task, check, f"the weight {weight}" if weight else "")
        if not processes.first:
            raise AlreadyReported(NonFiniteError.code)
        raise NonFiniteError(
            f"step {check.position['step']}: {message}; stopped before the optimizer used it; "
            f"{replay}; {self._describe_checkpoints()}"
        )

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
            if not _is_finite(_take_local(weight)):
                broken = name
                break
        return next(filter(None, self.checkpoints.processes.all_gather(broken)), "")

    def _describe_checkpoints(self) -> str:
        folder = self.checkpoints.folder
        if any(folder.glob("*.ckpt")):
            return describe_checkpoints(folder)
        return "no epoch was finished before"

    def _write_replay(self, trainer: L.Trainer, task: Task, check: StepCheck, weight: str) -> str:
        """Find the first module with such a number and write replay.pt; returns a message.

        A weight that is broken without any module noticing is named itself.
        """
        processes = self.checkpoints.processes
        located = nan_replay.find_origin(trainer, task, check.records)
        weights = gather_weights(trainer.strategy)
        origins = processes.all_gather(located and located[1])
        rank = next((rank for rank, origin in enumerate(origins) if origin), 0)
        first_module = origins[rank] or weight or "none when the step was repeated"
        # the rank that saw it first knows the batch
        step = processes.broadcast(check.records[located[0] if located else -1].plain(), by=rank)

        path, outcome = self.checkpoints.folder.parent / "replay.pt", ""
        if processes.first:
            data: DataModule = trainer.datamodule  # type: ignore[attr-defined]
            content = {
                "zoo": build_metadata(self.checkpoints.recipe, data.spec),
                "state_dict": weights,
                "replay": {**check.position, "first": first_module, **step},
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
        return f"first: {first_module}{where}; {outcome}"


def _reads_later(trainer: L.Trainer) -> bool:
    """Return whether the host reads a step's check after the step, so as not to wait for it.

    A gradient scaler waits for each step itself.
    """
    return trainer.strategy.root_device.type == "cuda" and trainer.precision != "16-mixed"


def _take_local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _view_bits(tensor: Tensor) -> Tensor:
    """Return a view of the numbers that this process has as integers of as many bytes."""
    local = _take_local(tensor)
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return local.view(kinds[local.element_size()])


def _compute_norms(tensors: list[Tensor]) -> Tensor:
    """Compute the norms [tensors] of local parts; one is not finite where a number is not."""
    norms = torch._foreach_norm([_take_local(tensor) for tensor in tensors])
    return torch.stack([norm.float() for norm in norms])


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
