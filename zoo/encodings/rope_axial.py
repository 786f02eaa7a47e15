"""RoPE on the axes of an image or a clip (Heo et al. 2024, arXiv:2403.13298; Fang et al. 2023, arXiv:2303.11331)."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.encoding import Dims
from zoo.encodings.rotation import Rotary, circle
from zoo.errors import Invalid
from zoo.registry import register


@register
class RoPEAxial(Rotary):
    """pairs (2k, 2k+1) of q and k turn by p_a w_k, w_k = base^(-2Pk/K), a part of the pairs for each axis a

    Images: the first half of the pairs turns with the column, the second with the row, as published checkpoints have it.
    Clips: three nearly equal parts for frame, row and column.
    """

    axes = (2, 3)

    def __init__(self, dims: Dims, *, base: float = 100.0) -> None:
        super().__init__(dims)
        divisor = 4 if dims.axes == 2 else 2
        if dims.head % divisor or dims.head < 2 * dims.axes:
            raise Invalid("name", f"rope_axial on {dims.axes} axes needs a head size divisible by {divisor} and at least "
                          f"{2 * dims.axes}, not {dims.head}")
        self.base = base

    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        pairs, axes = self.dims.head // 2, self.dims.axes
        order = reversed(range(axes)) if axes == 2 else range(axes)
        parts = torch.arange(pairs, device=pos.device).tensor_split(axes)
        ladders = [self.base ** (-(part - part[0]).to(pos.dtype) * axes / pairs) for part in parts]
        angles = [pos[..., axis, None] * ladder for axis, ladder in zip(order, ladders, strict=True)]
        return (circle(torch.cat(angles, dim=-1)[:, None]),)  # [1|B, 1, N, K/2, 2]
