"""Linear attention: features in place of the softmax (arXiv:2006.16236).

Sums over keys replace pairs of queries and keys.

    o_i = sum_n (R_i phi(q_i)).(R_n phi(k_n)) v_n / sum_n phi(q_i).phi(k_n),   phi = elu + 1,

over the keys n that query i sees. R is the transform of an encoding. It applies to the features,
and only in the numerator, so that the denominator stays positive (RoFormer, Su et al. 2021,
arXiv:2104.09864, section 3.3). Weights may be negative.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention.backends.reference import attention_mask
from zoo.attention.call import AttentionCall, repeat_kv_heads
from zoo.attention.encoding import Encoding
from zoo.attention.layer_state import LayerState
from zoo.attention.tokens import check_rows, disable_autocast, fill_padding, upcast
from zoo.errors import OptionError
from zoo.suggestions import join_words

CHUNK = 64  # tokens of a chunk, whose pairs are computed; one matrix sums up all earlier tokens


@dataclass(frozen=True)
class LinearCall:
    """A description of one call of linear attention.

    Args:
        call: The call. Its queries and keys are transformed features and its raw queries are
            features; keys and values are not repeated for the query heads that share them.
        features: Features of the keys before their transform [B, G, M, K].
    """

    call: AttentionCall
    features: Tensor


def feature_map(x: Tensor) -> Tensor:
    """Compute elu(x) + 1 in at least float32."""
    # elu computes exp(x) - 1, which rounds to -1 for small x; exp(x) itself stays positive.
    x = upcast(x)
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def check_supported(encodings: Iterable[Encoding], call: AttentionCall) -> None:
    """Check that encodings only transform queries and keys or add to the input.

    Raises:
        OptionError: An encoding changes the attention call in another way.
    """
    heads = call.q.shape[1]
    call = call.replace(k=repeat_kv_heads(call.k, heads), v=repeat_kv_heads(call.v, heads))
    for encoding in encodings:
        new = encoding.modify(call)
        changed = ["values"] if encoding.turn_values else []
        # torch.compile cannot trace `fields`, so it is called only after a change.
        if new is not call:
            changed += [
                field.name
                for field in fields(AttentionCall)
                if getattr(new, field.name) is not getattr(call, field.name)
            ]
        transforms = type(encoding).transform_query is not Encoding.transform_query
        if transforms and call.q.shape[-1] != call.raw_query.shape[-1]:
            changed.append("the width of heads")
        if changed:
            message = f"{encoding.name} changes {join_words(changed)} of an attention call, "
            message += "which linear attention cannot follow"
            hint = "use encodings that add to the input or rotate heads, as rope does"
            raise OptionError("encoding", f"{message}; {hint}")


def weights(linear: LinearCall) -> Tensor:
    """Compute weights [B, H, N, M] by the definition; rows without visible keys are 0."""
    call, visible, heads = linear.call, attention_mask(linear.call), linear.call.q.shape[1]
    with disable_autocast(call.q.device):
        products = call.q @ repeat_kv_heads(call.k, heads).mT
        norms = call.raw_query @ repeat_kv_heads(linear.features, heads).mT
        norms = norms.masked_fill(~visible, 0).sum(-1, keepdim=True)
        return _divide(products.masked_fill(~visible, 0), norms)


def attend_causal(
    linear: LinearCall, past: LayerState | None = None, size: int = CHUNK
) -> tuple[Tensor, LayerState]:
    """Compute the output under a causal mask, with pairs within chunks and sums before them.

    Time and memory are linear in the number of keys.

    Args:
        linear: The call.
        past: The sums over the keys of earlier calls.
        size: Number of tokens in a chunk.

    Returns:
        The output [B, H, N, V], and the sums over all keys of the last document so far: `products`
        of transformed features and values [B, G, 1, K, V], and `sums` of features [B, G, 1, K, 1].
    """
    keys, v = linear.call.keys, linear.call.v
    document = keys.document
    if document is None:
        document = keys.pos.new_zeros(1, len(keys), dtype=torch.long)
    # Padding adds nothing to the sums, and the document before it may continue after it.
    is_real = document >= 0
    document = fill_padding(document, None if past is None else past.document)
    before = document[:, 0] if past is None else past.document
    masks = make_chunk_masks(document, before, min(size, len(keys)))

    with disable_autocast(v.device):
        q, k, raw_q, raw_k, values = _group_heads(linear, is_real)
        if past is not None:
            check_rows(past.values["sums"][:, 0, 0, :, 0], raw_k.flatten(1, -2)[:, 0])
        # The denominator is the same sum with values 1 and without the transforms.
        ones = torch.ones_like(values[..., :1])
        earlier = past.values if past else {}
        out, products = scan_chunks(q, k, values, masks, earlier.get("products"))
        norms, sums = scan_chunks(raw_q, raw_k, ones, masks, earlier.get("sums"))
        state = LayerState({"products": products, "sums": sums}, document[:, -1])
        return _finish(out, norms, linear.call), state


def attend_bidirectional(linear: LinearCall, size: int = CHUNK) -> Tensor:
    """Compute the output [B, H, N, V] without a mask.

    The tokens of a document need not be contiguous.
    """
    call, document = linear.call, linear.call.keys.document
    with disable_autocast(call.v.device):
        is_real = None if document is None else document >= 0
        q, k, raw_q, raw_k, v = _group_heads(linear, is_real)
        ones = torch.ones_like(v[..., :1])
        if document is None:
            return _finish(q @ (k.mT @ v), raw_q @ (raw_k.mT @ ones), call)

        # Sorted by document, the keys that a query sees are a causal scan in both directions; the
        # backward one starts one token away, so that a token does not see itself twice.
        order = document.argsort(stable=True)  # [1|B, M]
        document, size = document.gather(1, order), min(size, document.shape[1])
        forward = make_chunk_masks(document, document[:, 0], size)
        backward = make_chunk_masks(document.flip(1), document[:, -1], size, min_distance=1)

        def sum_documents(*heads: Tensor) -> Tensor:
            index = order[:, None, None, :, None]
            q, k, v = (torch.take_along_dim(vectors, index, -2) for vectors in heads)
            out = scan_chunks(q, k, v, forward)[0]
            out = out + scan_chunks(q.flip(-2), k.flip(-2), v.flip(-2), backward)[0].flip(-2)
            return torch.take_along_dim(out, order.argsort()[:, None, None, :, None], -2)

        return _finish(sum_documents(q, k, v), sum_documents(raw_q, raw_k, ones), call)


@dataclass(frozen=True)
class ChunkMasks:
    """Masks of the tokens that share a document, for T chunks of C tokens.

    Documents are contiguous.

    Attributes:
        size: Number of tokens in a chunk, C.
        pairs: Pairs of one document whose key is not after the query, bool [1|B, 1, 1, T, C, C].
        first: Tokens in the last document of the previous chunk, bool [1|B, 1, 1, T, C, 1].
        last: Tokens in the last document of their chunk, bool [1|B, 1, 1, T, C, 1].
        kept: Chunks that end in the last document of the previous chunk, so that its sums are
            kept, bool [1|B, 1, 1, T, 1, 1].
    """

    size: int
    pairs: Tensor
    first: Tensor
    last: Tensor
    kept: Tensor


def make_chunk_masks(
    document: Tensor, before: Tensor, size: int, min_distance: int = 0
) -> ChunkMasks:
    """Make the masks of chunks.

    Args:
        document: Document numbers [1|B, N].
        before: Number of the document before the first token [1|B].
        size: Number of tokens in a chunk.
        min_distance: Smallest distance in tokens of a key from its query.
    """
    # The last document fills up the last chunk; `_group_heads` and the scan pad features with 0.
    document = document.expand(max(len(document), len(before)), -1)
    missing = document[:, -1:].expand(-1, -document.shape[1] % size)
    document = torch.cat([document, missing], dim=1).unflatten(1, (-1, size))  # [1|B, T, C]
    end = document[:, :, -1:]  # [1|B, T, 1]
    earlier = torch.cat([before.expand(len(end))[:, None, None], end[:, :-1]], dim=1)

    pairs = (document[..., None] == document[:, :, None]).tril(-min_distance)
    columns = (document == earlier, document == end, end == earlier)
    masks = (pairs, *(column[..., None] for column in columns))
    return ChunkMasks(size, *(mask[:, None, None] for mask in masks))


def scan_chunks(
    q: Tensor, k: Tensor, v: Tensor, masks: ChunkMasks, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum (q_i.k_n) v_n over the earlier keys n of each query's document, chunk by chunk.

    Args:
        q: [B, G, H / G, M, K].
        k: [B, G, 1, M, K].
        v: [B, G, 1, M, V].
        masks: The masks of the chunks.
        state: Sum of k_n v_n^T before the first token [B, G, 1, K, V].

    Returns:
        The sums [B, G, H / G, M, V], and the state after the last token.
    """
    count, missing = q.shape[-2], -q.shape[-2] % masks.size
    q, k, v = (
        F.pad(heads, (0, 0, 0, missing)).unflatten(-2, (-1, masks.size)) for heads in (q, k, v)
    )  # [.., T, C, ..]
    # What each chunk adds to the state: the keys of its last document, which may continue.
    added = (k * masks.last).mT @ v  # [B, G, 1, T, K, V]
    if state is None:
        state = torch.zeros_like(added[:, :, :, 0])
    states = []
    for continues, new in zip(masks.kept.unbind(3), added.unbind(3), strict=True):
        states.append(state)
        state = torch.where(continues, state, 0) + new

    # Pairs within each chunk, and the state before it for queries that continue its document.
    within = (q @ k.mT).masked_fill(~masks.pairs, 0) @ v
    out = within + (q * masks.first) @ torch.stack(states, dim=3)
    return out.flatten(-3, -2)[..., :count, :], state


