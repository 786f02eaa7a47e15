"""Stick-breaking attention: each key takes its share of what nearer ones left (Tan et al. 2024, arXiv:2410.17980)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Span, upcast
from zoo.attention.backends.reference import weights
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.registry import register

LEAST = -80.0  # below it float32 is about to underflow, where exp takes ten times as long


@register
class StickBreaking(Encoding):
    """weights exp(z_ij - sum_{l=j}^{i-1} softplus(z_il)) for j < i, z = scores; output + (1 - sum_j w_ij) remainder

    `inclusive` lets a token see itself: j <= i, and the sum ends at i. The published model norms the heads' outputs
    (block option output_norm). Shares go by the order of tokens, whether they have a place or not.
    """

    shared, shift_invariant, causal_only, handles_special_tokens = False, True, True, True

    def __init__(self, dims: Dims, *, inclusive: bool = False) -> None:
        super().__init__(dims)
        self.last = 1 if inclusive else 0
        self.remainder = nn.Parameter(torch.zeros(dims.heads, dims.head_dim))  # [H, K]

    def modify(self, call: AttentionCall) -> AttentionCall:
        def weigh(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            seen = visible & call.evaluate(
                lambda b, h, i, j: j < call.key_index(i) + self.last, span
            )
            z = scores.masked_fill(~seen, 0)
            passed = F.softplus(z) * seen
            left = passed.flip(-1).cumsum(-1).flip(-1) - passed  # by the keys nearer than j
            logs = -F.softplus(-z) - left
            return logs.clamp(min=LEAST).exp() * seen

        spared = upcast(self.remainder)[:, None]  # [H, 1, K]

        def readout(weights: Tensor, span: Span) -> Tensor:
            return remainder(weights) * spared

        return call.replace(normalize=weigh, extra_output=readout)

    def panels(self, call: AttentionCall) -> Panels:
        left = remainder(weights(call))[..., 0].transpose(1, 2)  # [B, N, H]
        told = "What no key took of a query's attention: near 1 a head does nothing, and its learned remainder speaks."
        yield from spread_panel("Left over", "share of the stick", left, call.queries, told)


def remainder(weights: Tensor) -> Tensor:
    """What is left of the stick, [B, H, N, 1]."""
    return 1 - weights.sum(-1, keepdim=True)
