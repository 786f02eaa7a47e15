"""PyTorch's fused kernels: scaled_dot_product_attention and FlexAttention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from zoo.attention.backends.sinks import (
    add_sink_key,
    attend_with_sinks,
    has_log_sum_exp,
    refuse_second_derivative,
)
from zoo.attention.call import AttentionCall
from zoo.attention.soft_cap import apply_soft_cap
from zoo.attention.tokens import (
    Tokens,
    check_count,
    check_switch,
    check_tensor,
    is_transformed,
    upcast,
)
from zoo.errors import OptionError

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, b, h, q_idx, kv_idx) -> score"""

# Fields of a call that score_mod cannot express, each with what it does.
OTHER_NEEDS = {
    "transform_scores": "needs whole rows of scores",
    "normalize": "replaces the softmax",
    "sinks": "adds sinks to the softmax",
    "extra_output": "adds to the output by the weights",
    "extra_values": "averages more values",
}
ELSE = "use zoo.functional.attend"

# Parts (of left, of right) of a split low-rank bias whose products matter in float32: parts 0, 1
# and 2 have weights 1, 2^-8 and 2^-16, and products below 2^-16 are lost in rounding.
_PRODUCTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0))


def attend_sdpa(call: AttentionCall) -> Tensor:
    """Compute attention [B, H, N, V + E] with scaled_dot_product_attention.

    Low-rank biases of small rank become channels of q and k; all other biases become a mask.
    """
    # [q, left / scale] [k, right]^T scale = scale q k^T + left right^T
    q, k, v, sinks = call.q, call.k, call.concat_values(), call.sinks
    if sinks is not None:
        sinks = upcast(sinks)[None, :, None]  # [1, H, 1]
    if fits_in_channels(call):
        left, right = _make_channels(call)
        if sinks is not None:
            sinks = sinks - _sum_row_constants(call)
        q, k = torch.cat([q, *left], dim=-1), torch.cat([k, *right], dim=-1)
        bias = call.replace(low_rank_biases=()).sum_biases()
    else:
        bias = call.sum_biases()

    # Without a mask tensor the flash kernel applies; it knows a causal mask by a flag.
    has_mask = call.queries.document is not None or call.mask is not None
    is_plain = bias is None and not has_mask and not call.has_window
    is_causal = call.causal and call.is_square and is_plain
    mask = None
    if call.visible is not None and not is_causal:
        mask = call.evaluate(call.visible)
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))

    return _attend_fused(q, k, v, mask, is_causal, call.scale, call.dropout, sinks)


def _attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    dropout: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Call scaled_dot_product_attention for q and k that may be wider than v.

    Sinks are [1|B, H, 1|N].
    """
    width = v.shape[-1]
    # The flash kernel needs one width for all three, a multiple of eight. Zeros change no product.
    if q.shape[-1] != width:
        widest = -(-max(q.shape[-1], width) // 8) * 8
        q, k, v = (F.pad(heads, (0, widest - heads.shape[-1])) for heads in (q, k, v))
    if sinks is not None:
        if not dropout and has_log_sum_exp(q, mask, sinks, k, v):
            out = attend_with_sinks(q, k, v, mask, sinks, is_causal=is_causal, scale=scale)
            return out if out.shape[-1] == width else out[..., :width]
        queries = q.shape[2]
        k, v, mask = add_sink_key(k, v, mask, sinks, is_causal=is_causal, queries=queries)
        is_causal = False
    heads = q, k, v = [_as_intermediate(tensor) for tensor in (q, k, v)]
    # Only the kernel of plain operations can be transformed.
    is_plain = is_transformed(*heads, mask)
    with sdpa_kernel(SDPBackend.MATH) if is_plain else nullcontext():
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            dropout_p=dropout,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    is_compiling = torch.compiler.is_compiling()
    if not is_compiling and out.requires_grad and _is_from_fused_kernel(out):
        _name_second_derivative(heads)
    return out if out.shape[-1] == width else out[..., :width]


def _as_intermediate(heads: Tensor) -> Tensor:
    """Return heads, or a view of them if they are a leaf, which would keep a hook for ever."""
    return heads.view_as(heads) if heads.is_leaf and heads.requires_grad else heads


def _is_from_fused_kernel(out: Tensor) -> bool:
    # The kernel of plain operations ends with one of them.
    return out.grad_fn is not None and out.grad_fn.name().startswith("ScaledDotProduct")


def _name_second_derivative(heads: Sequence[Tensor]) -> None:
    """Make second derivatives raise by name: fused kernels have none for their inputs."""
    for tensor in heads:
        if tensor.requires_grad:
            tensor.register_hook(_refuse_later)


def _refuse_later(gradient: Tensor) -> Tensor | None:
    # Grad mode is on in a backward pass with create_graph. Its gradients are still right.
    return refuse_second_derivative(gradient) if torch.is_grad_enabled() else None


def attend_plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None,
    is_causal: bool = False,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute attention from queries, keys and values only, without an AttentionCall.

    Keys and values are not repeated for the query heads that share them.

    Args:
        q: Queries [B, H, N, K]; N is 1 if there is a mask.
        k: Keys [B, G, M, K].
        v: Values [B, G, M, V].
        scale: Factor of the products of queries and keys; None: K^-1/2.
        is_causal: Hide keys after their query; requires N = M.
        mask: Attention mask, bool [1|B, 1, 1, M].
        dropout: Dropout of attention weights.

    Returns:
        The output [B, H, N, V].
    """
    heads, count = q.shape[1:3]
    if count > 1 or is_transformed(q, k, v):
        return _attend_fused(q, k, v, mask, is_causal, scale, dropout)
    # For one token, the H / G query heads that share a key head are queries of that head.
    rows = q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])
    out = F.scaled_dot_product_attention(rows, k, v, mask, dropout_p=dropout, scale=scale)
    return out.reshape(q.shape[0], heads, 1, -1)


