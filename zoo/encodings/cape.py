"""Sinusoids whose positions training shifts, jitters and stretches (CAPE; Likhomanenko et al. 2021, arXiv:2106.03143)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from zoo.attention import Dims, Encoding, Tokens
from zoo.attention.coordinates import spacing
from zoo.encodings.sinusoidal import plane_waves, sinusoid
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class CAPE(Encoding):
    """sinusoid of p' = (p + shift_b + jitter_bt) scale_b in training, of p' = p in evaluation; `centre` takes the mean off p

    shift ~ U(-global_shift, global_shift) per sample and axis, jitter ~ U(-local_shift, local_shift) steps to the next place
    per token and axis, log scale ~ U(-log scale, log scale) per sample. Images have symmetric coordinates, two wide, and waves
    in every direction: [cos | sin] of pi 10^(k/(D/2 - 1)) (row cos k + column sin k), k = 0 .. D/2 - 1. The defaults are
    those of text; published code gives images global_shift 0.5 and scale 1.4. Jitter beyond half a step mixes up the order.
    """

    axes = (1, 2)

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
            raise OptionError("name", f"cape needs an even dim, not {dims.dim}")
        self.global_shift, self.local_shift, self.scale, self.centre = (
            global_shift,
            local_shift,
            scale,
            centre,
        )
        self.coordinates = "index" if dims.axes == 1 else "symmetric"
        self.shift_invariant = self.needs_full_sequence = centre

    def embed(self, tokens: Tokens) -> Tokens:
        pos = tokens.pos - means(tokens) if self.centre else tokens.pos
        pos = self._augmented(pos, tokens) if self.training else pos
        table = (
            sinusoid(pos, self.dims.dim) if self.dims.axes == 1 else plane_waves(pos, self.dims.dim)
        )
        return tokens.replace(x=tokens.x + table.to(tokens.x.dtype))

    def _augmented(self, pos: Tensor, tokens: Tokens) -> Tensor:
        batch, count, axes = len(tokens.x), *pos.shape[1:]

        def draw(*shape: int) -> Tensor:
            return 2 * torch.rand(shape, dtype=pos.dtype, device=pos.device) - 1

        step = spacing(tokens, self.coordinates, self.dims.length)  # type: ignore[arg-type]
        jitter = draw(batch, count, axes) * self.local_shift * step
        shifted = pos + draw(batch, 1, axes) * self.global_shift + jitter
        return shifted * torch.exp(draw(batch, 1, 1) * math.log(self.scale))


def means(tokens: Tokens) -> Tensor:
    """The mean coordinates [1|B, N, P] of those tokens of each token's document that have a place."""
    pos, document, placed = tokens.pos, tokens.document, tokens.has_position
    pos = pos.expand(max(len(one) for one in (pos, document, placed) if one is not None), -1, -1)
    counted = torch.ones_like(pos[..., :1]) * (1 if placed is None else placed[..., None])
    run = torch.zeros_like(pos[..., 0], dtype=torch.long)
    if document is not None:
        run = run + (document.diff(dim=1, prepend=document[:, :1]) != 0).cumsum(
            1
        )  # the number of a token's document
    sums = torch.cat([pos * counted, counted], dim=-1)
    slots = run[..., None].expand_as(sums)
    *totals, count = torch.zeros_like(sums).scatter_add(1, slots, sums).gather(1, slots).unbind(-1)
    return torch.stack(totals, dim=-1) / count.clamp(min=1)[..., None]