def _group_heads(linear: LinearCall, is_real: Tensor | None) -> tuple[Tensor, ...]:
    """Return transformed q and k, raw q and k, and v, as [B, G, H / G or 1, M, ..].

    Zeros before the queries make them as many as the keys. The features of padding are 0.
    """
    call, groups = linear.call, linear.features.shape[1]
    missing = (0, 0, call.k.shape[2] - call.q.shape[2], 0)
    q, raw_q = (
        F.pad(heads.unflatten(1, (groups, -1)), missing) for heads in (call.q, call.raw_query)
    )
    heads: tuple[Tensor, ...] = (q, call.k[:, :, None], raw_q, linear.features[:, :, None])
    if is_real is not None:
        heads = tuple(vectors * is_real[:, None, None, :, None] for vectors in heads)
    return *heads, upcast(call.v)[:, :, None]


def _finish(sums: Tensor, norms: Tensor, call: AttentionCall) -> Tensor:
    """Divide sums [B, G, H / G, M, ..] by their norms and select the queries: [B, H, N, V]."""
    return _divide(sums, norms)[..., call.query_slice, :].flatten(1, 2).to(call.v.dtype)


def _divide(sums: Tensor, norms: Tensor) -> Tensor:
    """Divide sums by norms; the result is 0 for queries without visible keys."""
    return sums / norms.masked_fill(norms == 0, 1)
