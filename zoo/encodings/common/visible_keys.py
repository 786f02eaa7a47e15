"""Numbers of keys that a query sees, and distances to them, with few pairs in memory at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from zoo.attention import AttentionCall, Span
from zoo.attention.call import Index
from zoo.attention.tokens import pick

# Largest number of pairs that are looked at together, unless a graph is captured.
CHUNK_PAIRS = 2**20


def reduce_rows(call: AttentionCall, reduce: Callable[[Span], Tensor]) -> Tensor:
    """Reduce each row of pairs to a number, for some queries at a time.

    Args:
        call: The call.
        reduce: span of n queries and all keys -> [1|B, 1|H, n].

    Returns:
        The numbers [1|B, 1|H, N].
    """
    queries, keys = call.q.shape[2], call.k.shape[2]
    # A graph has no loop over a variable number of chunks.
    if torch.compiler.is_compiling():
        return reduce(call.full_span)
    rows = max(CHUNK_PAIRS // max(len(call.q) * keys, 1), 1)
    starts = range(0, max(queries, 1), rows)
    parts = [reduce(call.span(start, min(start + rows, queries), keys)) for start in starts]
    return torch.cat(parts, dim=2)


def count_visible_keys(call: AttentionCall) -> Tensor:
    """Count the keys that each query sees, int [1|B, 1, N]."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    places = [call.queries.has_position, call.keys.has_position]
    has_exceptions = call.has_window and any(place is not None for place in places)
    has_documents = call.queries.document is not None and call.keys.document is not None
    if call.mask is None and not has_documents and not has_exceptions:
        # The visible keys are a range around the query.
        i = call.key_index(torch.arange(queries, device=call.q.device))
        high = i if call.causal else torch.full_like(i, keys - 1)
        low = torch.zeros_like(i)
        if call.has_window and call.window is not None:
            low, high = (i - call.window + 1).clamp(min=0), high.minimum(i + call.window - 1)
        return (high - low + 1)[None, None]

    visible = call.visible
    assert visible is not None
    return reduce_rows(call, lambda span: call.evaluate(visible, span).sum(-1))


def find_farthest(call: AttentionCall, distance: Index) -> Tensor:
    """Find the distance from each query to the farthest key that it sees.

    Keys without a position are left out. A query that sees no other key has the distance 0.

    Args:
        call: The call.
        distance: The distance of two tokens as a function of pairs.

    Returns:
        Distances [1|B, 1, N].
    """
    visible, placed = call.visible, call.keys.has_position

    def reduce(span: Span) -> Tensor:
        values = call.evaluate(distance, span)
        if visible is not None:
            values = values * call.evaluate(visible, span)
        if placed is not None:
            values = values * call.evaluate(lambda b, h, i, j: pick(placed, b, j), span)
        return values.amax(-1)

    return reduce_rows(call, reduce)
