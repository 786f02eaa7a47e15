"""A chunk of attention that is a softmax of plain biases, with a backward pass of its own.

It computes what the reference computes, without its copies of scores: on a CPU a chunk stays in the
cache, and most of the time beyond the matrix products is that of exp. The backward pass computes
weights again from the log-sum-exp L of each row, and biases from what they are made of.

    s = q k^T scale + biases + mask,  w = exp(s - L),  out = w v
    dw = g v^T,  ds = w (dw - sum(g out)),  d(q k^T) = ds scale

All exponents have the base 2: exp2(s log2(e)) takes half the time of exp(s), and the factor is part
of that of the queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.attention.backends.reference import apply_weights, hide, weights
from zoo.attention.backends.slices import AccumulatingSlicer, Sums, get_sum
from zoo.attention.call import AttentionCall, BlockBias, Span
from zoo.attention.tokens import disable_autocast, is_derived_again, is_transformed

LOG2E = math.log2(math.e)


def is_softmax_of_sums(call: AttentionCall) -> bool:
    """Return whether a call has biases, masks and sinks only, on a CPU."""
    fields = (call.softcap, call.transform_scores, call.normalize, call.extra_output)
    if call.dropout or any(field is not None for field in fields):
        return False
    if torch.compiler.is_compiling() or call.q.device.type != "cpu":
        return False
    return not is_transformed(call.q, call.k, call.v, call.sinks)


def attend_span(call: AttentionCall, span: Span) -> Tensor:
    """Compute the attention [B, H, n, V] of a span of a call for which `is_softmax_of_sums` holds.

    Args:
        call: The call; q, k and v have one dtype of at least float32 and are contiguous.
        span: Its queries and keys, with an `AccumulatingSlicer`.
    """
    bias, recorded = _evaluate_biases(call, span)
    # Transforms do not follow a backward pass of its own.
    if bias is not None and is_transformed(bias):
        return apply_weights(call, weights(call, span), span)

    chunk = Chunk(call, span, recorded)
    sinks = None if call.sinks is None else call.sinks.to(call.q.dtype)
    heads, sums = zip(*(_share(span, tensor) for tensor in (call.q, call.k, call.v)), strict=True)
    with disable_autocast(call.q.device):
        out: Tensor = _Attend.apply(*heads, sinks, bias, chunk, sums)  # type: ignore[no-untyped-call]
    return out


def _share(span: Span, heads: Tensor) -> tuple[Tensor, Sums]:
    is_recorded = heads.requires_grad and torch.is_grad_enabled()
    if not is_recorded or not isinstance(span.slicer, AccumulatingSlicer):
        return heads, {}
    return span.slicer.share(heads)


def _evaluate_biases(call: AttentionCall, span: Span) -> tuple[Tensor | None, list[Any]]:
    """Return the sum of biases, and what will compute it again if it has a derivative."""
    if not torch.is_grad_enabled():
        return call.sum_biases(span), []
    recorded: list[Any] = []

    def evaluate() -> Tensor | None:
        bias = call.sum_biases(span)
        if bias is None or not bias.requires_grad:
            return bias
        recomputable: Tensor = _Keep.apply(bias, recorded)  # type: ignore[no-untyped-call]
        return recomputable

    if not call.biases and not call.low_rank_biases:
        return None, recorded
    return checkpoint(evaluate, use_reentrant=False, preserve_rng_state=False), recorded


@dataclass(frozen=True)
class Chunk:
    """Some queries with all keys that they may see.

    Attributes:
        call: The call.
        span: The queries and the keys.
        kept: The context that a checkpoint fills with the biases again, if they have a derivative.
    """

    call: AttentionCall
    span: Span
    kept: list[Any]

    def compute_scores(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        """Compute scores s log2(e) [B, H, n, m], a new tensor.

        Args:
            q: All queries [B, H, N, K].
            k: All keys [B, H, M, K].
            bias: The biases [1|B, 1|H, n, m], if there are any.
        """
        return self._add_biases(self._multiply(q, k, LOG2E * self.call.scale), bias)

    def compute_weights(self, q: Tensor, k: Tensor, bias: Tensor | None, totals: Tensor) -> Tensor:
        """Compute the weights w [B, H, n, m], a new tensor.

        Args:
            q: All queries [B, H, N, K].
            k: All keys [B, H, M, K].
            bias: The biases [1|B, 1|H, n, m], if there are any.
            totals: The log-sum-exps L log2(e) [B, H, n, 1].
        """
        s = self._multiply(q, k, LOG2E * self.call.scale).sub_(totals)
        return self._add_biases(s, bias).exp2_()

    def _multiply(self, q: Tensor, k: Tensor, factor: float) -> Tensor:
        return (q[:, :, self.span.queries] * factor) @ k[:, :, self.span.keys].mT

    def _add_biases(self, s: Tensor, bias: Tensor | None) -> Tensor:
        """Add biases and the mask to s log2(e), in place."""
        if bias is not None:
            s.add_(bias, alpha=LOG2E)
        if (hidden := self._hide()) is not None:
            s[..., self.span.end_key - hidden.shape[-1] :].add_(hidden)
        return s

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Compute the same by operations with derivatives of any order."""
        biases = () if bias is None else (BlockBias(lambda span: bias),)
        call = self.call.replace(q=q, k=k, v=v, sinks=sinks, biases=biases, low_rank_biases=())
        span = call.span(self.span.first_query, self.span.end_query, self.span.end_key)
        return apply_weights(call, weights(call, span), span)

    def take_biases(self) -> Tensor | None:
        """Return the biases again."""
        if self.kept:
            bias: Tensor = self.kept[0].saved_tensors[0]
            return bias
        with torch.no_grad():
            return self.call.sum_biases(self.span)

    @property
    def can_be_blind(self) -> bool:
        """True if there may be queries without visible keys."""
        return self.call.keys.document is not None or self.call.mask is not None

    def _hide(self) -> Tensor | None:
        """Make a bias that is -inf at hidden pairs, of the last keys; all before are visible."""
        call, span = self.call, self.span
        is_causal_only = (
            call.causal
            and call.query_index is None
            and not call.has_window
            and call.mask is None
            and (call.queries.document is None or call.keys.document is None)
        )
        if not is_causal_only:
            return hide(call, span)
        count = span.end_query - span.first_query
        return call.q.new_full((count, count), float("-inf")).triu(1)


