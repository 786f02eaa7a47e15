"""Attention with sinks by a fused kernel, which knows nothing of them.

A sink is a score that takes part in the softmax of a row and has no value. With the log-sum-exp L
of a row and its sink s, the weights of keys are exp(score - log(exp(L) + exp(s))): the output
without the sink, times sigmoid(L - s). Gradients need no other kernel either: its backward pass
computes weights from scores and a log-sum-exp, so it is given that of keys and sink together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention.tokens import has_variable_sizes, is_transformed, upcast
from zoo.errors import OptionError

_ops = torch.ops.aten


def has_log_sum_exp(q: Tensor, mask: Tensor | None, sinks: Tensor, *others: Tensor) -> bool:
    """Return whether the kernel of a CPU can compute a call with sinks and its gradients.

    Args:
        q: Queries [B, H, N, K].
        mask: Attention mask [1|B, 1|H, N, M], bool or with the dtype of q.
        sinks: Sinks [1|B, H, 1|N].
        *others: Keys and values.
    """
    # It computes no gradient of a mask of biases, and torch.export and transforms know no kernel.
    learns_mask = mask is not None and mask.requires_grad and torch.is_grad_enabled()
    if q.device.type != "cpu" or learns_mask or has_variable_sizes():
        return False
    return not is_transformed(q, mask, sinks, *others)


def attend_with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    sinks: Tensor,
    *,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """Compute attention [B, H, N, V] by the kernel of a CPU; see `has_log_sum_exp`."""
    # As scaled_dot_product_attention is cast under autocast.
    if torch.is_autocast_enabled("cpu") and q.dtype != torch.float64:
        q, k, v = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (q, k, v))
    q, k, v = map(_pack_rows, (q, k, v))
    if mask is not None:
        mask = _pack_rows(_as_bias(mask, q.dtype))
    out: Tensor = _SinkAttention.apply(q, k, v, mask, sinks, is_causal, scale)  # type: ignore[no-untyped-call]
    return out


def add_sink_key(
    k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor, *, is_causal: bool, queries: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a key of zeros with the value 0, whose scores a mask sets to the sinks.

    Every kernel of scaled_dot_product_attention takes it, at the cost of a mask of all pairs.

    Args:
        k: Keys [B, H, M, K].
        v: Values [B, H, M, V].
        mask: Attention mask [1|B, 1|H, N, M], bool or biases.
        sinks: Sinks [1|B, H, 1|N].
        is_causal: Hide keys after their query; requires N = M.
        queries: Number of queries N.

    Returns:
        Keys and values of M + 1 tokens, and the mask [1|B, H, N, M + 1].
    """
    if is_causal:
        mask = k.new_ones(1, 1, queries, k.shape[2], dtype=torch.bool).tril()
    if mask is None:
        mask = k.new_zeros(1, 1, queries, k.shape[2])
    mask, column = _as_bias(mask, k.dtype), sinks.to(k.dtype)[..., None]
    batch = max(len(mask), len(column))
    rows = mask.expand(batch, column.shape[1], -1, -1)
    mask = torch.cat([rows, column.expand(batch, -1, queries, -1)], dim=-1)
    return F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), mask


def refuse_second_derivative(gradient: Tensor) -> Tensor:
    """Return a gradient whose own derivative raises an error that says what has one."""
    refused: Tensor = _Refused.apply(gradient)  # type: ignore[no-untyped-call]
    return refused


def _as_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, float("-inf"))


def _pack_rows(x: Tensor) -> Tensor:
    """Return a tensor whose rows lie in memory without gaps, as the kernel takes for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


class _SinkAttention(torch.autograd.Function):
    """Attention with sinks, from the output and the log-sum-exp of attention without them."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        sinks: Tensor,
        is_causal: bool,
        scale: float | None,
    ) -> Tensor:
        out, total = _ops._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale
        )
        # In a row without visible keys the output is 0, and so are all gradients.
        out.mul_(torch.sigmoid(total - sinks)[..., None])
        total = torch.logaddexp(total, sinks.to(total.dtype))
        ctx.save_for_backward(q, k, v, mask, sinks, out, total)
        ctx.options = is_causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, sinks, out, total = ctx.saved_tensors
        is_causal, scale = ctx.options
        gradient = _pack_rows(gradient)
        heads = _ops._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, q, k, v, out, total, 0.0, is_causal, attn_mask=mask, scale=scale
        )
        of_sinks = None
        if ctx.needs_input_grad[4]:
            # The derivative of a softmax, for a column whose value is 0.
            average = (upcast(gradient) * upcast(out)).sum(-1)  # [B, H, N]
            of_sinks = -torch.exp(sinks - total) * average
            of_sinks = of_sinks.sum_to_size(sinks.shape).to(sinks.dtype)
        # Grad mode is on in a backward pass with create_graph. Its gradients are still right.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            heads = tuple(map(refuse_second_derivative, heads))
            of_sinks = None if of_sinks is None else refuse_second_derivative(of_sinks)
        return *heads, None, of_sinks, None, None


class _Refused(torch.autograd.Function):
    """The identity, for gradients that have no derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        message = "fused kernels (sdpa, and flex on a GPU) have no second derivative"
        hint = "use backend=reference or chunked, or torch.nn.attention.sdpa_kernel(MATH)"
        raise OptionError("backend", f"{message}; {hint}")
