"""One attention call, as data.

Shapes, here and everywhere: B batch, H heads, N queries, M keys, K key size, V value size, D model size, P axes,
R rank of a factor, E riders; `1|B` where a dimension broadcasts. Heads come second, tokens third.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor

from zoo.attention.tokens import Tokens, disable_autocast, pick, replace_fields, upcast

Sums = dict[int, Tensor]
"""What the parts of a tensor have added up, for each backward pass, so that one that failed leaves nothing to the next."""


def slice_tokens(tensor: Tensor, part: slice) -> Tensor:
    """Tokens of a tensor [.., .., M, X]."""
    return tensor[:, :, part]


class AccumulatingSlicer:
    """`plain`, for tensors that are there as long as this is."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor, Sums]] = {}

    def __call__(self, tensor: Tensor, part: slice) -> Tensor:
        if not tensor.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return slice_tokens(tensor, part)
        if id(tensor) not in self._known:
            sums: Sums = {}
            self._known[id(tensor)] = tensor, _Whole.apply(tensor, sums), sums  # type: ignore[no-untyped-call]
        _, whole, sums = self._known[id(tensor)]
        return _Part.apply(whole, part, sums)  # type: ignore[no-untyped-call]


class _Whole(torch.autograd.Function):
    """The tensor itself, which gets the gradient that its parts have added up."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: Sums) -> Tensor:
        ctx.sums = sums
        ctx.set_materialize_grads(False)  # its parts hand nothing on
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        found = ctx.sums.pop(_pass(), None)
        return (gradient if found is None else found), None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, part: slice, sums: Sums) -> Tensor:
        ctx.shape, ctx.part, ctx.sums = whole.shape, part, sums
        return slice_tokens(whole, part)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        if torch.is_grad_enabled():  # it will be differentiated again
            zeros = gradient.new_zeros(ctx.shape)
            return zeros.slice_scatter(gradient, 2, ctx.part.start, ctx.part.stop), None, None
        if _pass() not in ctx.sums:
            ctx.sums[_pass()] = gradient.new_zeros(ctx.shape)
        slice_tokens(ctx.sums[_pass()], ctx.part).add_(gradient)
        return None, None, None


def _pass() -> int:
    return torch._C._current_graph_task_id()


Index = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, i, j) -> one number per index. Index tensors broadcast; i and j are slots of queries and keys, not positions."""


@dataclass(frozen=True)
class Span:
    """The pairs of the queries `rows` with the keys `columns`, n and m of them."""

    queries: slice
    keys: slice
    batch: int
    heads: int
    device: torch.device
    slicer: Callable[[Tensor, slice], Tensor] = slice_tokens

    def slice_queries(self, queries: Tensor) -> Tensor:
        """Of a tensor [1|B, 1|H, 1|N, ..] over queries, what the rows have."""
        return queries if queries.shape[2] == 1 else self.slicer(queries, self.queries)

    def slice_keys(self, keys: Tensor) -> Tensor:
        """Of a tensor [1|B, 1|H, 1|M, ..] over keys, what the columns have."""
        return keys if keys.shape[2] == 1 else self.slicer(keys, self.keys)

    @property
    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """b [B, 1, 1, 1], h [1, H, 1, 1], i [1, 1, n, 1] and j [1, 1, 1, m]."""
        ends = (
            (0, self.batch),
            (0, self.heads),
            (self.queries.start, self.queries.stop),
            (self.keys.start, self.keys.stop),
        )
        b, h, i, j = (torch.arange(*each, device=self.device) for each in ends)
        return b[:, None, None, None], h[:, None, None], i[:, None], j

    @property
    def size(self) -> tuple[int, int]:
        """n and m."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start


@dataclass(frozen=True)
class Lookup:
    """An index function that reads a table along its last axis: table[b, h, i, column(b, h, i, j)]."""

    table: Tensor  # [1|B, 1|H, 1|N, R]
    column: Index  # to integers from 0 to R - 1

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return index_table(self.table, b, h, i, self.column(b, h, i, j))


@dataclass(frozen=True)
class BlockBias:
    """What is cheaper made for all pairs of a span at once: span -> [1|B, 1|H, n, m], and `index` if it can be made singly."""

    function: Callable[[Span], Tensor]
    index: Index | None = None


Bias = Index | Lookup | BlockBias

TransformQuery = Callable[[Tensor], Tensor]
"""[1|B, H, N, K] -> [1|B, H, N, K]"""

TransformScores = Callable[[Tensor, Tensor, Span], Tensor]
"""(scores [B, H, n, m], visible bool [1|B, 1, n, m], their span) -> tensor like scores: new scores, or weights.

