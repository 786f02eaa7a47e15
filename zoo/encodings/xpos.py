"""RoPE whose waves fade with distance (xPos; Sun et al. 2022, arXiv:2212.10554)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from zoo.attention import Dims, Tokens
from zoo.encodings.common.frequencies import axis_frequencies, check_pairs, compute_angles
from zoo.encodings.common.rotation import Rotary, cos_sin, rotate_pairs
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class XPos(Rotary):
    """rope, with pairs of q times zeta_t^(p/span) and of k times zeta_t^(-p/span), zeta_t = (2t/K + gamma) / (1 + gamma)

    A score has zeta_t^((p_i - p_j)/span). Places count from the middle of the length of training (from 0 where nobody said
    it), so that no product leaves the range of its type: with the default gamma the places of a pass may lie 69 span apart, and
    as far from there: 35,000 tokens in float32, an eighth of that in float16. Farther ones are refused.
    """

    causal_only, identity_at_zero = True, False
    axes_reason = "its waves fade along a text; rope_axial and rope_mixed take grids"

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        gamma: Annotated[float, Between(0.01)] = 0.4,
        span: Annotated[float, Between(1)] = 512.0,
    ) -> None:
        super().__init__(dims)
        check_pairs(dims)
        self.base, self.gamma, self.span = base, gamma, span
        self.centre = 0.0 if dims.length is None else dims.tokens / 2
        self._check(2 * self.centre, torch.float32)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        turns = cos_sin(compute_angles(pos, self.wave_vectors(pos)))  # [1|B, 1, N, K/2, 2]
        steps = (
            torch.arange(0, self.dims.head_dim, 2, device=pos.device, dtype=pos.dtype)
            / self.dims.head_dim
        )
        fading = ((steps + self.gamma) / (1 + self.gamma)).log() / self.span
        sizes = ((pos - self.centre)[:, None] * fading)[
            ..., None
        ]  # logarithms, [1|B, 1, N, K/2, 1]
        return turns * sizes.exp(), turns * (-sizes).exp()

    def wave_vectors(self, like: Tensor) -> Tensor:
        return axis_frequencies(self.dims, self.base, like)[0][None, None]

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        self._look(tokens.pos, q.dtype)
        return rotate_pairs(q, self.get_rotation(tokens)[0])

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        self._look(tokens.pos, k.dtype)
        return rotate_pairs(k, self.get_rotation(tokens)[1])

    def _look(self, pos: Tensor, dtype: torch.dtype) -> None:
        if not (pos.is_meta or torch.compiler.is_compiling()) and pos.numel():
            first, last = (float(edge) for edge in pos.aminmax())
            self._check(max(last - first, last - self.centre, self.centre - first), dtype)

    def _check(self, distance: float, dtype: torch.dtype) -> None:
        """Raises OptionError for places so far apart that what their factors multiply to would leave the range of its type."""
        fastest = math.log((1 + self.gamma) / self.gamma) / self.span
        most = (math.log(torch.finfo(dtype).max) - 2) / fastest  # room for what is multiplied
        if distance > most:
            told = f"places {distance:.0f} apart, or from the middle of training, are past {most:.0f}, where powers overflow"
            raise OptionError("span", f"{told}; choose a larger span than {self.span:g}")
