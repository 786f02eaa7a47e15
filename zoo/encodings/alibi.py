"""Attention with linear biases (ALiBi; Press et al. 2021, arXiv:2108.12409)."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import Encoding, Terms
from zoo.registry import register


@register
class ALiBi(Encoding):
    """scores - m_h |p_i - p_j|, m_h = 2^(-8h/H) for h = 1..H

    For H no power of two: the slopes of the power n below it, then the 1st, 3rd, 5th ... slopes of 2n.
    """

    relative = True

    def terms(self, terms: Terms) -> Terms:
        slopes = head_slopes(self.dims.heads, terms.keys.pos)
        if not terms.ordered:
            return terms.add_bias(lambda b, h, i, j: -slopes[h] * terms.distance(b, i, j))
        here = terms.keys.pos[:, -1:]  # distances from the end are small where they matter
        rows, columns = (slopes[:, None, None] * (one.pos - here)[:, None] for one in (terms.queries, terms.keys))
        one = rows.new_ones(1, 1, 1, 1)
        return terms.add_factor(-rows, one).add_factor(one, columns)  # [1|B, H, N, 1], [1|B, H, M, 1]


def head_slopes(heads: int, like: Tensor) -> Tensor:
    """[H]"""
    power = 1 << (heads.bit_length() - 1)
    whole = torch.arange(1, power + 1, device=like.device, dtype=like.dtype) / power
    between = (torch.arange(heads - power, device=like.device, dtype=like.dtype) + 0.5) / power
    return torch.exp2(-8 * torch.cat([whole, between]))