def attend_flex(call: AttentionCall) -> Tensor:
    """Compute attention [B, H, N, V + E] with FlexAttention.

    The soft cap and biases become a score_mod, the attention mask becomes a block mask, and sinks
    scale the output. All are compiled on a GPU; the compiler reuses its result for equal shapes and
    equal code of a bias.
    """
    compiled = call.q.is_cuda and not torch.compiler.is_compiling()
    attention: Any = torch.compile(flex_attention) if compiled else flex_attention
    # A compiled create_block_mask never materializes the mask of all pairs.
    make_mask = torch.compile(create_block_mask) if compiled else create_block_mask

    blocks = None
    if call.visible is not None:
        blocks = _make_block_mask(call, make_mask)
    heads = q, k, v = [
        _as_intermediate(tensor) for tensor in (call.q, call.k, call.concat_values())
    ]
    change = _change_scores(call)
    if call.sinks is None:
        out = attention(q, k, v, score_mod=change, block_mask=blocks, scale=call.scale)
    else:
        aux = AuxRequest(lse=True)
        out, auxiliary = attention(
            q, k, v, score_mod=change, block_mask=blocks, scale=call.scale, return_aux=aux
        )
        share = torch.sigmoid(auxiliary.lse - upcast(call.sinks)[:, None])  # [B, H, N]
        out = (out * share[..., None]).to(out.dtype)
    if out.requires_grad and not torch.compiler.is_compiling():
        _name_second_derivative(heads)
    return out


def _change_scores(call: AttentionCall) -> ScoreMod | None:
    """Make a score_mod that caps scores and adds all biases; None if nothing changes them."""
    bias, cap = call.bias_function(), call.softcap
    if bias is None and cap is None:
        return None

    def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if cap is not None:
            score = apply_soft_cap(score, cap)
        return score if bias is None else score + bias(b, h, i, j).to(score.dtype)

    return change


def make_score_mod(call: AttentionCall, q: Tensor, name: str) -> ScoreMod:
    """Make a score_mod from a call that only scales and caps scores and adds biases to them.

    Args:
        call: The call.
        q: The queries that it was made from.
        name: Name of its encodings in error messages.

    Raises:
        OptionError: The call does more than that.
    """
    for field, need in OTHER_NEEDS.items():
        if getattr(call, field) is not None:
            raise OptionError("encoding", f"{name} {need}, which no score_mod can do; {ELSE}")
    if call.q is not q:
        message = f"{name} transforms queries and keys, which a score_mod cannot"
        raise OptionError("encoding", f"{message}; {ELSE}, or its transform_query and _key")
    # FlexAttention scales scores by K^-1/2 before it calls a score_mod.
    factor, other_changes = call.scale * q.shape[-1] ** 0.5, _change_scores(call)

    def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if factor != 1:
            score = score * factor
        return score if other_changes is None else other_changes(score, b, h, i, j)

    return change


