"""Kernelized relative positions, with learned scales per head (KERPLE; Chi et al. 2022, arXiv:2205.09921)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from zoo.attention import Dims, Encoding, Terms, precise
from zoo.registry import register


@register
class KERPLE(Encoding):
    """scores - p_h log(1 + a_h |p_i - p_j|), p = exp(log_scale), a = exp(log_rate); power: - a_h |p_i - p_j|^p_h

    The exponent of power is p = 2 sigmoid(exponent). At first p is uniform in (0, 2) and a in (0, 1).
    """

    relative = True
    axes_because = "its authors define it on distances along a text; alibi and t5 take grids"

    def __init__(self, dims: Dims, *, kind: Literal["log", "power"] = "log") -> None:
        super().__init__(dims)
        scale, rate = torch.rand(2, dims.heads).clamp(min=1e-3)
        self.log_rate = nn.Parameter(rate.log())
        if kind == "log":
            self.log_scale = nn.Parameter((2 * scale).log())
        else:
            self.exponent = nn.Parameter(scale.logit(eps=1e-3))
        self.kind = kind

    def terms(self, terms: Terms) -> Terms:
        rate = precise(self.log_rate).exp()
        if self.kind == "log":
            scale = precise(self.log_scale).exp()
            return terms.add_bias(lambda b, h, i, j: -scale[h] * (rate[h] * terms.distance(b, i, j)).log1p())
        exponent = 2 * precise(self.exponent).sigmoid()
        return terms.add_bias(lambda b, h, i, j: -rate[h] * terms.distance(b, i, j) ** exponent[h])
