"""Products of sinusoids as a bias of distance (Sandwich; Chi et al. 2022, arXiv:2212.10356)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from zoo.attention import AttentionCall, Dims, Encoding, Lookup, Tokens, disable_autocast
from zoo.encodings.common.frequencies import compute_angles, float64_like
from zoo.encodings.common.panels import Panels, head_panel
from zoo.encodings.common.position_tables import index_offsets
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class Sandwich(Encoding):
    """scores + H/(8h) (sum_{k=1}^{width/2} cos((p_i - p_j) / 10000^(2k/width)) - width/2), h = 1..H

    The bias is the inner product of the sinusoids of two positions and has rank `width`. It decays
    roughly like a logarithm, and nothing is learned.

    Args:
        width: Channels of the sinusoids, the rank of the bias.
    """

    part = "bias"
    shift_invariant = True
    axes_reason = "its authors define it for distances in sequences; alibi and t5 accept grids"

    def __init__(self, dims: Dims, *, width: Annotated[int, Between(2)] = 128) -> None:
        super().__init__(dims)
        if width % 2:
            message = f"width {width} is not even: a wave has a sine and a cosine"
            raise OptionError("width", message)
        self.width = width

    def modify(self, call: AttentionCall) -> AttentionCall:
        # Positions relative to the last token stay small, and so exact, for recent tokens.
        latest = call.keys.pos[:, -1:]
        like = float64_like(latest)
        even = torch.arange(2, self.width + 2, 2, device=like.device, dtype=like.dtype)
        waves = (10000 ** (-even / self.width))[None, None]  # [1, 1, width/2]
        slopes = self._slopes(latest)

        # Consecutive tokens read a table of M offsets, cheaper than a bias of rank `width`.
        if call.is_consecutive:
            offsets = torch.arange(call.k.shape[2], device=latest.device, dtype=latest.dtype)
            angles = compute_angles(offsets[None, :, None], waves)[0, 0]  # [M, width/2]
            decay = angles.cos().sum(-1) - self.width / 2  # [M]
            table = (slopes[:, None] * decay)[None, :, None]
            return call.add_bias(Lookup(table, index_offsets(call)))

        # Otherwise cos(a - b) = cos a cos b + sin a sin b is a low-rank bias.
        def encode(tokens: Tokens) -> Tensor:
            angles = compute_angles(tokens.pos - latest, waves)  # [1|B, 1, N, width/2]
            return torch.cat([angles.cos(), angles.sin()], dim=-1)

        slopes = slopes[:, None, None]
        with disable_autocast(latest.device):
            left, right = encode(call.queries), encode(call.keys)
            constant = -slopes[None] * self.width / 2
            biased = call.add_low_rank_bias(slopes * left, right)
            return biased.add_low_rank_bias(constant, latest.new_ones(1, 1, 1, 1))

    def panels(self, call: AttentionCall) -> Panels:
        slopes = self._slopes(call.keys.pos)
        caption = "Factor of a head's bias: heads with a large factor attend to near keys."
        return [head_panel("Slopes", "factor of the bias", slopes, caption)]

    def _slopes(self, like: Tensor) -> Tensor:
        """Return H/(8h), [H]."""
        heads = torch.arange(1, self.dims.heads + 1, device=like.device, dtype=like.dtype)
        return self.dims.heads / (8 * heads)
