"""The chunked backend: the reference backend, for some queries at a time.

Each chunk is recomputed in the backward pass, so memory grows with the number of keys, not with the
number of pairs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.attention.backends.capped import attend_capped, is_only_capped
from zoo.attention.backends.reference import apply_weights, attend_reference, weights
from zoo.attention.call import AttentionCall, Span, slice_tokens
from zoo.attention.tokens import has_variable_sizes, is_derived_again, is_transformed, upcast

MIN_ROWS = 16  # fewest queries of a chunk
# Bytes of the scores of a chunk. On a CPU they should stay in its cache.
CHUNK_BYTES = {"cpu": 2**22}
DEFAULT_CHUNK_BYTES = 2**28


def attend_chunked(call: AttentionCall) -> Tensor:
    """Compute attention [B, H, N, V + E] in chunks of queries."""
    # torch.export cannot capture a loop over a variable number of chunks.
    if has_variable_sizes():
        return attend_reference(call)
    count, rows = call.q.shape[2], _rows_per_chunk(call)
    if count <= rows:
        return attend_reference(call)

    dtype = call.v.dtype
    # Matrix products would otherwise copy keys and values for each chunk.
    q, k, v = (upcast(heads).contiguous() for heads in (call.q, call.k, call.concat_values()))
    call = call.replace(q=q, k=k, v=v, extra_values=None)
    # A compiler makes a graph for each number of chunks, not for each number of queries.
    firsts = [number * rows for number in range(-(-count // rows))]
    spans = [_make_span(call, first, min(first + rows, count)) for first in firsts]

    def attend(call: AttentionCall) -> Tensor:
        slicer = AccumulatingSlicer()
        chunks = [_attend_span(call, replace(span, slicer=slicer)) for span in spans]
        return torch.cat(chunks, dim=2)

    if is_only_capped(call):
        return attend_capped(
            call, spans, lambda q, k, v, sinks: attend(call.replace(q=q, k=k, v=v, sinks=sinks))
        ).to(dtype)
    return attend(call).to(dtype)


def _attend_span(call: AttentionCall, span: Span) -> Tensor:
    def attend() -> Tensor:
        return apply_weights(call, weights(call, span), span)

    # Random numbers repeat in the backward pass, so that dropout drops the same weights.
    # Transforms do not follow what is recomputed.
    if not torch.is_grad_enabled() or is_transformed(call.q, call.k, call.v):
        return attend()
    return checkpoint(attend, use_reentrant=False, preserve_rng_state=call.dropout > 0)


def _make_span(call: AttentionCall, first: int, end: int) -> Span:
    """Return the span of queries `first` to `end` with all keys that they may attend to."""
    # Under a causal mask keys after the last query are left out.
    keys, queries = call.k.shape[2], call.q.shape[2]
    is_cut = call.causal and call.query_index is None
    return call.span(first, end, end + keys - queries if is_cut else keys)


def _rows_per_chunk(call: AttentionCall) -> int:
    """Count the rows of scores, in at least float32, that fit into a chunk."""
    batch, heads, _, _ = call.q.shape
    row = batch * heads * call.k.shape[2] * max(call.q.element_size(), 4)
    return max(CHUNK_BYTES.get(call.q.device.type, DEFAULT_CHUNK_BYTES) // row, MIN_ROWS)


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
        if id(tensor) not in self._known:
            sums: Sums = {}
            whole = _Whole.apply(tensor, sums)  # type: ignore[no-untyped-call]
            self._known[id(tensor)] = tensor, whole, sums
        _, whole, sums = self._known[id(tensor)]
        return _Slice.apply(whole, tokens, sums)  # type: ignore[no-untyped-call]


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
        return (gradient if total is None else total), None


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
