"""One attention call, as data.

Shapes, here and everywhere: B batch, H heads, N queries, M keys, K key size, V value size, D model size, P axes,
R rank of a factor, E riders; `1|B` where a dimension broadcasts. Heads come second, tokens third.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention.tokens import Tokens, changed, pick, precise, unrounded

Index = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, i, j) -> one number per index. Index tensors broadcast; i and j are slots of queries and keys, not positions."""


@dataclass(frozen=True)
class Lookup:
    """An index function that reads a table along its last axis: table[b, h, i, column(b, h, i, j)]."""

    table: Tensor  # [1|B, 1|H, 1|N, R]
    column: Index  # to integers from 0 to R - 1

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return _row(self.table, b, h, i, self.column(b, h, i, j))

    def confined(self, where: Index) -> Lookup:
        """The same where `where` holds, else 0."""
        beyond = self.table.shape[-1]
        return Lookup(
            F.pad(self.table, (0, 1)),
            lambda b, h, i, j: self.column(b, h, i, j).where(where(b, h, i, j), beyond),
        )


Turn = Callable[[Tensor], Tensor]
"""[1|B, H, N, K] -> [1|B, H, N, K]"""

Rescore = Callable[[Tensor, Tensor], Tensor]
"""(scores [B, H, N, M], visible bool [1|B, 1, N, M]) -> tensor like scores: new scores, or weights."""

Readout = Callable[[Tensor], Tensor]
"""weights [B, H, N, M] -> [B, H, N, V], added to the output."""


