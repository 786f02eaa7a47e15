"""The definition in chunks of queries, each made again when its gradient is: memory grows with the keys, not with the pairs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.attention.backends.reference import carried, dense, mix, weights
from zoo.attention.call import Collecting, Span, Terms
from zoo.attention.tokens import precise

LEAST = 16  # rows of a chunk at least
ROOM = {"cpu": 2**22}  # bytes that the scores of a chunk may take: what a cache holds
AMPLE = 2**28  # the same of any other device


def chunked(terms: Terms) -> Tensor:
    """[B, H, N, V + E], so many queries at a time as there is room for."""
    count, rows, dtype = terms.q.shape[2], _rows(terms), terms.v.dtype
    if count <= rows:
        return dense(terms)
    terms, cut = _prepared(terms), Collecting()
    spans = [
        replace(_span(terms, first, min(first + rows, count)), cut=cut)
        for first in range(0, count, rows)
    ]
    return torch.cat([_computed(terms, span) for span in spans], dim=2).to(dtype)


def _prepared(terms: Terms) -> Terms:
    """The same call, its keys and values lying head by head: matrix products would copy them for each chunk."""
    q, k, v = (precise(one).contiguous() for one in (terms.q, terms.k, carried(terms)))
    return terms.replace(q=q, k=k, v=v, riders=None)


def _computed(terms: Terms, span: Span) -> Tensor:
    def chunk() -> Tensor:
        return mix(terms, weights(terms, span), span)

    if not torch.is_grad_enabled():
        return chunk()
    return checkpoint(chunk, use_reentrant=False, preserve_rng_state=False)


def _span(terms: Terms, first: int, end: int) -> Span:
    """Queries from `first` to before `end`, with all keys that any of them may see."""
    past = terms.k.shape[2] - terms.q.shape[2]
    seen = end + past if terms.causal and terms.slots is None else terms.k.shape[2]
    return terms.span(slice(first, end), slice(0, seen))


def _rows(terms: Terms) -> int:
    """How many rows of scores, in at least float32, fit in the room there is."""
    batch, heads, _, _ = terms.q.shape
    row = batch * heads * terms.k.shape[2] * max(terms.q.element_size(), 4)
    return max(ROOM.get(terms.q.device.type, AMPLE) // row, LEAST)
