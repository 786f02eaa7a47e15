"""Offsets of pairs, axis by axis: an interpreter that evaluates pairs one by one wants numbers, not vectors."""

from __future__ import annotations

from zoo.attention import Terms
from zoo.attention.pairs import Index
from zoo.attention.tokens import pick


def steps(terms: Terms) -> Index:
    """The same for consecutive tokens, as whole numbers: 0 for keys ahead, which a causal mask hides."""
    return lambda b, h, i, j: (terms.slot(i) - j).clamp(min=0)


def along(terms: Terms, axis: int) -> Index:
    """Position of query i minus position of key j on one axis."""
    queries, keys = (tokens.pos[..., axis].contiguous() for tokens in (terms.queries, terms.keys))  # [1|B, N]
    return lambda b, h, i, j: pick(queries, b, i) - pick(keys, b, j)
