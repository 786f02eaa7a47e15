"""The definition in chunks of queries, each made again when its gradient is: memory grows with the keys, not with the pairs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.attention.backends.reference import apply_weights, attend_reference, concat_values, weights
from zoo.attention.call import AccumulatingSlicer, AttentionCall, Span
from zoo.attention.tokens import upcast

LEAST = 16  # rows of a chunk at least
ROOM = {"cpu": 2**22}  # bytes that the scores of a chunk may take: what a cache holds
AMPLE = 2**28  # the same of any other device


def attend_chunked(call: AttentionCall) -> Tensor:
    """[B, H, N, V + E], so many queries at a time as there is room for."""
    count, rows, dtype = call.q.shape[2], _rows(call), call.v.dtype
    if count <= rows:
        return attend_reference(call)
    call, cut = _prepared(call), AccumulatingSlicer()
    spans = [
        replace(_span(call, first, min(first + rows, count)), slicer=cut)
        for first in range(0, count, rows)
    ]
    return torch.cat([_computed(call, span) for span in spans], dim=2).to(dtype)


def _prepared(call: AttentionCall) -> AttentionCall:
    """The same call, its keys and values lying head by head: matrix products would copy them for each chunk."""
    q, k, v = (upcast(one).contiguous() for one in (call.q, call.k, concat_values(call)))
    return call.replace(q=q, k=k, v=v, extra_values=None)


def _computed(call: AttentionCall, span: Span) -> Tensor:
    def chunk() -> Tensor:
        return apply_weights(call, weights(call, span), span)

    if not torch.is_grad_enabled():
        return chunk()
    return checkpoint(chunk, use_reentrant=False, preserve_rng_state=False)


def _span(call: AttentionCall, first: int, end: int) -> Span:
    """Queries from `first` to before `end`, with all keys that any of them may see."""
    past = call.k.shape[2] - call.q.shape[2]
    seen = end + past if call.causal and call.query_index is None else call.k.shape[2]
    return call.span(slice(first, end), slice(0, seen))


def _rows(call: AttentionCall) -> int:
    """How many rows of scores, in at least float32, fit in the room there is."""
    batch, heads, _, _ = call.q.shape
    row = batch * heads * call.k.shape[2] * max(call.q.element_size(), 4)
    return max(ROOM.get(call.q.device.type, AMPLE) // row, LEAST)
