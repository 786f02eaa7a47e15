"""The use of rotary frequencies by each head: what each pair of channels adds to the scores.

The product of a query and a key is the sum of one term for each pair of channels t that turns,

    c_ij^t = scale (R(p_i w_t) q_i^t) . (R(p_j w_t) k_j^t),

and one for all other channels. With rows centred over visible keys, since a softmax ignores what is
added to a whole row, the share of pair t in the scores is cov(c^t, c) / var(c) with c = sum_t c^t.
Shares of all pairs and of the rest sum to 1; a pair that works against the others has a negative
one. The norms of q and k by pair are those of Barbero et al. 2024 (arXiv:2410.06205).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.attention.backends.reference import attention_mask
from zoo.attention.tokens import upcast
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention, choose_evenly
from zoo.diagnostics.head_metrics import is_comparable

TURN = 2 * math.pi
EXPLAINED = 16
"""Queries at most, spread evenly, of which it is estimated how much positions explain."""


@dataclass(frozen=True, kw_only=True)
class LayerFrequencies:
    """The use of frequencies in one layer, of heads H and turning pairs R.

    Attributes:
        layer: Index of the layer.
        waves: Radians per token or patch along each axis, [P, 1|H, R].
        turns: Turns of each pair over the trained context, [1|H, R]: a pair below 1 makes no full
            turn; NaN if the trained size is unknown.
        q_norm: Mean norm of queries in each pair, [H, R].
        k_norm: Mean norm of keys in each pair, [H, R].
        share: Share of each pair in the scores, [H, R].
        rest: Share of the channels that do not turn, [H].
        position: Fraction of the variance of each pair's term that the two positions explain, as
            `metrics.position_r2` estimates it, [H, R]; the remainder depends on content. NaN for a
            single sample, or where samples have different positions.
        effective: Number of pairs that a head lives on, exp of the entropy of its shares, negative
            ones left out, [H].
    """

    layer: int
    waves: Tensor
    turns: Tensor
    q_norm: Tensor
    k_norm: Tensor
    share: Tensor
    rest: Tensor
    position: Tensor
    effective: Tensor


def measure_frequencies(attention: LayerAttention) -> LayerFrequencies | None:
    """Measure the use of frequencies in a layer; None if no pairs of channels turn.

    Only pairs of tokens with positions are counted.
    """
    call = attention.call
    waves = attention.chain.pair_waves(call)
    if waves is None or attention.scores is None:
        return None
    heads, count = call.q.shape[1], waves.shape[-1]
    waves = _repeat_heads(waves.double(), heads)

    q, k = upcast(call.q), upcast(call.k)  # [B, H, Q, K], [B, H, M, K]
    q_norm = _average_norms(q, count, attention.grid[0])
    k_norm = _average_norms(k, count, attention.grid[1])
    pairs = metrics.positioned_pairs(*attention.grid)  # [1|B, 1, Q, M]
    counted = (attention_mask(call) & pairs).expand(len(q), 1, -1, -1)
    total = metrics.center_rows(call.scale * (q @ k.mT), counted)
    # a head without queries or keys has no variance, and its shares are NaN
    variance = total.square().sum((0, 2, 3))  # [H]

    # The sum over pairs of tokens of c_ij total_ij is q_i . sum_j total_ij k_j, for all channels in
    # one product; a centred total needs no centred terms.
    parts = call.scale * q * (total @ k)  # [B, H, Q, K]
    by_pair = parts[..., : 2 * count].unflatten(-1, (count, 2)).sum((0, 2, 4))  # [H, R]
    share = (by_pair / variance[:, None]).double().cpu()

    explained = torch.full((heads, count), torch.nan, dtype=torch.float64)
    if is_comparable(attention):
        # a quarter of the usual queries is enough: positions are the same in all samples
        some = choose_evenly(q.shape[2], EXPLAINED)
        in_all, q = counted.all(0)[:, some], q[:, :, some]
        # one term at a time: all of them would take as much memory as a head has pairs
        for pair in range(count):
            channels = slice(2 * pair, 2 * pair + 2)
            term = call.scale * (q[..., channels] @ k[..., channels].mT)
            by_sample = metrics.explain_by_position(metrics.center_rows(term, in_all))
            explained[:, pair] = by_sample.mean(0).double().cpu()
    return LayerFrequencies(
        layer=attention.layer,
        waves=waves,
        turns=count_turns(waves, attention.chain.dims.length),
        q_norm=q_norm,
        k_norm=k_norm,
        share=share,
        # without other channels, the rest would be rounding
        rest=(1 - share.sum(-1)) * (2 * count < q.shape[-1]),
        position=explained,
        effective=count_effective(share),
    )


def count_turns(waves: Tensor, sizes: object) -> Tensor:
    """Return the turns of each pair between the ends of the trained context, [1|H, R].

    Args:
        waves: Radians per token along each axis, [P, 1|H, R].
        sizes: Number of tokens along each axis in training, a tuple; None if unknown.
    """
    if not isinstance(sizes, tuple):
        return torch.full_like(waves[0], torch.nan)
    # an axis adds to the angle between opposite corners of a grid
    lengths = torch.tensor(sizes, dtype=waves.dtype)[:, None, None]
    return (waves.abs() * lengths).sum(0) / TURN


def count_effective(share: Tensor) -> Tensor:
    """Return exp of the entropy of shares [.., R], negative ones left out: [..]."""
    positive = share.clamp(min=0)
    positive = positive / positive.sum(-1, keepdim=True)
    return torch.special.entr(positive).sum(-1).exp()


def _repeat_heads(waves: Tensor, heads: int) -> Tensor:
    """Repeat the waves of key heads [P, 1|G, R] for their query heads."""
    if waves.shape[1] in (1, heads):
        return waves
    return waves.repeat_interleave(heads // waves.shape[1], dim=1)


def _average_norms(heads: Tensor, count: int, counted: Tensor) -> Tensor:
    """Average the norms of the first pairs of heads [B, H, N, K] over tokens: [H, count]."""
    norms = heads[..., : 2 * count].unflatten(-1, (count, 2)).norm(dim=-1)  # [B, H, N, R]
    rows = counted[:, None, :, None].expand(len(heads), 1, -1, 1)
    return ((norms * rows).sum((0, 2)) / rows.sum((0, 2))).double().cpu()
