"""Sinusoids of augmented positions (CAPE; Likhomanenko et al. 2021, arXiv:2106.03143)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from zoo.attention import Dims, Encoding, Tokens
from zoo.attention.coordinates import spacing
from zoo.attention.tokens import fill_padding
from zoo.encodings.sinusoidal import plane_waves, sinusoid
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class CAPE(Encoding):
    """x + sinusoid(p'), p' = (p + shift_b + jitter_bt) scale_b in training, p' = p in evaluation

    Shifts are U(-global_shift, global_shift) per sample and axis. Jitters are U(-local_shift,
    local_shift) times the distance of neighbours, per token and axis; above half of it they change
    the order. Logarithms of scales are U(-log scale, log scale) per sample. `centre` subtracts the
    mean of p. Images have symmetric coordinates from -1 to 1 and waves in all directions:
    [cos | sin] of pi 10^(k/(D/2 - 1)) (row cos k + column sin k), k = 0 .. D/2 - 1. The defaults
    are those for text; for images the published code has global_shift 0.5 and scale 1.4. The name
    CAPE also stands for another method; this one is augmentation, of arXiv:2106.03143.

    Args:
        global_shift: Largest shift of all positions of a sample, in the units of the coordinates.
        local_shift: Largest jitter of a token, in distances of neighbours.
        scale: Largest factor of all positions of a sample; the smallest is its inverse.
        centre: Whether the mean position is subtracted.
    """

    part = "input"
    axes = (1, 2)
    adds_to_input = True

    def __init__(
        self,
        dims: Dims,
        *,
        global_shift: Annotated[float, Between(0)] = 5.0,
        local_shift: Annotated[float, Between(0)] = 0.5,
        scale: Annotated[float, Between(1)] = 1.03,
        centre: bool = False,
    ) -> None:
        super().__init__(dims)
        if dims.dim % 2:
            raise OptionError("name", f"it needs an even dim, not {dims.dim}")
        self.global_shift, self.local_shift, self.scale = global_shift, local_shift, scale
        self.centre = centre
        self.coordinates = "index" if dims.axes == 1 else "symmetric"
        # The mean needs all tokens; positions relative to it do not depend on where they start.
        self.shift_invariant = self.needs_full_sequence = centre

    def embed(self, tokens: Tokens) -> Tokens:
        pos = tokens.pos - mean_positions(tokens) if self.centre else tokens.pos
        pos = self._augment(pos, tokens) if self.training else pos
        encode = sinusoid if self.dims.axes == 1 else plane_waves
        return tokens.replace(x=tokens.x + encode(pos, self.dims.dim).to(tokens.x.dtype))

    def _augment(self, pos: Tensor, tokens: Tokens) -> Tensor:
        batch, (_, count, axes) = tokens.x.shape[0], pos.shape

        def draw(*shape: int) -> Tensor:
            return 2 * torch.rand(shape, dtype=pos.dtype, device=pos.device) - 1

        step = spacing(tokens, self.coordinates, self.dims.length)  # type: ignore[arg-type]
        jitter = draw(batch, count, axes) * self.local_shift * step
        shifted = pos + draw(batch, 1, axes) * self.global_shift + jitter
        return shifted * torch.exp(draw(batch, 1, 1) * math.log(self.scale))


def mean_positions(tokens: Tokens) -> Tensor:
    """Return the mean coordinates [1|B, N, P] of each token's document, without special tokens."""
    pos, document, has_position = tokens.pos, tokens.document, tokens.has_position
    batch = max(len(tensor) for tensor in (pos, document, has_position) if tensor is not None)
    pos = pos.expand(batch, -1, -1)
    counted = torch.ones_like(pos[..., :1])
    if has_position is not None:
        counted = counted * has_position[..., None]

    # Number the documents of each row, then sum coordinates and counts per document.
    number = torch.zeros_like(pos[..., 0], dtype=torch.long)
    if document is not None:
        counted = counted * (document >= 0)[..., None]
        filled = fill_padding(document, None)
        changes = filled.diff(dim=1, prepend=filled[:, :1]) != 0
        number = number + changes.cumsum(1)
    sums = torch.cat([pos * counted, counted], dim=-1)
    index = number[..., None].expand_as(sums)
    totals = torch.zeros_like(sums).scatter_add(1, index, sums).gather(1, index)
    return totals[..., :-1] / totals[..., -1:].clamp(min=1)
