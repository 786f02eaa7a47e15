"""Offsets of pairs, axis by axis: an interpreter that evaluates pairs one by one wants numbers, not vectors."""

from __future__ import annotations

from torch import Tensor

from zoo.attention import Block, Span, Terms
from zoo.attention.pairs import Index
from zoo.attention.tokens import pick


def steps(terms: Terms) -> Index:
    """The same for consecutive tokens, as whole numbers: 0 for keys ahead, which a causal mask hides."""
    return lambda b, h, i, j: (terms.slot(i) - j).clamp(min=0)


def by_step(terms: Terms, queries: Tensor, offsets: Tensor) -> Block:
    """Queries [1|B, 1|H, N, K] times a column of [1|H, K, M] for each offset from 0 on, where tokens are consecutive."""
    column = steps(terms)

    def block(span: Span) -> Tensor:
        products = span.of_rows(queries) @ offsets[..., : span.columns.stop]
        return products.gather(-1, terms.grid(column, span).expand(*products.shape[:3], -1))

    return Block(block)


def along(terms: Terms, axis: int) -> Index:
    """Position of query i minus position of key j on one axis."""
    queries, keys = (tokens.pos[..., axis].contiguous() for tokens in (terms.queries, terms.keys))  # [1|B, N]
    return lambda b, h, i, j: pick(queries, b, i) - pick(keys, b, j)
