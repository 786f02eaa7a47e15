"""Slices of tensors along their tokens whose gradients are added up in place.

Of many slices of one tensor, autograd would make each gradient as large as the whole, with zeros, and add them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def plain(tensor: Tensor, part: slice) -> Tensor:
    """Tokens of a tensor [.., .., M, X]."""
    return tensor[:, :, part]


class Collecting:
    """`plain`, for tensors that are there as long as this is."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor, list[Tensor]]] = {}

    def __call__(self, tensor: Tensor, part: slice) -> Tensor:
        if not tensor.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return plain(tensor, part)
        if id(tensor) not in self._known:
            sums = list[Tensor]()
            self._known[id(tensor)] = tensor, _Whole.apply(tensor, sums), sums  # type: ignore[no-untyped-call]
        _, whole, sums = self._known[id(tensor)]
        return _Part.apply(whole, part, sums)  # type: ignore[no-untyped-call]


class _Whole(torch.autograd.Function):
    """The tensor itself, which gets the gradient that its parts have added up."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: list[Tensor]) -> Tensor:
        ctx.sums = sums
        ctx.set_materialize_grads(False)  # its parts hand nothing on
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: None) -> tuple[Tensor | None, None]:
        return (ctx.sums.pop() if ctx.sums else None), None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, part: slice, sums: list[Tensor]) -> Tensor:
        ctx.shape, ctx.part, ctx.sums = whole.shape, part, sums
        return plain(whole, part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        if not ctx.sums:
            ctx.sums.append(gradient.new_zeros(ctx.shape))
        plain(ctx.sums[0], ctx.part).add_(gradient)
        return None, None, None
