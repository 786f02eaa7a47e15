"""Scores times the logarithm of the number of keys (SSMax; Nakanishi 2025, arXiv:2501.19399)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding, upcast
from zoo.encodings.common.panels import Panels, head_panel
from zoo.registry import register

# Largest number of pairs whose visibility is computed at once, unless a graph is captured.
CHUNK_PAIRS = 2**20


@register
class SSMax(Encoding):
    """scores q_i.k_j / sqrt(K) * scale_h log n_i, n_i = number of keys that query i sees

    Under a causal mask n_i is i + 1. Keys that are hidden, padding or of another document do not
    count; those without a position do. Biases are not multiplied, wherever their encodings stand in
    the list. `scale` starts at 0.43.
    """

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


def count_visible_keys(call: AttentionCall) -> Tensor:
    """Count the keys that each query sees, int [1|B, 1, N]."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    places = [call.queries.has_position, call.keys.has_position]
    has_exceptions = call.has_window and any(place is not None for place in places)
    has_documents = call.queries.document is not None and call.keys.document is not None
    if call.mask is None and not has_documents and not has_exceptions:
        # The visible keys are a range around the query.
        i = call.key_index(torch.arange(queries, device=call.q.device))
        last = i if call.causal else torch.full_like(i, keys - 1)
        first = torch.zeros_like(i)
        if call.has_window and call.window is not None:
            first, last = (i - call.window + 1).clamp(min=0), last.minimum(i + call.window - 1)
        return (last - first + 1)[None, None]

    visible = call.visible
    assert visible is not None
    # A graph has no loop over a variable number of chunks.
    if torch.compiler.is_compiling():
        return call.evaluate(visible).sum(-1)
    rows = max(CHUNK_PAIRS // (len(call.q) * keys), 1)
    counts = []
    for begin in range(0, queries, rows):
        span = call.span(begin, min(begin + rows, queries), keys)
        counts.append(call.evaluate(visible, span).sum(-1))
    return torch.cat(counts, dim=2)
