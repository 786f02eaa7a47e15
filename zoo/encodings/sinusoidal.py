"""Sines and cosines of positions added to the input (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from zoo.attention import POINT_AXES, Dims, Encoding, Tokens
from zoo.encodings.common.frequencies import compute_angles, float64_like
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

Layout = Literal["interleaved", "concat"]
BASE = 10000.0


@register
class Sinusoidal(Encoding):
    """x + PE(p), PE(p, 2i) = sin(p w_i), PE(p, 2i+1) = cos(p w_i), w_i = base^(-2i/D)

    Each of P axes has D/P consecutive channels, in array order, and frequencies with D/P in place
    of D. `layout` concat puts the sines of an axis before its cosines.

    Args:
        base: The frequencies are base^(-2i/D).
        layout: Whether sines and cosines alternate, or all sines come first.
    """

    part = "input"
    axes = (1, 2, 3)
    point_axes = POINT_AXES
    adds_to_input = True

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = BASE,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__(dims)
        if dims.dim % (2 * dims.axes):
            needed = f"a dim divisible by {2 * dims.axes}, not {dims.dim}"
            raise OptionError("name", f"on {dims.axes} axes it needs {needed}")
        self.base, self.layout = base, layout

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"linear": {"coordinates": "interpolated"}} if self.dims.axes > 1 else {}

    def embed(self, tokens: Tokens) -> Tokens:
        table = sinusoid(tokens.pos, self.dims.dim, self.base, self.layout)
        return tokens.replace(x=tokens.x + table.to(tokens.x.dtype))


def sinusoid(pos: Tensor, dim: int, base: float = BASE, layout: Layout = "interleaved") -> Tensor:
    """Return sines and cosines [1|B, N, D] at coordinates [1|B, N, P]."""
    width = dim // pos.shape[-1]
    like = float64_like(pos)
    even = torch.arange(0, width, 2, device=like.device, dtype=like.dtype)
    waves = (base ** (-even / width))[None, None]  # [1, 1, D/2P]
    columns = [compute_angles(axis_pos, waves)[:, 0] for axis_pos in pos.split(1, dim=-1)]
    angles = torch.stack(columns, dim=-2)  # [1|B, N, P, D/2P]
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)
    return (waves if layout == "interleaved" else waves.mT).flatten(-3)


def plane_waves(pos: Tensor, dim: int) -> Tensor:
    """Return [cos | sin] [1|B, N, D] of waves in many directions, at coordinates [1|B, N, 2]."""
    # Wave vector k has the norm pi 10^(k / (D/2 - 1)) and the direction of k radians.
    like = float64_like(pos)
    k = torch.arange(dim // 2, device=like.device, dtype=like.dtype)
    size = math.pi * 10 ** (k / max(dim // 2 - 1, 1))
    phases = compute_angles(pos, size * torch.stack([k.cos(), k.sin()])[:, None])[:, 0]
    return torch.cat([phases.cos(), phases.sin()], dim=-1)
