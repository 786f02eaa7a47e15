"""Sums over a key and all that follow it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.attention.tokens import is_transformed


def sum_suffixes(x: Tensor) -> Tensor:
    """Return the sum from each key on, of numbers [.., M]."""
    is_recorded = x.requires_grad and torch.is_grad_enabled()
    if not is_recorded or torch.compiler.is_compiling() or is_transformed(x):
        return x.flip(-1).cumsum(-1).flip(-1)
    return _SumSuffixes.apply(x)  # type: ignore[no-untyped-call]


class _SumSuffixes(torch.autograd.Function):
    """Sums whose gradient exchanges no keys: autograd would copy it four times in reverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.flip(-1).cumsum(-1).flip(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # a key is a part of its own sum and of those of all keys before it
        return gradient.cumsum(-1)