The span has every key that its queries may see.
"""

ExtraOutput = Callable[[Tensor, Span], Tensor]
"""(weights [B, H, n, m], their span) -> [B, H, n, V], added to the output."""


def bias_from_table(table: Tensor) -> BlockBias:
    """What was made for all pairs already, [1|B, 1|H, N, M]."""
    return BlockBias(
        lambda span: table[:, :, span.queries, span.keys], Lookup(table, lambda b, h, i, j: j)
    )


def evaluate_bias(bias: Bias, span: Span) -> Tensor:
    """A bias for the pairs of a span, [1|B, 1|H, n, m]."""
    if isinstance(bias, BlockBias):
        return bias.function(span)
    if isinstance(bias, Lookup):
        columns, table = evaluate_bias(bias.column, span), span.slice_queries(bias.table)
        shape = torch.broadcast_shapes(columns.shape[:3], table.shape[:3])
        return table.expand(*shape, -1).gather(-1, columns.expand(*shape, -1))
    values = bias(*span.indices)
    return values.expand(torch.broadcast_shapes(values.shape, (1, 1, *span.size)))


def multiply_bias(bias: Bias, by: Index) -> BlockBias:
    """A bias times another function of pairs."""
    single = bias.index if isinstance(bias, BlockBias) else bias
    return BlockBias(
        lambda span: evaluate_bias(bias, span) * evaluate_bias(by, span),
        None if single is None else lambda b, h, i, j: single(b, h, i, j) * by(b, h, i, j),
    )


def index_table(table: Tensor, b: Tensor, h: Tensor, n: Tensor, *columns: Tensor) -> Tensor:
    """table[b, h, n] or table[b, h, n, columns], where an axis of size 1 stands for all."""
    batch, heads, rows, _ = table.shape
    return table[
        (b if batch > 1 else 0 * b, h if heads > 1 else 0 * h, n if rows > 1 else 0 * n, *columns)
    ]


def repeat_kv_heads(heads: Tensor, count: int) -> Tensor:
    """Key heads [B, G, M, ..] as [B, H, M, ..] for `count` query heads: query head h reads key head h // (H / G)."""
    return (
        heads
        if heads.shape[1] == count
        else heads.repeat_interleave(count // heads.shape[1], dim=1)
    )


@dataclass(frozen=True)
class AttentionCall:
    """softmax(scale q k^T + biases + factors, over visible keys) v, and what else an encoding makes of it.

    The queries are the last N of the M tokens, so slot i of a query is slot i + M - N of a key. A factor
    (left [1|B, 1|H, 1|N, R], right [1|B, 1|H, 1|M, R]) is exactly the bias left right^T; one whose right side has a single
    row is constant along each row of scores, and an interpreter may drop it where the weights are a softmax.
    """

    q: Tensor  # [B, H, N, K]
    k: Tensor  # [B, H, M, K]
    v: Tensor  # [B, H, M, V]
    raw_query: Tensor  # [B, H, N, K] queries before any encoding turned them
    queries: Tokens
    keys: Tokens
    causal: bool
    scale: float
    biases: tuple[Bias, ...] = ()
    low_rank_biases: tuple[tuple[Tensor, Tensor], ...] = ()
    transform_scores: TransformScores | None = None
    normalize: TransformScores | None = None
    extra_output: ExtraOutput | None = None
    extra_values: Tensor | None = None  # [B, H, M, E]
    transform_query: TransformQuery = lambda x: x  # as queries at these places were turned
    window: int | None = (
        None  # how many slots a query looks back, and ahead without a causal mask, its own included
    )
    query_index: Tensor | None = (
        None  # int [N] among the keys, where the queries are not the last N
    )

    def replace(self, **changes: object) -> AttentionCall:
        return replace_fields(self, changes)

    def add_bias(self, bias: Bias) -> AttentionCall:
        """The same call with a bias added to its scores: a function of pairs one by one, or of blocks of them."""
        return self.replace(biases=(*self.biases, bias))

    def add_low_rank_bias(self, left: Tensor, right: Tensor) -> AttentionCall:
        """The same call with the bias left right^T added to its scores."""
        return self.replace(low_rank_biases=(*self.low_rank_biases, (left, right)))

    @property
    def is_ordered(self) -> bool:
        """Whether no visible key lies ahead of its query: the offset of a pair is its distance."""
        return (
            self.causal
            and self.queries.ordered
            and self.keys.ordered
            and self.keys.pos.shape[-1] == 1
        )

    @property
    def is_consecutive(self) -> bool:
        """Whether no visible key lies ahead of its query, and the offset of a pair is the difference of its slots."""
        return self.is_ordered and self.keys.consecutive

    @property
    def query_slice(self) -> slice | Tensor:
        """Which slots of the keys the queries stand at: the last N, unless others were chosen."""
        return (
            slice(self.k.shape[2] - self.q.shape[2], None)
            if self.query_index is None
            else self.query_index
        )

    @property
    def is_square(self) -> bool:
        """Whether every key is a query."""
        return self.query_index is None and self.k.shape[2] == self.q.shape[2]

    def key_index(self, i: Tensor) -> Tensor:
        """The slot among the keys of query i."""
        return (
            i + (self.k.shape[2] - self.q.shape[2])
            if self.query_index is None
            else self.query_index[i]
        )

    def select_queries(self, columns: Tensor) -> Tensor:
        """Of a tensor [1|B, H, M, ..] over keys, what the queries have: [1|B, H, N, ..]."""
        return columns[:, :, self.query_slice]

    def scatter_queries(self, rows: Tensor) -> Tensor:
        """Rows [B, H, N, X] of the queries as a run of tokens that ends with the last key: 0 where none was chosen."""
        if self.query_index is None:
            return rows
        count = self.k.shape[2]
        return rows.new_zeros(*rows.shape[:2], count, rows.shape[-1]).index_copy(
            2, self.query_index, rows
        )

    def gather_queries(self, run: Tensor) -> Tensor:
        """Of what was made of a `run`, the rows of the queries."""
        return run if self.query_index is None else run[:, :, self.query_index]

    def offset(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """pos of query i minus pos of key j, [.., P]."""
        return pick(self.queries.pos, b, i) - pick(self.keys.pos, b, j)

    @property
    def visible(self) -> Index | None:
        """Which pairs may attend: the same document, no padding, under a causal mask no later slot, and none outside the
        window, but for tokens without a place. None: all.
        """
        rules: list[Index] = []
        if self.causal and (self.q.shape[2] > 1 or self.query_index is not None):
            rules.append(lambda b, h, i, j: j <= self.key_index(i))
        if self.has_window:
            rules.append(lambda b, h, i, j: self._near(b, i, j))
        queries, keys = self.queries.document, self.keys.document
        if queries is not None and keys is not None:
            rules.append(
                lambda b, h, i, j: (
                    (pick(queries, b, i) == pick(keys, b, j)) & (pick(keys, b, j) >= 0)
                )
            )
        if len(rules) < 2:
            return rules[0] if rules else None
        return lambda b, h, i, j: reduce(and_, (rule(b, h, i, j) for rule in rules))

    @property
    def has_window(self) -> bool:
        """Whether the window leaves out any slot."""
        return self.window is not None and self.window < self.k.shape[2]

    def _near(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        near = (self.key_index(i) - j).abs() < (self.window or 0)
        for placed, n in ((self.queries.has_position, i), (self.keys.has_position, j)):
            near = near if placed is None else near | ~pick(placed, b, n)
        return near

    def distance(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """|offset| on the one axis of a text."""
        return self.offset(b, i, j)[..., 0].abs()

    @property
    def full_span(self) -> Span:
        """All pairs."""
        return self.span(slice(0, self.q.shape[2]), slice(0, self.k.shape[2]))

    def span(self, rows: slice, columns: slice) -> Span:
        """The pairs of some queries and some keys."""
        return Span(rows, columns, self.q.shape[0], self.q.shape[1], self.q.device)

    def bias_function(self) -> Index | None:
        """The sum of biases and factors as one index function."""
        biases = (self._single(one) if isinstance(one, BlockBias) else one for one in self.biases)
        parts = [*biases, *(_expanded(left, right) for left, right in self.low_rank_biases)]
        if not parts:
            return None
        return lambda b, h, i, j: sum(part(b, h, i, j) for part in parts)  # type: ignore[return-value]

    def _single(self, block: BlockBias) -> Index:
        return block.index or Lookup(block.function(self.full_span), lambda b, h, i, j: j)

    def evaluate(self, bias: Bias, span: Span | None = None) -> Tensor:
        """A function of pairs evaluated for those of a span, or for all: [1|B, 1|H, N, M]."""
        return evaluate_bias(bias, span or self.full_span)

    def sum_biases(self, span: Span | None = None) -> Tensor | None:
        """The sum of biases and factors for the pairs of a span, or for all, [1|B, 1|H, N, M]."""
        if not self.biases and not self.low_rank_biases:
            return None
        span = span or self.full_span
        with disable_autocast(self.q.device):
            parts = [evaluate_bias(bias, span) for bias in self.biases]
            parts += [
                upcast(span.slice_queries(left)) @ upcast(span.slice_keys(right)).mT
                for left, right in self.low_rank_biases
            ]
            return sum(parts[1:], parts[0])


def _expanded(left: Tensor, right: Tensor) -> Index:
    """A factor as an index function."""
    left, right = upcast(left), upcast(right)
    return lambda b, h, i, j: (index_table(left, b, h, i) * index_table(right, b, h, j)).sum(-1)
