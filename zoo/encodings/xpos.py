"""RoPE whose waves decay with distance (xPos; Sun et al. 2022, arXiv:2212.10554)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from zoo.attention import Dims, Tokens
from zoo.attention.coordinates import get_known_range
from zoo.encodings.common.frequencies import (
    axis_frequencies,
    check_head_dim,
    compute_angles,
    float64_like,
)
from zoo.encodings.common.rotation import Rotary, cos_sin, rotate_pairs
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class XPos(Rotary):
    """rope, with pairs of q times zeta_t^(p/span) and of k times zeta_t^(-p/span)

    zeta_t = (2t/K + gamma) / (1 + gamma), so that a score contains zeta_t^((p_i - p_j)/span).
    Positions count from the middle of the training length (from 0 if it is unknown), so that no
    factor overflows its dtype. With the default gamma, positions in one forward pass may differ by
    up to 69 spans, and as much from the middle: 35,000 tokens in float32, an eighth of that in
    float16. Larger differences are refused.

    Args:
        base: The frequencies are those of RoPE, base^(-2t/K).
        gamma: The larger it is, the less scores decay with the distance.
        span: Tokens over which zeta decays once.
    """

    part = "rotation"
    causal_only, identity_at_zero = True, False
    axes_reason = "its waves decay along a sequence; rope_axial and rope_mixed accept grids"

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        gamma: Annotated[float, Between(0.01, 1e6)] = 0.4,
        span: Annotated[float, Between(1)] = 512.0,
    ) -> None:
        super().__init__(dims)
        check_head_dim(self)
        self.base, self.gamma, self.span = base, gamma, span
        self.centre = 0.0 if dims.length is None else dims.tokens / 2
        self._check_distance(2 * self.centre, torch.float32)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        self._check_positions(pos, pos.dtype)
        waves = self.wave_vectors(float64_like(pos))
        table = cos_sin(compute_angles(pos, waves))  # [1|B, 1, N, K/2, 2]
        even = torch.arange(0, self.dims.head_dim, 2, device=pos.device, dtype=pos.dtype)
        zeta = (even / self.dims.head_dim + self.gamma) / (1 + self.gamma)
        decay = zeta.log() / self.span
        logs = ((pos - self.centre)[:, None] * decay)[..., None]  # [1|B, 1, N, K/2, 1]
        return table * logs.exp(), table * (-logs).exp()

    def wave_vectors(self, like: Tensor) -> Tensor:
        return axis_frequencies(self.dims, self.base, like)[0][None, None]

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return self._rotate(q, tokens, self.get_rotation(tokens)[0])

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self._rotate(k, tokens, self.get_rotation(tokens)[1])

    def _rotate(self, x: Tensor, tokens: Tokens, table: Tensor) -> Tensor:
        # float16 overflows at smaller factors than the dtype of the table.
        if x.dtype != tokens.pos.dtype:
            self._check_positions(tokens.pos, x.dtype)
        return rotate_pairs(x, table)

    def _check_positions(self, pos: Tensor, dtype: torch.dtype) -> None:
        if pos.is_meta or torch.compiler.is_compiling() or not pos.numel():
            return
        limits = get_known_range(pos)
        if limits is None or self._measure_distance(*limits) > self._compute_limit(dtype):
            lowest, highest = (float(edge) for edge in pos.aminmax())
            self._check_distance(self._measure_distance(lowest, highest), dtype)

    def _measure_distance(self, lowest: float, highest: float) -> float:
        return max(highest - lowest, highest - self.centre, self.centre - lowest)

    def _compute_limit(self, dtype: torch.dtype) -> float:
        """Return the largest distance at which no factor overflows the dtype."""
        # The first pair, t = 0, decays fastest. A factor e^2 is left for q and k themselves.
        fastest = math.log((1 + self.gamma) / self.gamma) / self.span
        return (math.log(torch.finfo(dtype).max) - 2) / fastest

    def _check_distance(self, distance: float, dtype: torch.dtype) -> None:
        """Raise OptionError if factors at this distance overflow the dtype."""
        limit = self._compute_limit(dtype)
        if distance > limit:
            far = f"positions {distance:.0f} apart, or from the middle of the training length"
            reason = f"{far}, exceed {limit:.0f}, where powers overflow"
            raise OptionError("span", f"xpos: {reason}; choose a larger span than {self.span:g}")
