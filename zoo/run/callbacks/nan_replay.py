"""Where numbers stopped being finite: the batches of a step once more, and every module asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from zoo.run.rng import random_state, restore_random
from zoo.tasks.base import Task


@dataclass(frozen=True)
class Began:
    """What a training step began with: enough to take it again."""

    batch: Any
    index: int
    random: dict[str, Any]
    carried: dict[str, Any]  # what the task had of the batch before

    @classmethod
    def now(cls, task: Task, batch: Any, index: int) -> Began:
        return cls(batch, index, random_state(), task.batch_state())

    def plain(self) -> dict[str, Any]:
        return {
            "batch": plain(self.batch),
            "index": self.index,
            "random": self.random,
            "carried": plain(self.carried),
        }


def find(trainer: L.Trainer, task: Task, steps: list[Began]) -> tuple[int, str] | None:
    """Which of the steps, and which module gives the first number that is not finite, in words; None if none does.

    Takes all steps again, with the weights as they are, in eager mode; no gradient is stored. Where weights are in shards all
    processes have to do it at once, and only what modules give is asked.
    """
    found = [_taken(trainer, task, step) for step in steps]
    return next(((at, what) for at, what in enumerate(found) if what), None)


def _taken(trainer: L.Trainer, task: Task, step: Began) -> str | None:
    found: list[str] = []
    named = [
        (n, p) for n, p in task.named_parameters() if p.requires_grad and not isinstance(p, DTensor)
    ]
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_alone(task))
        stack.enter_context(_asked(task, found.append))
        restore_random(step.random)
        task.load_batch_state(step.carried)
        with trainer.precision_plugin.train_step_context():
            loss = task.training_step(step.batch, step.index)
        assert isinstance(loss, Tensor)
        if not found and not torch.isfinite(loss):
            found.append("the loss, though what every module gives is finite")
        if not found and named:
            grads = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
            broken = (
                name for (name, _), grad in zip(named, grads, strict=True) if not _finite(grad)
            )
            found.extend(f"the gradient of {name}" for name in broken)
    return found[0] if found else None


@contextmanager
def _asked(task: nn.Module, tell: Callable[[str], None]) -> Iterator[None]:
    """Have all modules tell what they give, and what gradient arrives there; the innermost first."""

    def ask(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in tensors(output):
                if not _finite(tensor):
                    tell(f"what {name} gives")
                elif tensor.requires_grad:
                    tensor.register_hook(
                        lambda grad: (
                            None if _finite(grad) else tell(f"the gradient at what {name} gives")
                        )
                    )

        return hook

    handles = [
        module.register_forward_hook(ask(name)) for name, module in task.named_modules() if name
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _alone(task: Task) -> Iterator[None]:
    """Alone: nothing is counted twice by Lightning's log, and no other process is asked."""
    vars(task).update(log=_ignore, log_dict=_ignore, over_processes=lambda own: own)
    try:
        yield
    finally:
        del task.log, task.log_dict, task.average_over_processes


def _ignore(*told: Any, **more: Any) -> None:
    """In place of Lightning's log."""


def _finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(torch.isfinite(tensor).all())


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of numbers with a fraction in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield from (value,) if value.is_floating_point() or value.is_complex() else ()
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from tensors(one)
    elif is_dataclass(value):
        yield from tensors([getattr(value, field.name) for field in fields(value)])


def plain(value: Any) -> Any:
    """A batch as nested lists and mappings of tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value
