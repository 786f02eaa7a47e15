"""Slices of tensors whose gradients are summed in one buffer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.attention.call import slice_tokens
from zoo.attention.tokens import is_derived_again, is_transformed

Sums = dict[int, Tensor]
"""{number of a backward pass: sum of the gradients of a tensor's slices}. A pass that failed leaves
nothing behind for the next."""


class AccumulatingSlicer:
    """Slice tensors so that the gradients of all slices are summed in one buffer.

    For an ordinary slice, autograd allocates a gradient as large as the whole tensor, once per
    chunk.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor, Sums]] = {}

    def __call__(self, tensor: Tensor, tokens: slice) -> Tensor:
        """Slice tokens of [.., .., M, X]."""
        # Tensors are known by their id, so the slicer keeps each one alive.
        is_recorded = tensor.requires_grad and torch.is_grad_enabled()
        if not is_recorded or torch.compiler.is_compiling() or is_transformed(tensor):
            return slice_tokens(tensor, tokens)
        whole, sums = self.share(tensor)
        return _Slice.apply(whole, tokens, sums)  # type: ignore[no-untyped-call]

    def share(self, tensor: Tensor) -> tuple[Tensor, Sums]:
        """Return a tensor, and the sums which its slices add their gradients to."""
        if id(tensor) not in self._known:
            sums: Sums = {}
            whole = _Whole.apply(tensor, sums)  # type: ignore[no-untyped-call]
            self._known[id(tensor)] = tensor, whole, sums
        return self._known[id(tensor)][1:]


def get_sum(sums: Sums, like: Tensor) -> Tensor:
    """Return the sum of this backward pass, which starts at 0."""
    number = _backward_id()
    if number not in sums:
        sums[number] = torch.zeros_like(like, memory_format=torch.contiguous_format)
    return sums[number]


class _Whole(torch.autograd.Function):
    """The identity, with the summed gradients of the slices as its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: Sums) -> Tensor:
        ctx.sums = sums
        ctx.set_materialize_grads(False)  # its slices return no gradient
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        total = ctx.sums.pop(_backward_id(), None)
        # A second derivative comes from the slices and from the whole.
        if total is None or gradient is None:
            return (gradient if total is None else total), None
        return total.add_(gradient), None


class _Slice(torch.autograd.Function):
    """A slice that adds its gradient to the sum, in place of returning it."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, tokens: slice, sums: Sums) -> Tensor:
        ctx.shape, ctx.tokens, ctx.sums = whole.shape, tokens, sums
        return slice_tokens(whole, tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        # If this gradient will be differentiated again, it must be a part of the graph.
        if is_derived_again(gradient):
            zeros = gradient.new_zeros(ctx.shape)
            start, stop = ctx.tokens.start, ctx.tokens.stop
            return zeros.slice_scatter(gradient, 2, start, stop), None, None
        if _backward_id() not in ctx.sums:
            ctx.sums[_backward_id()] = gradient.new_zeros(ctx.shape)
        slice_tokens(ctx.sums[_backward_id()], ctx.tokens).add_(gradient)
        return None, None, None


def _backward_id() -> int:
    return torch._C._current_graph_task_id()
