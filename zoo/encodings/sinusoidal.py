"""Sines and cosines of the position added to the input (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

from typing import Literal

import torch

from zoo.attention import Dims, Encoding, Tokens
from zoo.errors import Invalid
from zoo.registry import register


@register
class Sinusoidal(Encoding):
    """PE(p, 2i) = sin(p w_i), PE(p, 2i+1) = cos(p w_i), w_i = base^(-2i/D)

    With P axes each has D/P consecutive channels, in array order, and its own ladder with D/P in place of D.
    `layout` concat puts an axis's sines before its cosines.
    """

    axes = (1, 2, 3)

    def __init__(
        self, dims: Dims, *, base: float = 10000.0, layout: Literal["interleaved", "concat"] = "interleaved"
    ) -> None:
        super().__init__(dims)
        if dims.dim % (2 * dims.axes):
            needed = f"on {dims.axes} axes needs dim divisible by {2 * dims.axes}, not {dims.dim}"
            raise Invalid("name", f"sinusoidal {needed}")
        self.base, self.layout = base, layout

    def embed(self, tokens: Tokens) -> Tokens:
        width = self.dims.dim // self.dims.axes
        ladder = torch.arange(0, width, 2, device=tokens.pos.device, dtype=tokens.pos.dtype)
        angles = tokens.pos[..., None] * self.base ** (-ladder / width)  # [1|B, N, P, D/2P]
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1)
        table = (waves if self.layout == "interleaved" else waves.mT).flatten(-3)  # [1|B, N, D]
        return tokens.replace(x=tokens.x + table.to(tokens.x.dtype))
