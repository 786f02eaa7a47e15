"""Sines of two places multiplied, as a bias of distance (Sandwich; Chi et al. 2022, arXiv:2212.10356)."""

from __future__ import annotations

from typing import Annotated

import torch

from zoo.attention import AttentionCall, Dims, Encoding, Lookup, Tokens, disable_autocast
from zoo.encodings.common.panels import Panels, head_panel
from zoo.encodings.common.relative_bias import index_offsets
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class Sandwich(Encoding):
    """scores + H/(8h) (sum_{k=1}^{width/2} cos((p_i - p_j) / 10000^(2k/width)) - width/2), h = 1..H

    What sinusoids of two places have in common, a factor of rank `width`: it falls off about as a logarithm does, and
    nothing is learned.
    """

    shift_invariant = True
    axes_reason = "its authors define it on distances along a text; alibi and t5 take grids"

    def __init__(self, dims: Dims, *, width: Annotated[int, Between(2)] = 128) -> None:
        super().__init__(dims)
        if width % 2:
            raise OptionError("width", f"width {width} is not even: a wave has a sine and a cosine")
        self.width = width

    def modify(self, call: AttentionCall) -> AttentionCall:
        here = call.keys.pos[:, -1:]  # angles from the end are small where they matter
        waves = 10000 ** (
            -torch.arange(2, self.width + 2, 2, device=here.device, dtype=here.dtype) / self.width
        )
        if call.is_consecutive:
            offsets = torch.arange(len(call.keys), device=here.device, dtype=here.dtype)
            waned = (offsets[:, None] * waves).cos().sum(-1) - self.width / 2  # [M]
            return call.add_bias(
                Lookup((self._slopes(here)[:, None] * waned)[None, :, None], index_offsets(call))
            )

        def features(tokens: Tokens) -> torch.Tensor:
            angles = (tokens.pos - here)[:, None] * waves  # [1|B, 1, N, width/2]
            return torch.cat([angles.cos(), angles.sin()], dim=-1)

        slopes = self._slopes(here)[:, None, None]
        one = here.new_ones(1, 1, 1, 1)
        with disable_autocast(here.device):
            left, right = (features(tokens) for tokens in (call.queries, call.keys))
            return call.add_low_rank_bias(slopes * left, right).add_low_rank_bias(
                -slopes[None] * self.width / 2, one
            )

    def panels(self, call: AttentionCall) -> Panels:
        told = "What multiplies a head's bias of distance: large ones look near, small ones far."
        return [head_panel("Slopes", "factor of the bias", self._slopes(call.keys.pos), told)]

    def _slopes(self, like: torch.Tensor) -> torch.Tensor:
        """[H]"""
        heads = torch.arange(1, self.dims.heads + 1, device=like.device, dtype=like.dtype)
        return self.dims.heads / (8 * heads)
