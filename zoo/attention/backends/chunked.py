"""The chunked backend: the reference for some queries at a time.

Each chunk is recomputed in the backward pass, so memory grows with the number of keys, not of
pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.attention.backends.reference import apply_weights, attend_reference, weights
from zoo.attention.call import AttentionCall, Span, slice_tokens
from zoo.attention.tokens import has_variable_sizes, upcast

MIN_ROWS = 16  # of a chunk
CHUNK_BYTES = {"cpu": 2**22}  # bytes of the scores of a chunk: what a CPU's cache holds
DEFAULT_CHUNK_BYTES = 2**28  # on any other device


def attend_chunked(call: AttentionCall) -> Tensor:
    """Compute attention [B, H, N, V + E] in chunks of queries."""
    if has_variable_sizes():  # the number of chunks is variable, too
        return attend_reference(call)
    count, rows = call.q.shape[2], _rows_per_chunk(call)
    if count <= rows:
        return attend_reference(call)

    dtype = call.v.dtype
    # contiguous, because matrix products would otherwise copy keys and values for each chunk
    q, k, v = (upcast(heads).contiguous() for heads in (call.q, call.k, call.concat_values()))
    call = call.replace(q=q, k=k, v=v, extra_values=None)

    slicer = AccumulatingSlicer()
    chunks = []
    for first in range(0, count, rows):
        span = _make_span(call, first, min(first + rows, count))
        chunks.append(_attend_span(call, replace(span, slicer=slicer)))
    return torch.cat(chunks, dim=2).to(dtype)


def _attend_span(call: AttentionCall, span: Span) -> Tensor:
    def attend() -> Tensor:
        return apply_weights(call, weights(call, span), span)

    if not torch.is_grad_enabled():
        return attend()
    return checkpoint(attend, use_reentrant=False, preserve_rng_state=call.dropout > 0)


def _make_span(call: AttentionCall, first: int, end: int) -> Span:
    """Make the span of queries `first` to `end` with all keys that they may attend to."""
    keys, queries = call.k.shape[2], call.q.shape[2]
    is_cut = call.causal and call.query_index is None
    return call.span(slice(first, end), slice(0, end + keys - queries if is_cut else keys))


def _rows_per_chunk(call: AttentionCall) -> int:
    """Count the rows of scores, in at least float32, that fit into a chunk."""
    batch, heads, _, _ = call.q.shape
    row = batch * heads * call.k.shape[2] * max(call.q.element_size(), 4)
    return max(CHUNK_BYTES.get(call.q.device.type, DEFAULT_CHUNK_BYTES) // row, MIN_ROWS)


Sums = dict[int, Tensor]
"""Gradients of the slices of a tensor, summed for each backward pass by its number, so that a pass
that failed leaves nothing to the next."""


class AccumulatingSlicer:
    """Slice tensors so that the gradients of all slices add up in one buffer.

    The gradient of an ordinary slice is a zero tensor as large as the whole, for each chunk.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor, Sums]] = {}

    def __call__(self, tensor: Tensor, tokens: slice) -> Tensor:
        """Slice tokens of [.., .., M, X]; tensors must live as long as the slicer."""
        if not tensor.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return slice_tokens(tensor, tokens)
        if id(tensor) not in self._known:
            sums: Sums = {}
            whole = _Whole.apply(tensor, sums)  # type: ignore[no-untyped-call]
            self._known[id(tensor)] = tensor, whole, sums
        _, whole, sums = self._known[id(tensor)]
        return _Slice.apply(whole, tokens, sums)  # type: ignore[no-untyped-call]


class _Whole(torch.autograd.Function):
    """The tensor itself, whose gradient is the sum of those of its slices."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: Sums) -> Tensor:
        ctx.sums = sums
        ctx.set_materialize_grads(False)  # its slices pass no gradient on
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        total = ctx.sums.pop(_backward_id(), None)
        return (gradient if total is None else total), None


class _Slice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, tokens: slice, sums: Sums) -> Tensor:
        ctx.shape, ctx.tokens, ctx.sums = whole.shape, tokens, sums
        return slice_tokens(whole, tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        if torch.is_grad_enabled():  # this gradient will be differentiated again
            zeros = gradient.new_zeros(ctx.shape)
            start, stop = ctx.tokens.start, ctx.tokens.stop
            return zeros.slice_scatter(gradient, 2, start, stop), None, None
        if _backward_id() not in ctx.sums:
            ctx.sums[_backward_id()] = gradient.new_zeros(ctx.shape)
        slice_tokens(ctx.sums[_backward_id()], ctx.tokens).add_(gradient)
        return None, None, None


def _backward_id() -> int:
    return torch._C._current_graph_task_id()
