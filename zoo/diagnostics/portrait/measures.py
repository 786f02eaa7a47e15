"""What is asked of measured values again and again."""

from __future__ import annotations

import torch
from torch import Tensor


def same(first: Tensor, second: Tensor) -> bool:
    """Equal up to rounding, NaN where the other is."""
    return torch.allclose(first, second.expand_as(first), atol=1e-6, rtol=1e-6, equal_nan=True)


def nothing(values: Tensor) -> bool:
    return same(values.nan_to_num(), values.new_zeros(()))


def distinct(values: Tensor) -> Tensor:
    """Heads [H, ...] if they differ, else the first alone, which stands for all."""
    return values[:1] if same(values, values[:1]) else values


def middle(values: Tensor) -> tuple[Tensor, str]:
    """The head of [H, ...] that is shown for all, and what a title says of it: nothing where heads do not differ."""
    head = len(values) // 2
    return values[head], f", head {head + 1}" if len(distinct(values)) > 1 else ""


def named(values: Tensor) -> dict[str, Tensor]:
    """Heads [H, ...] by name, or one that stands for all."""
    if len(values) == 1:
        return {"all heads": values[0]}
    return {f"head {head}": value for head, value in enumerate(values, start=1)}
