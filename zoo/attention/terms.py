"""One attention call, as data.

Shapes, here and everywhere: B batch, H heads, N queries, M keys, K key size, V value size, D model size, P axes,
R rank of a factor, E riders; `1|B` where a dimension broadcasts. Heads come second, tokens third.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_

from torch import Tensor

from zoo.attention.pairs import Bias, Block, Index, Lookup, Readout, Rescore, Span, Turn, at, row
from zoo.attention.tokens import Tokens, changed, pick, precise, unrounded


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
    biases: tuple[Bias, ...] = ()
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

    def add_bias(self, bias: Bias) -> Terms:
        """The same call with a bias added to its scores: a function of pairs one by one, or of blocks of them."""
        return self.replace(biases=(*self.biases, bias))

    def add_factor(self, left: Tensor, right: Tensor) -> Terms:
        """The same call with the bias left right^T added to its scores."""
        return self.replace(factors=(*self.factors, (left, right)))

    @property
    def ordered(self) -> bool:
        """Whether no visible key lies ahead of its query: the offset of a pair is its distance."""
        return self.causal and self.queries.ordered and self.keys.ordered and self.keys.pos.shape[-1] == 1

    @property
    def consecutive(self) -> bool:
        """Whether no visible key lies ahead of its query, and the offset of a pair is the difference of its slots."""
        return self.ordered and self.keys.consecutive

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

    @property
    def whole(self) -> Span:
        """All pairs."""
        return self.span(slice(0, self.q.shape[2]), slice(0, self.k.shape[2]))

    def span(self, rows: slice, columns: slice) -> Span:
        """The pairs of some queries and some keys."""
        return Span(rows, columns, self.q.shape[0], self.q.shape[1], self.q.device)

    def bias(self) -> Index | None:
        """The sum of biases and factors as one index function."""
        biases = (self._single(one) if isinstance(one, Block) else one for one in self.biases)
        parts = [*biases, *(_expanded(left, right) for left, right in self.factors)]
        if not parts:
            return None
        return lambda b, h, i, j: sum(part(b, h, i, j) for part in parts)  # type: ignore[return-value]

    def _single(self, block: Block) -> Index:
        return block.index or Lookup(block.function(self.whole), lambda b, h, i, j: j)

    def grid(self, bias: Bias, span: Span | None = None) -> Tensor:
        """A function of pairs evaluated for those of a span, or for all: [1|B, 1|H, N, M]."""
        return at(bias, span or self.whole)

    def added(self, span: Span | None = None) -> Tensor | None:
        """The sum of biases and factors for the pairs of a span, or for all, [1|B, 1|H, N, M]."""
        if not self.biases and not self.factors:
            return None
        span = span or self.whole
        with unrounded(self.q.device):
            parts = [at(bias, span) for bias in self.biases]
            parts += [precise(span.of_rows(left)) @ precise(span.of_columns(right)).mT for left, right in self.factors]
            return sum(parts[1:], parts[0])


def _expanded(left: Tensor, right: Tensor) -> Index:
    """A factor as an index function."""
    left, right = precise(left), precise(right)
    return lambda b, h, i, j: (row(left, b, h, i) * row(right, b, h, j)).sum(-1)
