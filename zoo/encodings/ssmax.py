"""Scores times the logarithm of the number of keys (SSMax; Nakanishi 2025, arXiv:2501.19399)."""

from __future__ import annotations

import torch
from torch import nn

from zoo.attention import AttentionCall, Dims, Encoding, upcast
from zoo.encodings.common.panels import Panels, head_panel
from zoo.encodings.common.visible_keys import count_visible_keys
from zoo.registry import register


@register
class SSMax(Encoding):
    """scores q_i.k_j / sqrt(K) * scale_h log n_i, n_i = number of keys that query i sees

    Under a causal mask n_i is i + 1. Keys that are hidden, padding or of another document do not
    count; those without a position do. Biases are not multiplied, wherever their encodings stand in
    the list. `scale` starts at 0.43.
    """

    part = "rows"
    reads_positions = False
    shared, shift_invariant, handles_special_tokens = False, True, True
    axes = (1, 2, 3)

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.scale = nn.Parameter(torch.full((dims.heads,), 0.43))  # [H]

    def modify(self, call: AttentionCall) -> AttentionCall:
        scale = upcast(self.scale)[:, None, None]
        # A query that sees no key has no weights either.
        counts = count_visible_keys(call).clamp(min=1)[..., None]  # [1|B, 1, N, 1]
        factors = scale * counts.to(torch.promote_types(call.q.dtype, scale.dtype)).log()
        return call.replace(q=(call.q * factors).to(call.q.dtype))

    def panels(self, call: AttentionCall) -> Panels:
        caption = "Factor of a head's scores, times the logarithm of the number of visible keys."
        return [head_panel("Scales", "factor of log n", self.scale, caption)]
