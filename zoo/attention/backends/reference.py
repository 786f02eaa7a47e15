"""The reference backend, which defines attention: all scores of a span at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention.call import AttentionCall, Span
from zoo.attention.soft_cap import apply_soft_cap
from zoo.attention.tokens import disable_autocast, upcast


def attend_reference(call: AttentionCall) -> Tensor:
    """Compute attention [B, H, N, V + E]: the output, then the averages of extra values."""
    return apply_weights(call, weights(call))


def weights(call: AttentionCall, span: Span | None = None) -> Tensor:
    """Compute weights [B, H, n, m] in at least float32; rows without visible keys are 0."""
    return normalize_scores(call, scores(call, span), span)


def scores(call: AttentionCall, span: Span | None = None) -> Tensor:
    """Compute scores [B, H, n, m] as they enter the normalization, in at least float32.

    Scale, soft cap, biases and transforms are included; hidden pairs are -inf.
    """
    span = span or call.full_span
    with disable_autocast(call.q.device):
        products = _multiply(
            upcast(span.slice_queries(call.q)) * call.scale, upcast(span.slice_keys(call.k))
        )
        if call.softcap is not None:
            products = apply_soft_cap(products, call.softcap)
        bias, hidden = call.sum_biases(span), hide(call, span)
        # A transform receives the biased scores of all pairs, and the mask of visible ones.
        if call.transform_scores is not None:
            biased = products if bias is None else products + bias
            products = call.transform_scores(biased, attention_mask(call, span), span)
            bias = None
        # Biases and mask are summed first: they often broadcast and are smaller than the products.
        additions = [part for part in (bias, hidden) if part is not None]
        return products + sum(additions[1:], additions[0]) if additions else products


def normalize_scores(call: AttentionCall, scores: Tensor, span: Span | None = None) -> Tensor:
    """Turn scores [B, H, n, m] into weights."""
    with disable_autocast(call.q.device):
        if call.normalize is not None:
            return call.normalize(scores, attention_mask(call, span), span or call.full_span)
        if call.sinks is not None:
            # The sink is one more column, which also gives rows without visible keys a softmax.
            sinks = call.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
            return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        if call.keys.document is None and call.mask is None:  # each token sees itself
            return scores.softmax(-1)

        # A softmax over -inf is NaN: rows without visible keys are replaced before and after it.
        # A bias may hide all keys that a mask leaves.
        is_blind = (scores == -torch.inf).all(-1, keepdim=True)
        return scores.masked_fill(is_blind, 0).softmax(-1).masked_fill(is_blind, 0)


def apply_weights(call: AttentionCall, weights: Tensor, span: Span | None = None) -> Tensor:
    """Average values and extra values by weights [B, H, n, m], after dropout: [B, H, n, V + E]."""
    span = span or call.full_span
    values = call.concat_values()
    if call.dropout:
        weights = F.dropout(weights, call.dropout)
    with disable_autocast(call.q.device):
        out = weights @ span.slice_keys(values).to(weights.dtype)
        if call.extra_output is not None:
            extra = call.extra_output(weights, span)
            out = out + F.pad(extra, (0, values.shape[-1] - extra.shape[-1]))
    return out.to(values.dtype)


def attention_mask(call: AttentionCall, span: Span | None = None) -> Tensor:
    """Compute which keys each query may attend to, bool [1|B, 1, n, m]."""
    span = span or call.full_span
    if call.visible is None:
        return call.q.new_ones((1, 1, *span.size), dtype=torch.bool)
    return call.evaluate(call.visible, span)


def hide(call: AttentionCall, span: Span) -> Tensor | None:
    """Make a bias [1|B, 1, n, m] that is -inf at hidden pairs; None if all are visible."""
    if call.visible is None:
        return None
    visible = call.evaluate(call.visible, span)
    return upcast(call.q).new_zeros(visible.shape).masked_fill(~visible, float("-inf"))


def _multiply(q: Tensor, k: Tensor) -> Tensor:
    """Compute q k^T [B, H, n, m]."""
    # For a single query MKL computes (k q^T)^T faster by a third.
    return (k @ q.mT).mT if q.shape[2] == 1 else q @ k.mT
