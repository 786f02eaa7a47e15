"""The chunked backend: the reference backend, for some queries at a time.

Each chunk is recomputed in the backward pass, so memory grows with the number of keys, not with the
number of pairs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.attention.backends.biased_softmax import attend_span, is_softmax_of_sums
from zoo.attention.backends.reference import apply_weights, attend_reference, weights
from zoo.attention.backends.slices import AccumulatingSlicer
from zoo.attention.call import AttentionCall, Span
from zoo.attention.tokens import has_variable_sizes, is_transformed, upcast

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
    spans = [_make_span(call, start, min(start + rows, count)) for start in firsts]

    slicer = AccumulatingSlicer()
    attend = attend_span if is_softmax_of_sums(call) else _attend_span
    chunks = [attend(call, replace(span, slicer=slicer)) for span in spans]
    return torch.cat(chunks, dim=2).to(dtype)


def _attend_span(call: AttentionCall, span: Span) -> Tensor:
    def attend() -> Tensor:
        return apply_weights(call, weights(call, span), span)

    # Random numbers repeat in the backward pass, so that dropout drops the same weights.
    # Transforms do not follow what is recomputed.
    if not torch.is_grad_enabled() or is_transformed(call.q, call.k, call.v):
        return attend()
    return checkpoint(attend, use_reentrant=False, preserve_rng_state=call.dropout > 0)


def _make_span(call: AttentionCall, start: int, end: int) -> Span:
    """Return the span of queries `start` to `end` with all keys that they may attend to."""
    # Under a causal mask keys after the last query are left out.
    keys, queries = call.k.shape[2], call.q.shape[2]
    is_cut = call.causal and call.query_index is None
    return call.span(start, end, end + keys - queries if is_cut else keys)


def _rows_per_chunk(call: AttentionCall) -> int:
    """Count the rows of scores, in at least float32, that fit into a chunk."""
    batch, heads, _, _ = call.q.shape
    row = batch * heads * call.k.shape[2] * max(call.q.element_size(), 4)
    return max(CHUNK_BYTES.get(call.q.device.type, DEFAULT_CHUNK_BYTES) // row, MIN_ROWS)
