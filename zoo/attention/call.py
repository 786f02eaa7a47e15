"""A description of one call of attention, which encodings rewrite and backends compute.

Shapes, here and everywhere: B batch, H query heads, G key-value heads, N queries, M keys, K head
dim, V value dim, D model dim, P axes, R rank of a bias, E width of extra values; `1|B` means that
a dimension may be 1 and broadcasts. Heads come second, tokens third.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_

import torch
from torch import Tensor

from zoo.attention.tokens import Tokens, disable_autocast, pick, replace_fields, upcast

# Largest rank of a bias that a score_mod sums term by term. Compilers of score_mods have no loops:
# they write out every term.
MAX_UNROLLED = 8

Index = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, i, j) -> a number for each pair, with the indices of FlexAttention's score_mod. Index
tensors broadcast; i and j are sequence indices of queries and keys, not positions."""


def slice_tokens(tensor: Tensor, tokens: slice) -> Tensor:
    """Slice tokens of [.., .., M, X]."""
    return tensor[:, :, tokens]


@dataclass(frozen=True)
class Span:
    """A tile of the score matrix: the pairs of n queries with the first m keys.

    Bounds are integers, not slices, of which torch.compile would make a graph for each length.
    """

    first_query: int
    end_query: int
    end_key: int
    batch: int
    heads: int
    device: torch.device
    slicer: Callable[[Tensor, slice], Tensor] = slice_tokens

    @property
    def queries(self) -> slice:
        """The sequence indices of the queries."""
        return slice(self.first_query, self.end_query)

    @property
    def keys(self) -> slice:
        """The sequence indices of the keys."""
        return slice(0, self.end_key)

    def slice_queries(self, tensor: Tensor) -> Tensor:
        """Return the rows of the span's queries from [1|B, 1|H, 1|N, ..]."""
        return tensor if tensor.shape[2] == 1 else self.slicer(tensor, self.queries)

    def slice_keys(self, tensor: Tensor) -> Tensor:
        """Return the rows of the span's keys from [1|B, 1|H, 1|M, ..]."""
        return tensor if tensor.shape[2] == 1 else self.slicer(tensor, self.keys)

    @property
    def indices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The indices b [B, 1, 1, 1], h [1, H, 1, 1], i [1, 1, n, 1] and j [1, 1, 1, m]."""
        b = torch.arange(self.batch, device=self.device)
        h = torch.arange(self.heads, device=self.device)
        i = torch.arange(self.first_query, self.end_query, device=self.device)
        j = torch.arange(self.end_key, device=self.device)
        return b[:, None, None, None], h[:, None, None], i[:, None], j

    @property
    def size(self) -> tuple[int, int]:
        """The numbers n and m of queries and keys."""
        return self.end_query - self.first_query, self.end_key


@dataclass(frozen=True)
class Lookup:
    """A bias that reads a table along its last axis: table[b, h, i, column(b, h, i, j)]."""

    table: Tensor  # [1|B, 1|H, 1|N, R]
    column: Index  # integers from 0 to R - 1

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Evaluate the bias for single pairs."""
        return index_table(self.table, b, h, i, self.column(b, h, i, j))


@dataclass(frozen=True)
class BlockBias:
    """A bias that is cheaper to compute for all pairs of a span at once.

    Args:
        function: span -> [1|B, 1|H, n, m].
        index: The same values for single pairs, or None if they cannot be computed one by one.
    """

    function: Callable[[Span], Tensor]
    index: Index | None = None


Bias = Index | Lookup | BlockBias

TransformQuery = Callable[[Tensor], Tensor]
"""[1|B, H, N, K] -> [1|B, H, N, K]"""

TransformScores = Callable[[Tensor, Tensor, Span], Tensor]
"""(scores [B, H, n, m], visible bool [1|B, 1, n, m], their span) -> new scores, or weights.

The span contains all keys that its queries may attend to.
"""

ExtraOutput = Callable[[Tensor, Span], Tensor]
"""(weights [B, H, n, m], their span) -> [B, H, n, V], added to the output."""


def bias_from_table(table: Tensor) -> BlockBias:
    """Make a bias from the values of all pairs, [1|B, 1|H, N, M]."""
    return BlockBias(
        lambda span: table[:, :, span.queries, span.keys], Lookup(table, lambda b, h, i, j: j)
    )


