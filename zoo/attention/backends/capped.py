"""Soft-capped attention in chunks of queries, with a backward pass of its own.

It computes what the reference computes, without its copies of scores: on a CPU a chunk stays in the
cache, and most of the time beyond the matrix products is that of tanh and exp. The backward pass
computes weights again from the log-sum-exp of each row.

    t = tanh(q k^T scale / c),  s = c t + mask,  w = exp(s - L),  out = w v
    dw = g v^T,  ds = w (dw - sum(g out)),  d(q k^T) = ds (1 - t^2) scale
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.attention.backends.reference import hide
from zoo.attention.call import AttentionCall, Span
from zoo.attention.tokens import disable_autocast, is_derived_again, is_transformed

# exp(2 x) is infinite for larger x, where tanh has long been 1.
LARGEST = 40.0

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(q, k, v, sinks) -> the output, by operations with derivatives of any order."""


def is_only_capped(call: AttentionCall) -> bool:
    """Return whether a call has a soft cap, a mask and sinks, and nothing else."""
    if call.softcap is None or call.dropout or call.biases or call.low_rank_biases:
        return False
    fields = (call.transform_scores, call.normalize, call.extra_output)
    if any(field is not None for field in fields) or torch.compiler.is_compiling():
        return False
    return call.q.device.type == "cpu" and not is_transformed(call.q, call.k, call.v, call.sinks)


def attend_capped(call: AttentionCall, spans: Iterable[Span], attend: Attend) -> Tensor:
    """Compute the attention [B, H, N, V] of a call for which `is_only_capped` holds.

    Args:
        call: The call; q, k and v have one dtype of at least float32 and are contiguous.
        spans: Its chunks, in order.
        attend: Computes the same, for derivatives of derivatives.
    """
    assert call.softcap is not None
    chunks = tuple(Chunk.of(call, span) for span in spans)
    sinks = None if call.sinks is None else call.sinks.to(call.q.dtype)
    options = chunks, call.scale / call.softcap, call.softcap, attend
    with disable_autocast(call.q.device):
        out: Tensor = _Capped.apply(call.q, call.k, call.v, sinks, *options)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class Chunk:
    """Some queries with all keys that they may see.

    Attributes:
        queries: The queries.
        end: Number of keys.
        hide: Makes a bias that is -inf at hidden pairs, [1|B, 1, n, m], of the last m keys, or None
            if all are visible. All keys before these m are.
    """

    queries: slice
    end: int
    hide: Callable[[], Tensor | None]

    @classmethod
    def of(cls, call: AttentionCall, span: Span) -> Chunk:
        """Make the chunk of a span."""
        is_causal_only = (
            call.causal
            and call.query_index is None
            and not call.has_window
            and call.mask is None
            and (call.queries.document is None or call.keys.document is None)
        )
        hidden = partial(_hide_later, span, call.q) if is_causal_only else partial(hide, call, span)
        return cls(span.queries, span.end_key, hidden)

    def compute_scores(self, q: Tensor, k: Tensor, factor: float, cap: float) -> tuple[Tensor, ...]:
        """Compute t and s [B, H, n, m], both new."""
        rows = q[:, :, self.queries] * (2 * factor)
        t = rows @ k[:, :, : self.end].mT
        # tanh(x / 2) = expm1(x) / (expm1(x) + 2) is exact also near 0, and faster than torch.tanh.
        t.clamp_(max=LARGEST).expm1_()
        s = t + 2
        t.div_(s)
        torch.mul(t, cap, out=s)
        if (bias := self.hide()) is not None:
            s[..., self.end - bias.shape[-1] :].add_(bias)
        return t, s


def _hide_later(span: Span, like: Tensor) -> Tensor:
    """Make a bias [n, n] that hides later keys among the last n keys, those of n queries."""
    count = span.end_query - span.first_query
    return like.new_full((count, count), float("-inf")).triu(1)


class _Capped(torch.autograd.Function):
    """The output of soft-capped attention."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        chunks: tuple[Chunk, ...],
        factor: float,
        cap: float,
        attend: Attend,
    ) -> Tensor:
        out = v.new_empty(*q.shape[:3], v.shape[-1])
        totals = []
        for chunk in chunks:
            _, s = chunk.compute_scores(q, k, factor, cap)
            # The largest score, which any number may replace in a row without visible keys.
            top = s.amax(-1, keepdim=True).clamp_(min=-cap)
            total = s.sub_(top).exp_().sum(-1, keepdim=True)
            if sinks is not None:
                total = total + (sinks[:, None, None] - top).exp()
            # Without visible keys and sinks the sum is 0, and so is the output.
            total.masked_fill_(total == 0, 1)
            torch.matmul(s, v[:, :, : chunk.end], out=out[:, :, chunk.queries])
            out[:, :, chunk.queries] /= total
            totals.append(total.log_().add_(top))
        ctx.save_for_backward(q, k, v, sinks, out, torch.cat(totals, dim=2))
        ctx.options = chunks, factor, cap, attend
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, totals = ctx.saved_tensors
        chunks, factor, cap, attend = ctx.options
        if is_derived_again(gradient):
            leaves = [q, k, v] if sinks is None else [q, k, v, sinks]
            with torch.enable_grad():
                again = torch.autograd.grad(
                    attend(q, k, v, sinks), leaves, gradient, create_graph=True, allow_unused=True
                )
            return *again, *(None,) * (8 - len(again))

        with disable_autocast(q.device):
            found = _compute_gradients(gradient, q, k, v, sinks, out, totals, chunks, factor, cap)
        return *found, None, None, None, None


def _compute_gradients(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    totals: Tensor,
    chunks: tuple[Chunk, ...],
    factor: float,
    cap: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Compute the gradients of q, k, v and sinks; `totals` are the log-sum-exps [B, H, N, 1]."""
    of_q, of_k, of_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    average = (gradient * out).sum(-1, keepdim=True)  # [B, H, N, 1]
    of_sinks = None
    if sinks is not None:
        of_sinks = -((sinks[:, None, None] - totals).exp() * average).sum((0, 2, 3))
    for chunk in chunks:
        rows, keys = chunk.queries, slice(0, chunk.end)
        t, w = chunk.compute_scores(q, k, factor, cap)
        w.sub_(totals[:, :, rows]).exp_()
        g = gradient[:, :, rows].contiguous()
        _add_product(of_v[:, :, keys], w.mT, g)
        change = g @ v[:, :, keys].mT
        change.sub_(average[:, :, rows]).mul_(w)
        change = torch.ops.aten.tanh_backward(change, t)
        # d s / d (q k^T) = cap * factor * (1 - t^2)
        of_q[:, :, rows] = (change @ k[:, :, keys]).mul_(cap * factor)
        _add_product(of_k[:, :, keys], change.mT, q[:, :, rows] * (cap * factor))
    return of_q, of_k, of_v, of_sinks


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left right to a view of a contiguous tensor, all [B, H, .., ..]."""
    rows = total.view(-1, *total.shape[2:])  # a copy would take the sum with it
    rows.baddbmm_(left.flatten(0, 1), right.flatten(0, 1))
