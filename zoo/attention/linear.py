"""Linear attention: features in place of a softmax, so that what a query reads of all keys is a sum (arXiv:2006.16236).

o_i = sum_n (R_i phi(q_i)).(R_n phi(k_n)) v_n / sum_n phi(q_i).phi(k_n), phi = elu + 1, over the keys n that i sees. R is what
an encoding turns heads by: after the features and not in the denominator, which stays positive (RoFormer, Su et al. 2021,
arXiv:2104.09864, section 3.3). A weight may be negative.
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
from zoo.attention.tokens import disable_autocast, upcast
from zoo.errors import OptionError


def fill_padding(document: Tensor, before: Tensor | None) -> Tensor:
    """Documents [1|B, N] where padding belongs to the one before it, so that what follows it goes on."""
    slots = torch.arange(document.shape[1], device=document.device)
    last = torch.where(document >= 0, slots, -1).cummax(1).values
    earlier = document.new_full((1,), -1) if before is None else before
    return torch.where(last >= 0, document.gather(1, last.clamp(min=0)), earlier[:, None])


@dataclass(frozen=True)
class ChunkMasks:
    """Who belongs together, of T chunks of C tokens whose documents are contiguous."""

    size: int  # C
    pairs: Tensor  # bool [1|B, 1, 1, T, C, C] of one document, the key not after the query
    first: Tensor  # bool [1|B, 1, 1, T, C, 1] of the document that the chunk before ended with
    last: Tensor  # bool [1|B, 1, 1, T, C, 1] of the document that its chunk ends with
    kept: Tensor  # bool [1|B, 1, 1, T, 1, 1] whether a chunk ends with the document that the one before ended with


def make_chunk_masks(document: Tensor, before: Tensor, size: int, least: int = 0) -> ChunkMasks:
    """Of documents [1|B, N] after a last one [1|B]; keys are at least `least` tokens before their queries."""
    document = document.expand(max(len(document), len(before)), -1)
    missing = document[:, -1:].expand(-1, -document.shape[1] % size)
    document = torch.cat([document, missing], dim=1).unflatten(1, (-1, size))  # [1|B, T, C]
    last = document[:, :, -1:]  # [1|B, T, 1]
    earlier = torch.cat([before.expand(len(last))[:, None, None], last[:, :-1]], dim=1)
    pairs = (document[..., None] == document[:, :, None]).tril(-least)
    found = (
        pairs,
        (document == earlier)[..., None],
        (document == last)[..., None],
        (last == earlier)[..., None],
    )
    return ChunkMasks(size, *(one[:, None, None] for one in found))


def scan_chunks(
    q: Tensor, k: Tensor, v: Tensor, runs: ChunkMasks, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """sum_n (q_i.k_n) v_n over the keys of each query's document so far, and sum_n k_n v_n^T of the last document."""
    count, missing = q.shape[-2], -q.shape[-2] % runs.size
    q, k, v = (
        F.pad(one, (0, 0, 0, missing)).unflatten(-2, (-1, runs.size)) for one in (q, k, v)
    )  # [.., T, C, ..]
    added = (k * runs.last).mT @ v  # [B, G, 1, T, K, V]
    state, states = torch.zeros_like(added[:, :, :, 0]) if state is None else state, []
    for kept, new in zip(runs.kept.unbind(3), added.unbind(3), strict=True):
        states.append(state)
        state = torch.where(kept, state, 0) + new
    within = (q @ k.mT).masked_fill(~runs.pairs, 0) @ v
    out = within + (q * runs.first) @ torch.stack(states, dim=3)
    return out.flatten(-3, -2)[..., :count, :], state


KINDS = ("softmax", "linear")
CHUNK = 64  # tokens whose pairs are looked at; what came before them is one matrix


@dataclass(frozen=True)
class LinearCall:
    """A call of linear attention, as data.

    `terms` have turned features of queries and of keys as q and k, the keys' not repeated for the query heads that share
    them, and the queries' features before they were turned as content. `features` are those of the keys.
    """

    call: AttentionCall
    features: Tensor  # [B, G, M, K]


@dataclass(frozen=True)
class LinearState:
    """What the keys of the last document came to so far."""

    products: Tensor  # [B, G, 1, K, V] sum of turned features times values
    sums: Tensor  # [B, G, 1, K, 1] sum of features
    document: Tensor  # int [1|B]


def feature_map(x: Tensor) -> Tensor:
    """elu(x) + 1 in at least float32: positive, also where exp(x) - 1 would be rounded to -1."""
    x = upcast(x)
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def check_supported(links: Iterable[Encoding], call: AttentionCall) -> None:
    """Raises OptionError where an encoding does more than to turn queries and keys, or to add to the input."""
    heads = call.q.shape[1]
    call = call.replace(k=repeat_kv_heads(call.k, heads), v=repeat_kv_heads(call.v, heads))
    for link in links:
        new, changed = link.modify(call), []
        if new is not call:
            changed = [
                field.name
                for field in fields(AttentionCall)
                if getattr(new, field.name) is not getattr(call, field.name)
            ]
        if (
            type(link).transform_query is not Encoding.transform_query
            and call.q.shape[-1] != call.raw_query.shape[-1]
        ):
            changed.append("the width of heads")
        if changed:
            told = f"{link.name} changes {' and '.join(changed)} of an attention call, which a sum over keys has no place for"
            raise OptionError(
                "encoding",
                f"{told}; with attention linear list what adds to the input or turns heads, as rope does",
            )


