"""Kernelized relative positions, with learned scales per head (KERPLE; Chi et al. 2022, arXiv:2205.09921)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, upcast
from zoo.encodings.common.panels import Panels, head_panel
from zoo.registry import register


@register
class KERPLE(Encoding):
    """scores - p_h log(1 + a_h |p_i - p_j|), p = exp(log_scale), a = exp(log_rate); power: - a_h |p_i - p_j|^p_h

    The exponent of power is p = 2 sigmoid(exponent). At first p is uniform in (0, 2) and a in (0, 1).
    """

    shift_invariant = True
    axes_reason = "its authors define it on distances along a text; alibi and t5 take grids"

    def __init__(self, dims: Dims, *, kind: Literal["log", "power"] = "log") -> None:
        super().__init__(dims)
        scale, rate = torch.rand(2, dims.heads).clamp(min=1e-3)
        self.log_rate = nn.Parameter(rate.log())
        if kind == "log":
            self.log_scale = nn.Parameter((2 * scale).log())
        else:
            self.exponent = nn.Parameter(scale.logit(eps=1e-3))
        self.kind = kind

    def modify(self, call: AttentionCall) -> AttentionCall:
        rate, shape = self._rate_and_shape()
        if self.kind == "log":
            return call.add_bias(
                lambda b, h, i, j: -shape[h] * (rate[h] * call.distance(b, i, j)).log1p()
            )
        return call.add_bias(lambda b, h, i, j: -rate[h] * call.distance(b, i, j) ** shape[h])

    def panels(self, call: AttentionCall) -> Panels:
        rate, shape = self._rate_and_shape()
        told = "How fast a head forgets with distance, at first; heads near 0 hardly tell near from far."
        yield head_panel("Rates", "a, per token", rate, told)
        told = (
            "How much a head forgets altogether."
            if self.kind == "log"
            else "How soon far tokens fall behind near ones."
        )
        yield head_panel("Scales" if self.kind == "log" else "Exponents", "p", shape, told)

    def _rate_and_shape(self) -> tuple[Tensor, Tensor]:
        """a and p, [H] each"""
        scale = (
            upcast(self.log_scale).exp()
            if self.kind == "log"
            else 2 * upcast(self.exponent).sigmoid()
        )
        return upcast(self.log_rate).exp(), scale