def repeated(heads: Tensor, count: int) -> Tensor:
    """Key heads [B, G, M, ..] as [B, H, M, ..] for `count` query heads: query head h reads key head h // (H / G)."""
    return heads if heads.shape[1] == count else heads.repeat_interleave(count // heads.shape[1], dim=1)


@dataclass(frozen=True)
class Terms:
    """softmax(scale q k^T + biases + factors, over visible keys) v, and what else an encoding makes of it.

    The queries are the last N of the M tokens, so slot i of a query is slot i + M - N of a key. A factor
    (left [1|B, 1|H, 1|N, R], right [1|B, 1|H, 1|M, R]) is exactly the bias left right^T; one whose right side has a single
    row is constant along each row of scores, and an interpreter may drop it where the weights are a softmax.
    """

    q: Tensor  # [B, H, N, K]
    k: Tensor  # [B, H, M, K]
    v: Tensor  # [B, H, M, V]
    content: Tensor  # [B, H, N, K] queries before any encoding turned them
    queries: Tokens
    keys: Tokens
    causal: bool
    scale: float
    biases: tuple[Index, ...] = ()
    factors: tuple[tuple[Tensor, Tensor], ...] = ()
    rescore: Rescore | None = None
    weigh: Rescore | None = None
    readout: Readout | None = None
    riders: Tensor | None = None  # [B, H, M, E]
    turn: Turn = lambda x: x  # as queries at these places were turned
    window: int | None = None  # how many slots a query looks back, and ahead without a causal mask, its own included
    slots: Tensor | None = None  # int [N] among the keys, where the queries are not the last N

    def replace(self, **changes: object) -> Terms:
        return changed(self, changes)

    def add_bias(self, index: Index) -> Terms:
        """The same call with a bias added to its scores, pair by pair."""
        return replace(self, biases=(*self.biases, index))

    def add_factor(self, left: Tensor, right: Tensor) -> Terms:
        """The same call with the bias left right^T added to its scores."""
        return replace(self, factors=(*self.factors, (left, right)))

    @property
    def ordered(self) -> bool:
        """Whether no visible key lies ahead of its query: the offset of a pair is its distance."""
        return self.causal and self.queries.ordered and self.keys.ordered and self.keys.pos.shape[-1] == 1

    @property
    def last(self) -> slice | Tensor:
        """Which slots of the keys the queries stand at: the last N, unless others were chosen."""
        return slice(self.k.shape[2] - self.q.shape[2], None) if self.slots is None else self.slots

    @property
    def square(self) -> bool:
        """Whether every key is a query."""
        return self.slots is None and self.k.shape[2] == self.q.shape[2]

    def slot(self, i: Tensor) -> Tensor:
        """The slot among the keys of query i."""
        return i + (self.k.shape[2] - self.q.shape[2]) if self.slots is None else self.slots[i]

    def rows(self, columns: Tensor) -> Tensor:
        """Of a tensor [1|B, H, M, ..] over keys, what the queries have: [1|B, H, N, ..]."""
        return columns[:, :, self.last]

    def run(self, rows: Tensor) -> Tensor:
        """Rows [B, H, N, X] of the queries as a run of tokens that ends with the last key: 0 where none was chosen."""
        if self.slots is None:
            return rows
        count = self.k.shape[2]
        return rows.new_zeros(*rows.shape[:2], count, rows.shape[-1]).index_copy(2, self.slots, rows)

    def chosen(self, run: Tensor) -> Tensor:
        """Of what was made of a `run`, the rows of the queries."""
        return run if self.slots is None else run[:, :, self.slots]

    def offset(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """pos of query i minus pos of key j, [.., P]."""
        return pick(self.queries.pos, b, i) - pick(self.keys.pos, b, j)

    @property
    def visible(self) -> Index | None:
        """Which pairs may attend: the same document, no padding, under a causal mask no later slot, and none outside the
        window, but for tokens without a place. None: all.
        """
        rules: list[Index] = []
        if self.causal and (self.q.shape[2] > 1 or self.slots is not None):
            rules.append(lambda b, h, i, j: j <= self.slot(i))
        if self.windowed:
            rules.append(lambda b, h, i, j: self._near(b, i, j))
        queries, keys = self.queries.document, self.keys.document
        if queries is not None and keys is not None:
            rules.append(lambda b, h, i, j: (pick(queries, b, i) == pick(keys, b, j)) & (pick(keys, b, j) >= 0))
        if len(rules) < 2:
            return rules[0] if rules else None
        return lambda b, h, i, j: reduce(and_, (rule(b, h, i, j) for rule in rules))

    @property
    def windowed(self) -> bool:
        """Whether the window leaves out any slot."""
        return self.window is not None and self.window < self.k.shape[2]

    def _near(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        near = (self.slot(i) - j).abs() < (self.window or 0)
        for placed, n in ((self.queries.placed, i), (self.keys.placed, j)):
            near = near if placed is None else near | ~pick(placed, b, n)
        return near

    def distance(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """|offset| on the one axis of a text."""
        return self.offset(b, i, j)[..., 0].abs()

    def bias(self) -> Index | None:
        """The sum of biases and factors as one index function."""
        parts = [*self.biases, *(_expanded(left, right) for left, right in self.factors)]
        if not parts:
            return None
        return lambda b, h, i, j: sum(part(b, h, i, j) for part in parts)  # type: ignore[return-value]

    def grid(self, index: Index) -> Tensor:
        """An index function evaluated for all pairs: [1|B, 1|H, N, M]."""
        if isinstance(index, Lookup):
            return self._gathered(index)
        sizes = (*self.q.shape[:3], self.k.shape[2])
        shapes = ((-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, -1))
        values = index(*(torch.arange(n, device=self.q.device).view(s) for n, s in zip(sizes, shapes, strict=True)))
        return values.expand(torch.broadcast_shapes(values.shape, (1, 1, sizes[2], sizes[3])))

    def _gathered(self, lookup: Lookup) -> Tensor:
        columns = self.grid(lookup.column)  # [1|B, 1|H, N, M]
        shape = torch.broadcast_shapes(columns.shape[:3], lookup.table.shape[:3])
        return lookup.table.expand(*shape, -1).gather(-1, columns.expand(*shape, -1))

    def added(self) -> Tensor | None:
        """The sum of biases and factors for all pairs, [1|B, 1|H, N, M]."""
        with unrounded(self.q.device):
            parts = [self.grid(index) for index in self.biases]
            parts += [precise(left) @ precise(right).mT for left, right in self.factors]
            return sum(parts[1:], parts[0]) if parts else None


def _row(table: Tensor, b: Tensor, h: Tensor, n: Tensor, *columns: Tensor) -> Tensor:
    """table[b, h, n] or table[b, h, n, columns], where an axis of size 1 stands for all."""
    batch, heads, rows, _ = table.shape
    return table[(b if batch > 1 else 0 * b, h if heads > 1 else 0 * h, n if rows > 1 else 0 * n, *columns)]


def _expanded(left: Tensor, right: Tensor) -> Index:
    """A factor as an index function."""
    left, right = precise(left), precise(right)
    return lambda b, h, i, j: (_row(left, b, h, i) * _row(right, b, h, j)).sum(-1)
