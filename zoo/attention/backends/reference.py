"""The definition of attention: all scores of a span of pairs at once, and what becomes of them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention.call import AttentionCall, Span
from zoo.attention.tokens import disable_autocast, upcast


def attend_reference(call: AttentionCall) -> Tensor:
    """All scores at once, [B, H, N, V + E]."""
    return apply_weights(call, weights(call))


def scores(call: AttentionCall, span: Span | None = None) -> Tensor:
    """Scores [B, H, n, m] as they enter the normalisation, in at least float32; -inf where a pair may not attend."""
    span = span or call.full_span
    with disable_autocast(call.q.device):
        values = _products(
            upcast(span.slice_queries(call.q)) * call.scale, upcast(span.slice_keys(call.k))
        )
        bias, shut = call.sum_biases(span), _shut(call, span)
        if call.transform_scores is not None:
            values = call.transform_scores(
                values if bias is None else values + bias, attention_mask(call, span), span
            )
            bias = None
        parts = [
            one for one in (bias, shut) if one is not None
        ]  # summed first: they have fewer numbers than scores
        return values + sum(parts[1:], parts[0]) if parts else values


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q k^T, [B, H, n, m]; of a query alone as k q^T, of which MKL is faster by a third."""
    return (k @ q.mT).mT if q.shape[2] == 1 else q @ k.mT


def weights(call: AttentionCall, span: Span | None = None) -> Tensor:
    """Attention weights [B, H, n, m] in at least float32; a row that may attend to nothing is zero."""
    return normalize_scores(call, scores(call, span), span)


def normalize_scores(call: AttentionCall, values: Tensor, span: Span | None = None) -> Tensor:
    """The weights that scores [B, H, n, m] of the call come to."""
    with disable_autocast(call.q.device):
        if call.normalize is not None:
            return call.normalize(values, attention_mask(call, span), span or call.full_span)
        if call.keys.document is None:  # each token sees itself
            return values.softmax(-1)
        blind = ~attention_mask(call, span).any(-1, keepdim=True)
        return values.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)


def apply_weights(call: AttentionCall, weights: Tensor, span: Span | None = None) -> Tensor:
    """What given weights [B, H, n, m] make of values and riders, [B, H, n, V + E]."""
    span = span or call.full_span
    mixed = concat_values(call)
    with disable_autocast(call.q.device):
        out = weights @ upcast(span.slice_keys(mixed))
        if call.extra_output is not None:
            read = call.extra_output(weights, span)
            out = out + F.pad(read, (0, mixed.shape[-1] - read.shape[-1]))
    return out.to(mixed.dtype)


def concat_values(call: AttentionCall) -> Tensor:
    """Values and what rides along with them, [B, H, M, V + E]."""
    return (
        call.v
        if call.extra_values is None
        else torch.cat([call.v, call.extra_values.to(call.v.dtype)], dim=-1)
    )


def attention_mask(call: AttentionCall, span: Span | None = None) -> Tensor:
    """bool [1|B, 1, n, m]: which keys a query may attend to."""
    span = span or call.full_span
    visible = _visible(call, span)
    return call.q.new_ones((1, 1, *span.size), dtype=torch.bool) if visible is None else visible


def _shut(call: AttentionCall, span: Span) -> Tensor | None:
    """0 where a query may attend, else -inf; None where it may everywhere."""
    visible = _visible(call, span)
    if visible is None:
        return None
    return upcast(call.q).new_zeros(visible.shape).masked_fill(~visible, float("-inf"))


def _visible(call: AttentionCall, span: Span) -> Tensor | None:
    """The same; None for all."""
    return None if call.visible is None else call.evaluate(call.visible, span)
