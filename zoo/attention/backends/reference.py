"""The definition of attention: all scores of a span of pairs at once, and what becomes of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention.call import Span, Terms
from zoo.attention.tokens import precise, unrounded


def dense(terms: Terms) -> Tensor:
    """All scores at once, [B, H, N, V + E]."""
    return mix(terms, weights(terms))


def scores(terms: Terms, span: Span | None = None) -> Tensor:
    """Scores [B, H, n, m] as they enter the normalisation, in at least float32; -inf where a pair may not attend."""
    span = span or terms.whole
    with unrounded(terms.q.device):
        values = _products(
            precise(span.of_rows(terms.q)) * terms.scale, precise(span.of_columns(terms.k))
        )
        bias, shut = terms.added(span), _shut(terms, span)
        if terms.rescore is not None:
            values = terms.rescore(
                values if bias is None else values + bias, mask(terms, span), span
            )
            bias = None
        parts = [
            one for one in (bias, shut) if one is not None
        ]  # summed first: they have fewer numbers than scores
        return values + sum(parts[1:], parts[0]) if parts else values


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q k^T, [B, H, n, m]; of a query alone as k q^T, of which MKL is faster by a third."""
    return (k @ q.mT).mT if q.shape[2] == 1 else q @ k.mT


def weights(terms: Terms, span: Span | None = None) -> Tensor:
    """Attention weights [B, H, n, m] in at least float32; a row that may attend to nothing is zero."""
    return weighed(terms, scores(terms, span), span)


def weighed(terms: Terms, values: Tensor, span: Span | None = None) -> Tensor:
    """The weights that scores [B, H, n, m] of the call come to."""
    with unrounded(terms.q.device):
        if terms.weigh is not None:
            return terms.weigh(values, mask(terms, span), span or terms.whole)
        if terms.keys.document is None:  # each token sees itself
            return values.softmax(-1)
        blind = ~mask(terms, span).any(-1, keepdim=True)
        return values.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)


def mix(terms: Terms, weights: Tensor, span: Span | None = None) -> Tensor:
    """What given weights [B, H, n, m] make of values and riders, [B, H, n, V + E]."""
    span = span or terms.whole
    mixed = carried(terms)
    with unrounded(terms.q.device):
        out = weights @ precise(span.of_columns(mixed))
        if terms.readout is not None:
            read = terms.readout(weights, span)
            out = out + F.pad(read, (0, mixed.shape[-1] - read.shape[-1]))
    return out.to(mixed.dtype)


def carried(terms: Terms) -> Tensor:
    """Values and what rides along with them, [B, H, M, V + E]."""
    return (
        terms.v
        if terms.riders is None
        else torch.cat([terms.v, terms.riders.to(terms.v.dtype)], dim=-1)
    )


def mask(terms: Terms, span: Span | None = None) -> Tensor:
    """bool [1|B, 1, n, m]: which keys a query may attend to."""
    span = span or terms.whole
    visible = _visible(terms, span)
    return terms.q.new_ones((1, 1, *span.size), dtype=torch.bool) if visible is None else visible


def _shut(terms: Terms, span: Span) -> Tensor | None:
    """0 where a query may attend, else -inf; None where it may everywhere."""
    visible = _visible(terms, span)
    if visible is None:
        return None
    return precise(terms.q).new_zeros(visible.shape).masked_fill(~visible, float("-inf"))


def _visible(terms: Terms, span: Span) -> Tensor | None:
    """The same; None for all."""
    return None if terms.visible is None else terms.grid(terms.visible, span)
