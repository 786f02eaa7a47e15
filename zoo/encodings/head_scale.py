"""No positions, and a temperature for each head (HeadScale; Wang et al. 2024, arXiv:2404.12224)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.attention import AttentionCall, Dims, Encoding, upcast
from zoo.attention.call import multiply_bias
from zoo.encodings.common.panels import Panels, head_panel
from zoo.errors import OptionError
from zoo.registry import register


@register
class HeadScale(Encoding):
    """scores * scale_h

    The scores so far, the biases of the links before it among them; those of later links are added as they are. A
    temperature is not about places, so it holds for tokens without one too. `scale` is 1 at first.
    """

    shared, shift_invariant, causal_only, handles_special_tokens = False, True, True, True
    axes_reason = "its authors have causal models of text alone"

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.scale = nn.Parameter(torch.ones(dims.heads))  # [H]

    def modify(self, call: AttentionCall) -> AttentionCall:
        if call.transform_scores is not None:
            raise OptionError(
                "encoding",
                "head_scale cannot follow a link that rescores whole rows; list it first",
            )
        scale = upcast(self.scale)
        sizes = scale[:, None, None]  # [H, 1, 1]
        return call.replace(
            q=(call.q * sizes).to(call.q.dtype),
            biases=tuple(multiply_bias(bias, lambda b, h, i, j: scale[h]) for bias in call.biases),
            low_rank_biases=tuple(
                (upcast(left) * sizes, right) for left, right in call.low_rank_biases
            ),
        )

    def panels(self, call: AttentionCall) -> Panels:
        told = "What multiplies a head's scores: above 1 it looks at fewer tokens, below 1 at more."
        return [head_panel("Scales", "factor of scores", self.scale, told)]