def block_mask(
    keys: int,
    *,
    queries: int | None = None,
    causal: bool = False,
    window: int | None = None,
    document: Tensor | None = None,
    device: str | torch.device = "cpu",
) -> BlockMask:
    """Make a block mask for FlexAttention, with the rules of zoo's attention.

    Args:
        keys: Number of keys M.
        queries: Number of queries N, the last of these tokens; None: all.
        causal: Hide keys after their query.
        window: How many tokens back a query attends, including itself, and as many ahead if not
            causal; None: all.
        document: Document numbers [M] or [B, M] of packed sequences, -1 for padding.
        device: Device of the mask.

    Returns:
        The mask, for `flex_attention(..., block_mask=...)`.

    Raises:
        OptionError: An argument has a wrong type or shape, a window is less than 1, or there are
            more queries than keys.
    """
    check_count("keys", keys)
    for key, value in (("queries", queries), ("window", window)):
        if value is not None:
            check_count(key, value)
    check_switch("causal", causal)
    count = keys if queries is None else queries
    if count > keys:
        raise OptionError("queries", f"{count} queries are not among {keys} keys")
    if document is not None:
        like = ("the mask", torch.empty(0, device=device))
        check_tensor("document", document, [keys], [None, keys], kind="integer", like=like)
    # A call with heads of width 1 has the same mask as a real one.
    index = torch.arange(keys, device=device, dtype=torch.float32)[:, None]
    tokens = Tokens.at(index[None], index, document=document, ordered=True)
    heads = index.expand(1, 1, keys, 1)
    q = heads[:, :, keys - count :]
    call = AttentionCall(q, heads, heads, q, tokens.last(count), tokens, causal, 1.0)
    return _make_block_mask(call.replace(window=window), create_block_mask)


def _make_block_mask(call: AttentionCall, make: Callable[..., BlockMask]) -> BlockMask:
    visible = call.visible or (lambda b, h, i, j: j >= 0)
    sizes = (_mask_batch(call), None, call.q.shape[2], call.k.shape[2])
    return make(visible, *sizes, device=call.q.device.type)


def _mask_batch(call: AttentionCall) -> int | None:
    """Return the batch size of the mask; None if one mask serves all samples."""
    batch = 1 if call.mask is None else len(call.mask)
    for tokens in (call.queries, call.keys):
        for values in (tokens.document, tokens.has_position):
            if values is not None:
                batch = max(batch, len(values))
    return batch if batch > 1 else None


def fits_in_channels(call: AttentionCall) -> bool:
    """Return whether low-rank biases are cheaper as channels of q and k than as a mask."""
    if not call.low_rank_biases:
        return False
    parts = 1 if torch.finfo(call.q.dtype).bits >= 32 else len(_PRODUCTS)
    rank = sum(left.shape[-1] for left, right in call.low_rank_biases if right.shape[2] > 1)
    return parts * rank <= 2 * call.q.shape[-1]


def _make_channels(call: AttentionCall) -> tuple[list[Tensor], list[Tensor]]:
    """Make channels for q and k, so that scale q k^T includes the low-rank biases in q's dtype.

    A bias that is constant along rows is dropped, because a softmax does not depend on it.
    """
    lefts, rights = [], []
    for left, right in call.low_rank_biases:
        if right.shape[2] == 1:
            continue
        left, right = upcast(left) / call.scale, upcast(right)
        if call.q.dtype == torch.float16:
            left, right = _balance(left, right)
        for a, b in _split_product(left, right, call.q.dtype):
            lefts.append(a.expand(*call.q.shape[:3], -1))
            rights.append(b.expand(*call.k.shape[:3], -1))
    return lefts, rights


def _sum_row_constants(call: AttentionCall) -> Tensor:
    """Sum the low-rank biases that `_make_channels` drops, [1|B, 1|H, 1|N]."""
    constants = call.q.new_zeros(1, 1, 1, dtype=upcast(call.q).dtype)
    for left, right in call.low_rank_biases:
        if right.shape[2] == 1:
            constants = constants + (upcast(left) * upcast(right)).sum(-1)
    return constants


def _balance(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Scale the columns of both factors of left right^T to one largest value.

    Positions overflow float16, whose largest number is 65,504. The scale is a power of 2, so that
    no digit changes.
    """
    with torch.no_grad():
        # A factor of zeros, which a table may start with, must not take that of its gradient along.
        sizes = [part.abs().amax((0, 1, 2)).clamp(min=1).log2() for part in (left, right)]
        scale = ((sizes[1] - sizes[0]) / 2).round().exp2()  # [R]
    return left * scale, right / scale


def _split_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Split left right^T into products of tensors of `dtype` whose sum is exact to float32."""
    if torch.finfo(dtype).bits >= 32:
        return [(left.to(dtype), right.to(dtype))]
    a, b = _split_digits(left, dtype), _split_digits(right, dtype)
    return [(a[m], b[n]) for m, n in _PRODUCTS]


def _split_digits(tensor: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Split a tensor into a sum of three tensors of `dtype`: 3 x 8 bits are float32's 24."""
    # Each part is what rounding to `dtype` lost of the parts before.
    parts = []
    for _ in range(3):
        parts.append(tensor.to(dtype))
        tensor = tensor - parts[-1]
    return parts
