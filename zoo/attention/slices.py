"""Slices of tensors along their tokens whose gradients are added up in place.

Of many slices of one tensor, autograd would make each gradient as large as the whole, with zeros, and add them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Sums = dict[int, Tensor]
"""What the parts of a tensor have added up, for each backward pass, so that one that failed leaves nothing to the next."""


def plain(tensor: Tensor, part: slice) -> Tensor:
    """Tokens of a tensor [.., .., M, X]."""
    return tensor[:, :, part]


class Collecting:
    """`plain`, for tensors that are there as long as this is."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor, Sums]] = {}

    def __call__(self, tensor: Tensor, part: slice) -> Tensor:
        if not tensor.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return plain(tensor, part)
        if id(tensor) not in self._known:
            sums: Sums = {}
            self._known[id(tensor)] = tensor, _Whole.apply(tensor, sums), sums  # type: ignore[no-untyped-call]
        _, whole, sums = self._known[id(tensor)]
        return _Part.apply(whole, part, sums)  # type: ignore[no-untyped-call]


class _Whole(torch.autograd.Function):
    """The tensor itself, which gets the gradient that its parts have added up."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: Sums) -> Tensor:
        ctx.sums = sums
        ctx.set_materialize_grads(False)  # its parts hand nothing on
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        found = ctx.sums.pop(_pass(), None)
        return (gradient if found is None else found), None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, part: slice, sums: Sums) -> Tensor:
        ctx.shape, ctx.part, ctx.sums = whole.shape, part, sums
        return plain(whole, part)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        if torch.is_grad_enabled():  # it will be differentiated again
            zeros = gradient.new_zeros(ctx.shape)
            return zeros.slice_scatter(gradient, 2, ctx.part.start, ctx.part.stop), None, None
        if _pass() not in ctx.sums:
            ctx.sums[_pass()] = gradient.new_zeros(ctx.shape)
        plain(ctx.sums[_pass()], ctx.part).add_(gradient)
        return None, None, None


def _pass() -> int:
    return torch._C._current_graph_task_id()