def weights(linear: LinearCall) -> Tensor:
    """The definition: what each query reads of each key, [B, H, N, M]. A row that sees nothing is zero."""
    call, visible, heads = linear.call, attention_mask(linear.call), linear.call.q.shape[1]
    with disable_autocast(call.q.device):
        turned = (call.q @ repeat_kv_heads(call.k, heads).mT).masked_fill(~visible, 0)
        plain = (call.raw_query @ repeat_kv_heads(linear.features, heads).mT).masked_fill(
            ~visible, 0
        )
        return _shared(turned, plain.sum(-1, keepdim=True))


def attend_quadratic(linear: LinearCall) -> Tensor:
    """Output [B, H, N, V] by the definition."""
    mixed = weights(linear)
    with disable_autocast(mixed.device):
        return (mixed @ upcast(repeat_kv_heads(linear.call.v, mixed.shape[1]))).to(
            linear.call.v.dtype
        )


def attend_causal(
    linear: LinearCall, past: LinearState | None = None, size: int = CHUNK
) -> tuple[Tensor, LinearState]:
    """Output [B, H, N, V] under a causal mask and what it all came to, given what keys before these came to.

    Pairs within chunks of `size` tokens, sums for what came before: time and memory grow with M alone.
    """
    keys, v = linear.call.keys, linear.call.v
    given = (
        keys.pos.new_zeros(1, len(keys), dtype=torch.long)
        if keys.document is None
        else keys.document
    )
    document = fill_padding(given, None if past is None else past.document)
    with disable_autocast(v.device):
        q, k, plain_q, plain_k, values = _seen(linear, given >= 0)
        runs = make_chunk_masks(
            document, document[:, 0] if past is None else past.document, min(size, len(keys))
        )
        out, products = scan_chunks(q, k, values, runs, None if past is None else past.products)
        norms, sums = scan_chunks(
            plain_q,
            plain_k,
            torch.ones_like(values[..., :1]),
            runs,
            None if past is None else past.sums,
        )
        return _read(out, norms, linear.call), LinearState(products, sums, document[:, -1])


def attend_bidirectional(linear: LinearCall, size: int = CHUNK) -> Tensor:
    """Output [B, H, N, V] without a mask, where the tokens of a document may stand apart."""
    call, document = linear.call, linear.call.keys.document
    with disable_autocast(call.v.device):
        q, k, plain_q, plain_k, v = _seen(linear, None if document is None else document >= 0)
        one = torch.ones_like(v[..., :1])
        if document is None:
            return _read(q @ (k.mT @ v), plain_q @ (plain_k.mT @ one), call)
        order = document.argsort(stable=True)  # [1|B, M]
        document, size = document.gather(1, order), min(size, document.shape[1])
        behind = make_chunk_masks(document, document[:, 0], size)
        ahead = make_chunk_masks(document.flip(1), document[:, -1], size, least=1)

        def summed(*heads: Tensor) -> Tensor:
            q, k, v = (
                torch.take_along_dim(one, order[:, None, None, :, None], -2) for one in heads
            )
            out = scan_chunks(q, k, v, behind)[0]
            out = out + scan_chunks(q.flip(-2), k.flip(-2), v.flip(-2), ahead)[0].flip(-2)
            return torch.take_along_dim(out, order.argsort()[:, None, None, :, None], -2)

        return _read(summed(q, k, v), summed(plain_q, plain_k, one), call)


def _seen(linear: LinearCall, real: Tensor | None) -> tuple[Tensor, ...]:
    """q, k and both as they were, and v: [B, G, H / G or 1, M, ..], with as many queries as keys; those of padding are 0."""
    call, groups = linear.call, linear.features.shape[1]
    missing = (0, 0, call.k.shape[2] - call.q.shape[2], 0)
    q, plain_q = (
        F.pad(one.unflatten(1, (groups, -1)), missing) for one in (call.q, call.raw_query)
    )
    k, plain_k = call.k[:, :, None], linear.features[:, :, None]
    if real is not None:
        q, k, plain_q, plain_k = (
            one * real[:, None, None, :, None] for one in (q, k, plain_q, plain_k)
        )
    return q, k, plain_q, plain_k, upcast(call.v)[:, :, None]


def _read(out: Tensor, norms: Tensor, call: AttentionCall) -> Tensor:
    """[B, H, N, V] of sums for all M tokens, [B, G, H / G, M, ..]."""
    return _shared(out, norms)[..., call.query_slice, :].flatten(1, 2).to(call.v.dtype)


def _shared(sums: Tensor, norms: Tensor) -> Tensor:
    return sums / norms.masked_fill(norms == 0, 1)  # 0 where there is nothing to see
