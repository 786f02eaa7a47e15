"""Attention with linear biases (ALiBi; Press et al. 2021, arXiv:2108.12409)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from zoo.attention import POINT_AXES, AttentionCall, Dims, Encoding
from zoo.attention.call import Index
from zoo.encodings.common.panels import Panels, head_panel, name_step
from zoo.encodings.common.position_tables import extend_slopes, position_offsets, straight_distance
from zoo.options import Between
from zoo.registry import register


@register
class ALiBi(Encoding):
    """scores - m_h |p_i - p_j|, m_h = global_slope 2^(-8h/H) for h = 1..H

    If H is not a power of two, the slopes are those of the next smaller power n, followed by the
    1st, 3rd, 5th ... slopes of 2n. On a grid |p_i - p_j| is the sum of distances along the axes or,
    with `distance` euclidean, the straight-line distance (CROMA; Fuller et al. 2023,
    arXiv:2311.00566).

    Args:
        distance: How far two patches of a grid are apart: the sum along the axes, or the straight
            line.
        global_slope: Factor of all slopes.
    """

    part = "bias"
    shift_invariant = True
    axes = (1, 2, 3)
    point_axes = POINT_AXES

    def __init__(
        self,
        dims: Dims,
        *,
        distance: Literal["manhattan", "euclidean"] = "manhattan",
        global_slope: Annotated[float, Between(0)] = 1.0,
    ) -> None:
        super().__init__(dims)
        self.euclidean, self.global_slope = distance == "euclidean", global_slope

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return extend_slopes(self.global_slope, factors)

    def modify(self, call: AttentionCall) -> AttentionCall:
        slopes = self.slopes(call.keys.pos)
        if not call.is_ordered:
            distance = self._distance(call)
            return call.add_bias(lambda b, h, i, j: -slopes[h] * distance(b, h, i, j))

        # No key is ahead: -m (p_i - p_j) is a sum of two terms of rank 1. Positions relative to the
        # last token stay small, and so exact, for recent tokens.
        latest = call.keys.pos[:, -1:]
        rows = slopes[:, None, None] * (call.queries.pos - latest)[:, None]  # [1|B, H, N, 1]
        columns = slopes[:, None, None] * (call.keys.pos - latest)[:, None]  # [1|B, H, M, 1]
        ones = rows.new_ones(1, 1, 1, 1)
        return call.add_low_rank_bias(-rows, ones).add_low_rank_bias(ones, columns)

    def panels(self, call: AttentionCall) -> Panels:
        slopes = self.slopes(call.keys.pos)
        step = name_step(self.dims)
        caption = f"Penalty per {step} of distance: heads with steep slopes attend to near keys."
        yield head_panel("Slopes", f"score per {step}", slopes, caption)

    def slopes(self, like: Tensor) -> Tensor:
        """Return the slope of each head, [H], as a tensor like `like`."""
        return self.global_slope * head_slopes(self.dims.heads, like)

    def _distance(self, call: AttentionCall) -> Index:
        if self.euclidean:
            return straight_distance(call)
        offsets = [position_offsets(call, axis) for axis in range(self.dims.axes)]
        return lambda b, h, i, j: sum(offset(b, h, i, j).abs() for offset in offsets)  # type: ignore[return-value]


def head_slopes(heads: int, like: Tensor) -> Tensor:
    """Return the slopes of ALiBi, [H]."""
    power = 1 << (heads.bit_length() - 1)  # the largest power of two up to H
    whole = torch.arange(1, power + 1, device=like.device, dtype=like.dtype) / power
    between = (torch.arange(heads - power, device=like.device, dtype=like.dtype) + 0.5) / power
    return torch.exp2(-8 * torch.cat([whole, between]))
