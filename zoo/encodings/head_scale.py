"""No positions, but a temperature per head (HeadScale; Wang et al. 2024, arXiv:2404.12224)."""

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

    It scales the scores so far, including the biases of encodings before it; biases of later ones
    are not scaled. Temperatures also apply to tokens without a position. `scale` starts at 1.
    """

    part = "rows"
    reads_positions = False
    shared, shift_invariant, causal_only, handles_special_tokens = False, True, True, True
    axes_reason = "its authors study only causal models of text"

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.scale = nn.Parameter(torch.ones(dims.heads))  # [H]

    def modify(self, call: AttentionCall) -> AttentionCall:
        if call.transform_scores is not None:
            message = "head_scale cannot follow an encoding that transforms rows of scores"
            raise OptionError("encoding", f"{message}; list it first")
        # Scores are q k^T plus biases: scale q, the left factors, and all other biases.
        scale = upcast(self.scale)
        factors = scale[:, None, None]  # [H, 1, 1]
        low_rank = [(upcast(left) * factors, right) for left, right in call.low_rank_biases]
        return call.replace(
            q=(call.q * factors).to(call.q.dtype),
            biases=tuple(multiply_bias(bias, lambda b, h, i, j: scale[h]) for bias in call.biases),
            low_rank_biases=tuple(low_rank),
        )

    def panels(self, call: AttentionCall) -> Panels:
        caption = "Factor of a head's scores: above 1 attention is sharper, below 1 more even."
        return [head_panel("Scales", "factor of scores", self.scale, caption)]
