"""What is asked of measured values again and again."""

from __future__ import annotations

from torch import Tensor

from zoo.reporting.panel import distinct, same


def nothing(values: Tensor) -> bool:
    return same(values.nan_to_num(), values.new_zeros(()))


def middle(values: Tensor) -> tuple[Tensor, str]:
    """The head of [H, ...] that is shown for all, and what a title says of it: nothing where heads do not differ."""
    head = len(values) // 2
    return values[head], f", head {head + 1}" if len(distinct(values)) > 1 else ""