def evaluate_bias(bias: Bias, span: Span) -> Tensor:
    """Evaluate a bias for the pairs of a span, [1|B, 1|H, n, m]."""
    if isinstance(bias, BlockBias):
        return bias.function(span)
    if isinstance(bias, Lookup):
        # gather needs equal shapes, except along the last axis: [1|B, 1|H, n, R] and [.., m].
        columns, table = evaluate_bias(bias.column, span), span.slice_queries(bias.table)
        shape = torch.broadcast_shapes(columns.shape[:3], table.shape[:3])
        return table.expand(*shape, -1).gather(-1, columns.expand(*shape, -1))
    values = bias(*span.indices)
    return values.expand(torch.broadcast_shapes(values.shape, (1, 1, *span.size)))


def multiply_bias(bias: Bias, factor: Index) -> BlockBias:
    """Multiply a bias by a function of pairs."""
    index = bias.index if isinstance(bias, BlockBias) else bias
    return BlockBias(
        lambda span: evaluate_bias(bias, span) * evaluate_bias(factor, span),
        None if index is None else lambda b, h, i, j: index(b, h, i, j) * factor(b, h, i, j),
    )


def restrict_bias(bias: Bias, pairs: Index) -> BlockBias:
    """Set a bias to 0 except at some pairs; elsewhere it may be infinite."""
    index = bias.index if isinstance(bias, BlockBias) else bias

    def compute_block(span: Span) -> Tensor:
        values = evaluate_bias(bias, span)
        return torch.where(evaluate_bias(pairs, span), values, values.new_zeros(()))

    def compute_pairs(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert index is not None
        values = index(b, h, i, j)
        return torch.where(pairs(b, h, i, j), values, torch.zeros_like(values))

    return BlockBias(compute_block, None if index is None else compute_pairs)


def index_table(table: Tensor, b: Tensor, h: Tensor, n: Tensor, *columns: Tensor) -> Tensor:
    """Index a table [1|B, 1|H, 1|N, R] as table[b, h, n] or table[b, h, n, columns]."""
    # 0 * b, not 0: the result must have the shape that all index tensors broadcast to.
    batch, heads, rows, _ = table.shape
    b, h, n = b if batch > 1 else 0 * b, h if heads > 1 else 0 * h, n if rows > 1 else 0 * n
    return table[(b, h, n, *columns)]


def repeat_kv_heads(heads: Tensor, count: int) -> Tensor:
    """Repeat key-value heads [B, G, M, ..] for H = `count` query heads: h reads h // (H / G)."""
    if heads.shape[1] == count:
        return heads
    return heads.repeat_interleave(count // heads.shape[1], dim=1)


@dataclass(frozen=True)
class AttentionCall:
    """normalize(cap(scale q k^T) + biases + low-rank biases) v, over visible keys.

    The queries are the last N of the M tokens, so query i is token i + M - N, unless `query_index`
    lists others.
    """

    q: Tensor
    """Transformed queries [B, H, N, K]."""

    k: Tensor
    """Transformed keys [B, H, M, K]."""

    v: Tensor
    """Values [B, H, M, V]."""

    raw_query: Tensor
    """Queries before `transform_query` [B, H, N, K]."""

    queries: Tokens
    """The tokens of the queries."""

    keys: Tokens
    """The tokens of the keys. Those from a cache have no states."""

    causal: bool
    """Use a causal mask: no query attends to a later token."""

    scale: float
    """Factor of the products of queries and keys."""

    softcap: float | None = None
    """Bound c of the scaled products s, which become c tanh(s / c). None: no bound."""

    biases: tuple[Bias, ...] = ()
    """Biases that are added to the scaled products, after their bound."""

    low_rank_biases: tuple[tuple[Tensor, Tensor], ...] = ()
    """Biases left right^T, as pairs (left [1|B, 1|H, 1|N, R], right [1|B, 1|H, 1|M, R]). A bias
    whose right side has a single row is constant along each row of scores; a backend may drop it if
    the weights are a softmax without sinks."""

    transform_scores: TransformScores | None = None
    """Changes scores after the biases."""

    normalize: TransformScores | None = None
    """Turns scores into weights, in place of the softmax."""

    sinks: Tensor | None = None
    """Scores [H] of one more key per head, which takes part in the softmax and has no value."""

    extra_output: ExtraOutput | None = None
    """Computes an addition to the output from the weights."""

    extra_values: Tensor | None = None
    """More values [B, H, M, E], averaged with the same weights for `after_attention`."""

    transform_output: TransformQuery | None = None
    """Transforms the output [B, H, N, V], after everything else: values that turned at the keys'
    positions turn back at the queries'. None: nothing."""

    transform_query: TransformQuery = lambda x: x
    """Transforms other vectors in the same way as the queries, at the queries' positions."""

    window: int | None = None
    """How many tokens back a query attends, including itself, and as many ahead without a causal
    mask. Tokens without a position attend to all tokens and all attend to them. None: no window."""

    query_index: Tensor | None = None
    """Sequence indices of the queries among the keys, int [N]. None: they are the last N."""

    mask: Tensor | None = None
    """Additional attention mask, bool [1|B, 1, N, M], True where a query may attend to a key."""

    dropout: float = 0.0
    """Probability that a weight is set to 0 in training; the others are scaled up."""

    def replace(self, **changes: object) -> AttentionCall:
        """Return the call with some fields replaced."""
        return replace_fields(self, changes)

    def add_bias(self, bias: Bias) -> AttentionCall:
        """Return the call with a bias added to its scores.

        Args:
            bias: A function (b, h, i, j) -> number of pairs, a `Lookup` or a `BlockBias`.
        """
        return self.replace(biases=(*self.biases, bias))

    def add_low_rank_bias(self, left: Tensor, right: Tensor) -> AttentionCall:
        """Return the call with the bias left right^T added to its scores.

        Args:
            left: [1|B, 1|H, 1|N, R].
            right: [1|B, 1|H, 1|M, R].
        """
        return self.replace(low_rank_biases=(*self.low_rank_biases, (left, right)))

    @property
    def is_ordered(self) -> bool:
        """True if no visible key is ahead of its query: the offset of a pair is its distance."""
        is_text = self.keys.pos.shape[-1] == 1
        return self.causal and self.queries.ordered and self.keys.ordered and is_text

    @property
    def is_consecutive(self) -> bool:
        """True if ordered and the offset of a pair is the difference of its sequence indices."""
        return self.is_ordered and self.keys.consecutive

    @property
    def is_square(self) -> bool:
        """True if every key is also a query."""
        return self.query_index is None and self.k.shape[2] == self.q.shape[2]

    @property
    def query_slice(self) -> slice | Tensor:
        """The sequence indices of the queries among the keys, as an index of a tensor."""
        if self.query_index is not None:
            return self.query_index
        return slice(self.k.shape[2] - self.q.shape[2], None)

    def key_index(self, i: Tensor) -> Tensor:
        """Return the sequence index of query i among the keys."""
        if self.query_index is not None:
            return self.query_index[i]
        return i + (self.k.shape[2] - self.q.shape[2])

    def select_queries(self, keys: Tensor) -> Tensor:
        """Select the rows of the queries from a tensor over keys, [1|B, H, M, ..]."""
        return keys[:, :, self.query_slice]

    def scatter_queries(self, queries: Tensor) -> Tensor:
        """Place rows [B, H, N, X] of queries at their indices in a sequence over keys.

        With `query_index` the result is [B, H, M, X], 0 between the queries. Without it the rows
        are consecutive already and are returned unchanged.
        """
        if self.query_index is None:
            return queries
        shape = (*queries.shape[:2], self.k.shape[2], queries.shape[-1])
        return queries.new_zeros(shape).index_copy(2, self.query_index, queries)

    def gather_queries(self, sequence: Tensor) -> Tensor:
        """Return the rows of the queries from a sequence that `scatter_queries` laid out."""
        return sequence if self.query_index is None else sequence[:, :, self.query_index]

    def offset(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Return the coordinates of query i minus those of key j, [.., P]."""
        return pick(self.queries.pos, b, i) - pick(self.keys.pos, b, j)

    def distance(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Return the absolute offset of query i and key j on the one axis of a sequence."""
        # Numbers are picked, not rows [.., 1]: compiled on a CPU, the latter gave wrong values.
        return (pick(self.queries.pos[..., 0], b, i) - pick(self.keys.pos[..., 0], b, j)).abs()

    @property
    def has_window(self) -> bool:
        """True if the window hides some pairs."""
        # A graph for all lengths must not depend on whether one is longer than the window.
        if self.window is not None and torch.compiler.is_exporting():
            return True
        return self.window is not None and self.window < self.k.shape[2]

    @property
    def visible(self) -> Index | None:
        """The attention mask, as a function of pairs; None if all are visible.

        It hides padding, other documents, later tokens under a causal mask, what `mask` hides, and
        pairs outside the window, unless one of the two has no position.
        """
        # With a single query, which is the last token, a causal mask hides nothing.
        rules: list[Index] = []
        if self.causal and (self.q.shape[2] > 1 or self.query_index is not None):
            rules.append(lambda b, h, i, j: j <= self.key_index(i))
        if self.has_window:
            rules.append(lambda b, h, i, j: self._is_in_window(b, i, j))
        if self.queries.document is not None and self.keys.document is not None:
            rules.append(lambda b, h, i, j: self._is_same_document(b, i, j))
        if (mask := self.mask) is not None:
            # The index h is left out, so that the mask is evaluated once for all heads.
            rules.append(lambda b, h, i, j: index_table(mask, b, 0 * b, i, j))
        if len(rules) < 2:
            return rules[0] if rules else None
        return lambda b, h, i, j: reduce(and_, (rule(b, h, i, j) for rule in rules))

    def _is_same_document(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert self.queries.document is not None
        assert self.keys.document is not None
        key = pick(self.keys.document, b, j)
        # Padding has the number -1 and belongs to no document, not even to other padding.
        return (pick(self.queries.document, b, i) == key) & (key >= 0)

    def _is_in_window(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        result = (self.key_index(i) - j).abs() < (self.window or 0)
        for has_position, n in ((self.queries.has_position, i), (self.keys.has_position, j)):
            if has_position is not None:
                result = result | ~pick(has_position, b, n)
        return result

    def concat_values(self) -> Tensor:
        """Concatenate values and extra values, [B, H, M, V + E]."""
        if self.extra_values is None:
            return self.v
        return torch.cat([self.v, self.extra_values.to(self.v.dtype)], dim=-1)

    @property
    def full_span(self) -> Span:
        """The span of all N x M pairs."""
        return self.span(0, self.q.shape[2], self.k.shape[2])

    def span(self, first_query: int, end_query: int, end_key: int) -> Span:
        """Return the span of some consecutive queries and all keys before `end_key`."""
        batch, heads, _, _ = self.q.shape
        return Span(first_query, end_query, end_key, batch, heads, self.q.device)

    def evaluate(self, bias: Bias, span: Span | None = None) -> Tensor:
        """Evaluate a function of pairs for a span, or for all pairs: [1|B, 1|H, n, m]."""
        return evaluate_bias(bias, span or self.full_span)

    def sum_biases(self, span: Span | None = None) -> Tensor | None:
        """Sum all biases of a span, or of all pairs: [1|B, 1|H, n, m]; None without biases."""
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

    def bias_function(self) -> Index | None:
        """Return the sum of all biases as a function of pairs; None without biases."""
        parts = [self._as_index(bias) for bias in self.biases]
        parts += [_expand_low_rank(left, right) for left, right in self.low_rank_biases]
        if not parts:
            return None
        return lambda b, h, i, j: sum(part(b, h, i, j) for part in parts)  # type: ignore[return-value]

    def _as_index(self, bias: Bias) -> Index:
        # A bias without an index function is computed for all pairs and then looked up.
        if not isinstance(bias, BlockBias):
            return bias
        return bias.index or Lookup(bias.function(self.full_span), lambda b, h, i, j: j)


def _expand_low_rank(left: Tensor, right: Tensor) -> Index:
    left, right = upcast(left), upcast(right)
    if left.shape[-1] > MAX_UNROLLED:
        table = left @ right.mT
        if table.shape[-1] == 1:
            return lambda b, h, i, j: index_table(table, b, h, i, 0 * j)
        return Lookup(table, lambda b, h, i, j: j)
    return lambda b, h, i, j: (index_table(left, b, h, i) * index_table(right, b, h, j)).sum(-1)
