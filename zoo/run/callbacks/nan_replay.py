"""Find where numbers stopped being finite: repeat a step with a hook on every module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from zoo.run.checkpoint import set_random_state
from zoo.tasks.base import Task

if TYPE_CHECKING:
    from zoo.run.callbacks.nan_guard import StepRecord


def find_origin(trainer: L.Trainer, task: Task, steps: list[StepRecord]) -> tuple[int, str] | None:
    """Repeat steps in eager mode with the current weights; no gradient is stored.

    Where weights are sharded, all processes have to call this at once, and gradients of weights
    are not checked.

    Returns:
        The index of the step and a description of the first module whose output or gradient is not
        finite; None if there is none.
    """
    origins = [_repeat(trainer, task, step) for step in steps]
    return next(((index, origin) for index, origin in enumerate(origins) if origin), None)


def _repeat(trainer: L.Trainer, task: Task, step: StepRecord) -> str | None:
    origins: list[str] = []
    trained = [
        (name, weight)
        for name, weight in task.named_parameters()
        if weight.requires_grad and not isinstance(weight, DTensor)
    ]
    with ExitStack() as stack:
        # hooks that are added after compilation would not run
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_isolate(task))
        stack.enter_context(_watch_modules(task, origins.append))
        set_random_state(step.rng_state)
        task.load_batch_state(step.batch_state)
        with trainer.precision_plugin.train_step_context():
            loss = task.training_step(move_data_to_device(step.batch, task.device), step.index)
        assert isinstance(loss, Tensor)
        if not origins and not torch.isfinite(loss):
            origins.append("the loss, though the outputs of all modules are finite")
        if not origins and trained:
            weights = [weight for _, weight in trained]
            # not backward(): gradients that the optimizer has must stay
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
            for (name, _), gradient in zip(trained, gradients, strict=True):
                if not _is_finite(gradient):
                    origins.append(f"the gradient of {name}")
    return origins[0] if origins else None


@contextmanager
def _watch_modules(task: nn.Module, report: Callable[[str], None]) -> Iterator[None]:
    """Report modules whose output, or its gradient, is not finite; inner modules come first."""

    def make_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def check_gradient(gradient: Tensor) -> None:
            if not _is_finite(gradient):
                report(f"the gradient of the output of {name}")

        def check_output(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in list_tensors(output):
                if not _is_finite(tensor):
                    report(f"the output of {name}")
                # on the tensor itself: backward hooks of modules know no outputs in dataclasses
                elif tensor.requires_grad:
                    tensor.register_hook(check_gradient)

        return check_output

    handles = [
        module.register_forward_hook(make_hook(name))
        for name, module in task.named_modules()
        if name
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _isolate(task: Task) -> Iterator[None]:
    """Keep a repeated step from Lightning's log and from other processes."""
    vars(task).update(log=_ignore, log_dict=_ignore, average_over_processes=lambda value: value)
    try:
        yield
    finally:
        del task.log, task.log_dict, task.average_over_processes


def _ignore(*args: Any, **kwargs: Any) -> None:
    """Stand in for Lightning's log."""


def _is_finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(torch.isfinite(tensor).all())


def list_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the real and complex tensors of nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, Mapping):
        yield from list_tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for part in value:
            yield from list_tensors(part)
    elif is_dataclass(value):
        yield from list_tensors([getattr(value, field.name) for field in fields(value)])