class _Keep(torch.autograd.Function):
    """The identity inside a checkpoint, whose saved tensor is computed again where it is read."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, recorded: list[Any]) -> Tensor:
        ctx.save_for_backward(bias)
        if not recorded:  # the first pass, not one that computes the biases again
            recorded.append(ctx)
        return bias.view_as(bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Attend(torch.autograd.Function):
    """The output of a chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        bias: Tensor | None,
        chunk: Chunk,
        sums: tuple[Sums, Sums, Sums],
    ) -> Tensor:
        # all are s log2(e): scores, the largest of each row, sinks and log-sum-exps
        s = chunk.compute_scores(q, k, bias)
        top = s.amax(-1, keepdim=True)
        column = None if sinks is None else sinks[:, None, None] * LOG2E
        if column is not None:
            top = torch.maximum(top, column)
        elif chunk.can_be_blind:
            top.masked_fill_(top == float("-inf"), 0)
        total = s.sub_(top).exp2_().sum(-1, keepdim=True)
        if column is not None:
            total += (column - top).exp2()
        elif chunk.can_be_blind:
            # Without visible keys the sum is 0, and so is the output.
            total.masked_fill_(total == 0, 1)
        out = s @ v[:, :, chunk.span.keys]
        out /= total
        ctx.save_for_backward(q, k, v, sinks, out, total.log2_().add_(top))
        ctx.chunk, ctx.sums, ctx.has_bias = chunk, sums, bias is not None
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, totals = ctx.saved_tensors
        bias = ctx.chunk.take_biases() if ctx.has_bias else None
        if is_derived_again(gradient):
            inputs = (q, k, v, sinks, bias)
            wanted = [
                tensor
                for tensor, is_needed in zip(inputs, ctx.needs_input_grad[:5], strict=True)
                if is_needed
            ]
            with torch.enable_grad():
                gradients = torch.autograd.grad(
                    ctx.chunk.attend(*inputs), wanted, gradient, create_graph=True
                )
            remaining = iter(gradients)
            return (
                *(next(remaining) if need else None for need in ctx.needs_input_grad[:5]),
                None,
                None,
            )

        with disable_autocast(q.device):
            of_sinks, of_bias = add_gradients(ctx, gradient, q, k, v, sinks, bias, out, totals)
        return None, None, None, of_sinks, of_bias, None, None


def add_gradients(
    ctx: Any,
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    bias: Tensor | None,
    out: Tensor,
    totals: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """Add the gradients of q, k and v to their sums; return those of sinks and bias.

    `totals` are the log-sum-exps L log2(e) [B, H, n, 1].
    """
    span, scale = ctx.chunk.span, ctx.chunk.call.scale
    needs_q, needs_k, needs_v, needs_sinks, needs_bias = ctx.needs_input_grad[:5]
    of_sinks = of_bias = None
    gradient = gradient.contiguous()
    # the Jacobian of a softmax is diag(w) - w w^T; this is its second term, applied to the gradient
    average = (gradient * out).sum(-1, keepdim=True)
    if sinks is not None and needs_sinks:
        # a sink has a weight and the value 0
        weight = (sinks[:, None, None] * LOG2E - totals).exp2_()
        of_sinks = -(weight * average).sum((0, 2, 3))

    w = ctx.chunk.compute_weights(q, k, bias, totals)
    if needs_v:
        _add_product(get_sum(ctx.sums[2], v)[:, :, span.keys], w.mT, gradient)
    if not (needs_q or needs_k or needs_bias):
        return of_sinks, of_bias
    change = gradient @ v[:, :, span.keys].mT
    change.sub_(average).mul_(w)
    if bias is not None and needs_bias:
        of_bias = change.sum_to_size(bias.shape)
    if needs_q:
        get_sum(ctx.sums[0], q)[:, :, span.queries] += (change @ k[:, :, span.keys]).mul_(scale)
    if needs_k:
        rows = q[:, :, span.queries] * scale
        _add_product(get_sum(ctx.sums[1], k)[:, :, span.keys], change.mT, rows)
    return of_sinks, of_bias


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of matrices [B, H, .., ..] to a total, without a tensor for the product."""
    heads = len(total) * total.shape[1]
    total.view(heads, *total.shape[2:]).baddbmm_(left.flatten(0, 1), right.flatten(0, 1))
