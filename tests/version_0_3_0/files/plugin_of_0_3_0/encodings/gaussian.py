"""A Gaussian of the distance, its width learned per head (after Guo et al.

2019, doi:10.1609/aaai.v33i01.33016489).
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import nn

from zoo.attention import AttentionCall, Dims, Encoding, upcast
from zoo.encodings.common.panels import Panels, head_panel
from zoo.options import Between
from zoo.registry import register


@register
class Gaussian(Encoding):
    """scores - |p_i - p_j|^2 / (2 w_h^2), w = exp(log_width).

    At first from `width` to twice `width` over the heads

    Widths per head, on any number of axes, are ours.
    """

    part = "bias"
    shared = False
    shift_invariant = True
    axes = (1, 2, 3)

    def __init__(self, dims: Dims, *, width: Annotated[float, Between(0.1)] = 2.0) -> None:
        super().__init__(dims)
        self.log_width = nn.Parameter(math.log(width) + torch.linspace(0, math.log(2), dims.heads))

    def modify(self, call: AttentionCall) -> AttentionCall:
        rate = (-2 * upcast(self.log_width)).exp() / 2  # [H]
        return call.add_bias(lambda b, h, i, j: -rate[h] * call.offset(b, i, j).square().sum(-1))

    def panels(self, call: AttentionCall) -> Panels:
        caption = (
            "How far a head looks: at this distance a score is lower by 1/2, at twice it by 2."
        )
        return [head_panel("Widths", "width, in tokens", upcast(self.log_width).exp(), caption)]
