"""Stick-breaking attention in place of the softmax (Tan et al. 2024, arXiv:2410.17980)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Span, upcast
from zoo.attention.backends.reference import weights
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.encodings.common.suffix_sums import sum_suffixes
from zoo.registry import register

# Below it float32 is about to underflow to denormal numbers, for which exp takes ten times as long.
MIN_LOG_WEIGHT = -80.0


@register
class StickBreaking(Encoding):
    """weights exp(z_ij - sum_{l=j}^{i-1} softplus(z_il)) for j < i, z = scores

    Each key takes a fraction of what nearer keys left. (1 - sum_j w_ij) remainder is added to the
    output. `inclusive` lets a token attend to itself: j <= i, and the sum ends at i. The published
    model normalizes the outputs of heads (block option output_norm). Fractions follow the order of
    tokens, with or without positions.

    Args:
        inclusive: Whether a token attends to itself.
    """

    part = "rows"
    reads_positions = False
    shared, shift_invariant, causal_only, handles_special_tokens = False, True, True, True

    def __init__(self, dims: Dims, *, inclusive: bool = False) -> None:
        super().__init__(dims)
        self.last = 1 if inclusive else 0
        self.remainder = nn.Parameter(torch.zeros(dims.heads, dims.head_dim))  # [H, K]

    def modify(self, call: AttentionCall) -> AttentionCall:
        def break_stick(scores: Tensor, visible: Tensor, span: Span) -> Tensor:
            past = call.evaluate(lambda b, h, i, j: j < call.key_index(i) + self.last, span)
            keys = visible & past
            z = scores.masked_fill(~keys, 0)
            passed = F.softplus(z) * keys
            # Log of what nearer keys left: the sum of softplus over the keys between j and i.
            nearer = sum_suffixes(passed) - passed
            logs = -F.softplus(-z) - nearer
            return logs.clamp(min=MIN_LOG_WEIGHT).exp() * keys

        vectors = upcast(self.remainder)[:, None]  # [H, 1, K]

        def add_remainder(weights: Tensor, span: Span) -> Tensor:
            return unused_weight(weights) * vectors

        return call.replace(normalize=break_stick, extra_output=add_remainder)

    def panels(self, call: AttentionCall) -> Panels:
        unused = unused_weight(weights(call))[..., 0].transpose(1, 2)  # [B, N, H]
        caption = "Attention that no key took: near 1 a head outputs its learned remainder."
        yield from spread_panel("Remainder", "share of the stick", unused, call.queries, caption)


def unused_weight(weights: Tensor) -> Tensor:
    """Return the part of the stick that the keys leave, [B, H, N, 1]."""
    return 1 - weights.sum(-1, keepdim=True)
