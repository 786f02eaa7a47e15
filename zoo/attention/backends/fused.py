"""PyTorch's fused kernels: what an attention call holds, as arguments of theirs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from zoo.attention.backends.reference import concat_values
from zoo.attention.call import AttentionCall
from zoo.attention.tokens import upcast

_PRODUCTS = (
    (0, 0),
    (0, 1),
    (0, 2),
    (1, 0),
    (1, 1),
    (2, 0),
)  # parts of a split factor whose products matter


def attend_sdpa(call: AttentionCall) -> Tensor:
    """PyTorch's fused attention: slim factors as further channels of q and k, biases and large factors as a mask."""
    q, k, v = call.q, call.k, concat_values(call)
    bias = call.replace(
        low_rank_biases=() if fits_in_channels(call) else call.low_rank_biases
    ).sum_biases()
    if fits_in_channels(call):
        left, right = _channels(call)
        q, k = torch.cat([q, *left], dim=-1), torch.cat([k, *right], dim=-1)
    visible, square = call.visible, call.is_square
    diagonal = (
        call.causal
        and square
        and bias is None
        and call.queries.document is None
        and not call.has_window
    )
    blocked = None if visible is None or diagonal else call.evaluate(visible)
    if bias is not None:
        values = bias.to(q.dtype)
        blocked = values if blocked is None else values.masked_fill(~blocked, float("-inf"))
    if q.shape[-1] != v.shape[-1]:  # one width, a multiple of eight, keeps the flash kernel
        width = -(-max(q.shape[-1], v.shape[-1]) // 8) * 8
        q, k, padded = (F.pad(one, (0, width - one.shape[-1])) for one in (q, k, v))
    else:
        padded = v
    out = F.scaled_dot_product_attention(
        q, k, padded, blocked, is_causal=diagonal, scale=call.scale
    )
    return out[..., : v.shape[-1]]


def attend_flex(call: AttentionCall) -> Tensor:
    """FlexAttention: biases as a score modification, visibility as a block mask. Compiled where there is a kernel.

    A compiler keeps what it made for a shape and for the code of a bias, and makes it no second time.
    """
    q, v, own = call.q, concat_values(call), call.q.is_cuda and not torch.compiler.is_compiling()
    attention = torch.compile(flex_attention) if own else flex_attention
    blocks = (
        torch.compile(create_block_mask) if own else create_block_mask
    )  # which then never holds all pairs
    bias, visible, block_mask = call.bias_function(), call.visible, None
    if visible is not None:
        sizes = (_masks(call), None, q.shape[2], call.k.shape[2])
        block_mask = blocks(visible, *sizes, device=q.device.type)
    modify = (
        None if bias is None else lambda score, b, h, i, j: score + bias(b, h, i, j).to(score.dtype)
    )
    return attention(q, call.k, v, score_mod=modify, block_mask=block_mask, scale=call.scale)


def _masks(call: AttentionCall) -> int | None:
    """How many samples a mask tells apart; None for one mask for all."""
    facts = (
        fact
        for tokens in (call.queries, call.keys)
        for fact in (tokens.document, tokens.has_position)
    )
    count = max((len(fact) for fact in facts if fact is not None), default=1)
    return count if count > 1 else None


def fits_in_channels(call: AttentionCall) -> bool:
    """Whether the factors are narrow enough to be cheaper as channels than as a mask."""
    if not call.low_rank_biases or call.q.dtype == torch.float16:  # positions overflow float16
        return False
    parts = 1 if torch.finfo(call.q.dtype).bits >= 32 else len(_PRODUCTS)
    return (
        parts * sum(left.shape[-1] for left, right in call.low_rank_biases if right.shape[2] > 1)
        <= 2 * call.q.shape[-1]
    )


def _channels(call: AttentionCall) -> tuple[list[Tensor], list[Tensor]]:
    """Factors as channels to append to q and k, so that scale (q k^T + left right^T) holds in q's own dtype.

    What is constant along a row is dropped: a softmax does not see it.
    """
    lefts, rights = [], []
    for left, right in call.low_rank_biases:
        if right.shape[2] == 1:
            continue
        for a, b in _split(upcast(left) / call.scale, upcast(right), call.q.dtype):
            lefts.append(a.expand(*call.q.shape[:3], -1))
            rights.append(b.expand(*call.k.shape[:3], -1))
    return lefts, rights


def _split(left: Tensor, right: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Pairs of tensors of `dtype` whose products add up to left right^T, to the precision of float32."""
    if torch.finfo(dtype).bits >= 32:
        return [(left.to(dtype), right.to(dtype))]

    def parts(tensor: Tensor) -> list[Tensor]:
        found = []
        for _ in range(3):  # three times eight bits are float32's twenty-four
            found.append(tensor.to(dtype))
            tensor = tensor - found[-1]
        return found

    a, b = parts(left), parts(right)
    return [(a[m], b[n]) for m, n in _PRODUCTS]
