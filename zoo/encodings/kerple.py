"""Kernelized relative positions with learned scales (KERPLE; Chi et al. 2022, arXiv:2205.09921)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from zoo.attention import POINT_AXES, AttentionCall, Dims, Encoding, upcast
from zoo.encodings.common.panels import Panels, head_panel, name_step
from zoo.encodings.common.position_tables import (
    bias_from_offsets,
    has_bias_of_offsets,
    straight_distance,
)
from zoo.registry import register


@register
class KERPLE(Encoding):
    """scores - p_h log(1 + a_h |p_i - p_j|), p = exp(log_scale), a = exp(log_rate)

    `kind` power: scores - a_h |p_i - p_j|^p_h, p = 2 sigmoid(exponent). Initially p is uniform in
    (0, 2) and a in (0, 1). On a grid |p_i - p_j| is the straight-line distance in patches.

    Args:
        kind: The logarithm or the power of the distance.
    """

    part = "bias"
    shift_invariant = True
    axes = (1, 2, 3)
    point_axes = POINT_AXES

    def __init__(self, dims: Dims, *, kind: Literal["log", "power"] = "log") -> None:
        super().__init__(dims)
        scale, rate = torch.rand(2, dims.heads).clamp(min=1e-3)
        self.log_rate = nn.Parameter(rate.log())
        if kind == "log":
            self.log_scale = nn.Parameter((2 * scale).log())
        else:
            self.exponent = nn.Parameter(scale.logit(eps=1e-3))
        self.kind = kind

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"linear": {"coordinates": "interpolated"}} if self.dims.axes > 1 else {}

    def modify(self, call: AttentionCall) -> AttentionCall:
        rate, shape = self._rate_and_shape()

        def weigh(h: Tensor, distance: Tensor) -> Tensor:
            if self.kind == "log":
                return -shape[h] * (rate[h] * distance).log1p()
            # The second derivative of 0^p is NaN in torch: 1^p - 1 has the same value, and zeros.
            is_zero = distance == 0
            return -rate[h] * ((distance + is_zero) ** shape[h] - is_zero.to(distance.dtype))

        measure, pos = straight_distance(call), call.keys.pos

        def bias(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return weigh(h, measure(b, h, i, j))

        if not has_bias_of_offsets(call):
            return call.add_bias(bias)
        heads = torch.arange(len(rate), device=pos.device)[:, None]
        offsets = torch.arange(call.k.shape[2], device=pos.device).to(pos.dtype)
        return call.add_bias(bias_from_offsets(call, weigh(heads, offsets), bias))

    def panels(self, call: AttentionCall) -> Panels:
        rate, shape = self._rate_and_shape()
        caption = "Speed of decay at short distances; heads near 0 hardly depend on distance."
        yield head_panel("Rates", f"a, per {name_step(self.dims)}", rate, caption)
        if self.kind == "log":
            yield head_panel("Scales", "p", shape, "Strength of the decay over all distances.")
        else:
            yield head_panel("Exponents", "p", shape, "Growth of the penalty with distance.")

    def _rate_and_shape(self) -> tuple[Tensor, Tensor]:
        """Return a and p, [H] each."""
        rate = upcast(self.log_rate).exp()
        if self.kind == "log":
            return rate, upcast(self.log_scale).exp()
        return rate, 2 * upcast(self.exponent).sigmoid()
