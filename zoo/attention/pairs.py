"""Functions of pairs of a query and a key: one by one, or a block of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.attention.slices import plain

Index = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, i, j) -> one number per index. Index tensors broadcast; i and j are slots of queries and keys, not positions."""


@dataclass(frozen=True)
class Span:
    """The pairs of the queries `rows` with the keys `columns`, n and m of them."""

    rows: slice
    columns: slice
    batch: int
    heads: int
    device: torch.device
    cut: Callable[[Tensor, slice], Tensor] = plain

    def of_rows(self, queries: Tensor) -> Tensor:
        """Of a tensor [1|B, 1|H, 1|N, ..] over queries, what the rows have."""
        return queries if queries.shape[2] == 1 else self.cut(queries, self.rows)

    def of_columns(self, keys: Tensor) -> Tensor:
        """Of a tensor [1|B, 1|H, 1|M, ..] over keys, what the columns have."""
        return keys if keys.shape[2] == 1 else self.cut(keys, self.columns)

    @property
    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """b [B, 1, 1, 1], h [1, H, 1, 1], i [1, 1, n, 1] and j [1, 1, 1, m]."""
        ends = (
            (0, self.batch),
            (0, self.heads),
            (self.rows.start, self.rows.stop),
            (self.columns.start, self.columns.stop),
        )
        b, h, i, j = (torch.arange(*each, device=self.device) for each in ends)
        return b[:, None, None, None], h[:, None, None], i[:, None], j

    @property
    def size(self) -> tuple[int, int]:
        """n and m."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


@dataclass(frozen=True)
class Lookup:
    """An index function that reads a table along its last axis: table[b, h, i, column(b, h, i, j)]."""

    table: Tensor  # [1|B, 1|H, 1|N, R]
    column: Index  # to integers from 0 to R - 1

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return row(self.table, b, h, i, self.column(b, h, i, j))


@dataclass(frozen=True)
class Block:
    """What is cheaper made for all pairs of a span at once: span -> [1|B, 1|H, n, m], and `index` if it can be made singly."""

    function: Callable[[Span], Tensor]
    index: Index | None = None


Bias = Index | Lookup | Block

Turn = Callable[[Tensor], Tensor]
"""[1|B, H, N, K] -> [1|B, H, N, K]"""

Rescore = Callable[[Tensor, Tensor, Span], Tensor]
"""(scores [B, H, n, m], visible bool [1|B, 1, n, m], their span) -> tensor like scores: new scores, or weights.

The span has every key that its queries may see.
"""

Readout = Callable[[Tensor, Span], Tensor]
"""(weights [B, H, n, m], their span) -> [B, H, n, V], added to the output."""


def tabled(table: Tensor) -> Block:
    """What was made for all pairs already, [1|B, 1|H, N, M]."""
    return Block(lambda span: table[:, :, span.rows, span.columns], Lookup(table, lambda b, h, i, j: j))


def at(bias: Bias, span: Span) -> Tensor:
    """A bias for the pairs of a span, [1|B, 1|H, n, m]."""
    if isinstance(bias, Block):
        return bias.function(span)
    if isinstance(bias, Lookup):
        columns, table = at(bias.column, span), span.of_rows(bias.table)
        shape = torch.broadcast_shapes(columns.shape[:3], table.shape[:3])
        return table.expand(*shape, -1).gather(-1, columns.expand(*shape, -1))
    values = bias(*span.indices)
    return values.expand(torch.broadcast_shapes(values.shape, (1, 1, *span.size)))


def times(bias: Bias, by: Index) -> Block:
    """A bias times another function of pairs."""
    single = bias.index if isinstance(bias, Block) else bias
    return Block(
        lambda span: at(bias, span) * at(by, span),
        None if single is None else lambda b, h, i, j: single(b, h, i, j) * by(b, h, i, j),
    )


def row(table: Tensor, b: Tensor, h: Tensor, n: Tensor, *columns: Tensor) -> Tensor:
    """table[b, h, n] or table[b, h, n, columns], where an axis of size 1 stands for all."""
    batch, heads, rows, _ = table.shape
    return table[(b if batch > 1 else 0 * b, h if heads > 1 else 0 * h, n if rows > 1 else 0 * n, *columns)]
