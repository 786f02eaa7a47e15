"""Find where two passes begin to differ: the first module whose outputs differ for equal inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from zoo.auditing.comparisons import ModelComparison
from zoo.auditing.subject import AuditSubject, measure_error
from zoo.integrations.structure import flatten


@dataclass
class ModuleRecord:
    """Inputs and outputs of a module in the calls of a pass.

    Attributes:
        inputs: For each call, the tensors by number.
        outputs: The same for its outputs.
    """

    inputs: list[list[Tensor]] = field(default_factory=list)
    outputs: list[list[Tensor]] = field(default_factory=list)


def record_modules(model: nn.Module, compute: Callable[[], Any]) -> dict[str, ModuleRecord]:
    """Return what all modules receive and return in a pass, in the order in which they end."""
    records: dict[str, ModuleRecord] = {}

    with ExitStack() as stack:
        for path, module in model.named_modules():

            def keep(
                module: nn.Module, args: Any, kwargs: Any, output: Any, path: str = path
            ) -> None:
                record = records.setdefault(path, ModuleRecord())
                # Caches change later, and have no tokens to align.
                inputs = [*args, *(value for name, value in kwargs.items() if "cache" not in name)]
                record.inputs.append([tensor for value in inputs for tensor in flatten(value)])
                outputs = (
                    output
                    if isinstance(output, Tensor | tuple | list)
                    else tuple(value for value in getattr(output, "values", tuple)())
                )
                record.outputs.append(flatten(outputs))

            handle = module.register_forward_hook(keep, with_kwargs=True)
            stack.callback(handle.remove)
        compute()
    return records


def find_place(
    subject: AuditSubject, comparison: ModelComparison, bound: float
) -> tuple[str | None, dict[str, ModuleRecord]]:
    """Return the first module whose outputs differ although its inputs agree.

    Args:
        subject: A subject with a model.
        comparison: Two passes that differ.
        bound: The largest relative difference that rounding explains.

    Returns:
        Its path, the name of the class for the model itself, or None; and the record of the tested
        pass.
    """
    model = subject.model
    with torch.no_grad():
        reference = record_modules(model, lambda: comparison.reference(subject))
        tested = record_modules(model, lambda: comparison.tested(subject))
    for path, record in reference.items():
        other = tested.get(path)
        if other is None:
            continue
        agree = _compare(record.inputs, other.inputs, comparison, bound)
        differ = _compare(record.outputs, other.outputs, comparison, bound)
        if differ is False and agree is not False:
            return path or type(model).__name__, tested
    return None, tested


def _compare(
    reference: list[list[Tensor]],
    tested: list[list[Tensor]],
    comparison: ModelComparison,
    bound: float,
) -> bool | None:
    """Return whether tensors with tokens agree; None if there are none to compare."""
    left, right = _join(reference), _join(tested)
    if left is None or right is None or len(left) != len(right):
        return None
    verdict = None
    for first, second in zip(left, right, strict=True):
        try:
            rows = _count_rows(comparison)
            second = comparison.select(second.expand(max(rows, len(second)), *second.shape[1:]))
            first = comparison.select_reference(first)
        except (RuntimeError, IndexError):
            continue
        if first.shape != second.shape:
            continue
        if measure_error(second, first) > bound:
            return False
        verdict = True
    return verdict


def _count_rows(comparison: ModelComparison) -> int:
    return len(comparison.scene.ids) if comparison.scene is not None else 1


def _join(calls: list[list[Tensor]]) -> list[Tensor] | None:
    """Join tensors [B, n, ...] of the calls of a pass along tokens; skip masks and others."""
    lists = [
        [one for one in call if one.dim() in (2, 3) and one.dtype != torch.bool] for call in calls
    ]
    if len({len(one) for one in lists}) != 1:
        return None
    try:
        return [torch.cat([*parts], 1) for parts in zip(*lists, strict=True)]
    except RuntimeError:
        return None
