"""Householder products from key to query (PaTH; Yang et al. 2025, arXiv:2505.16381).

Token t has H_t = I - beta_t w_t w_t^T, with |w_t| = 1 and beta_t from 0 to 2, so that norms do not
grow. The product over a block of tokens is I - U^T W, where U = T W and
T = (I + stril(diag(beta) W W^T))^-1 diag(beta) (UT transform). Blocks are joined two by two: M
tokens cost O(M^2 K) operations in O(log M) batched matrix products. Biases are computed for a span
of queries at a time; what all spans share has O(M K log M) numbers. In the shapes below, leading
dimensions are batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import (
    AttentionCall,
    BlockBias,
    Dims,
    Encoding,
    Span,
    Tokens,
    bias_from_table,
    disable_autocast,
    has_variable_sizes,
    repeat_kv_heads,
    upcast,
)
from zoo.attention.tokens import order_padding_first, take_tokens
from zoo.encodings.common.layers import apply_linear, convolve, init_normal
from zoo.encodings.common.panels import Panels, spread_panel
from zoo.options import Between
from zoo.registry import register

BLOCK_SIZE = 64  # largest number of tokens in a block


@register
class PaTH(Encoding):
    """scores k_j^T H_{j+1} .. H_i q_i / sqrt(K), H_t = I - beta_t w_t w_t^T

    beta_t = 2 sigmoid(strength(x_t)), and w_t = filter_0 direction(x_t) + filter_1
    direction(x_{t-1}) + .. normalized to length 1, per key head. `direction` has rank `rank`;
    `convolution` is the number of tokens in the sum for w_t, channel by channel. (The published
    code applies a SiLU after the convolution, which the paper does not, and has a `direction` of
    full rank if query heads share key heads.) Products follow the order of tokens, with or without
    positions. Together with `fox` it is PaTH-FoX, as in the paper: log forget gates are added to
    scaled scores; the published kernels also scale the gates by 1 / sqrt(K).

    Args:
        rank: Rank of `direction`.
        convolution: Number of tokens in the sum for w_t.
    """

    part = "gates"
    reads_positions = False
    shared, shift_invariant, causal_only, handles_special_tokens = False, True, True, True
    reads_states = True

    def __init__(
        self,
        dims: Dims,
        *,
        rank: Annotated[int, Between(1)] = 32,
        convolution: Annotated[int, Between(1)] = 3,
    ) -> None:
        super().__init__(dims)
        width, self.lookback = dims.num_kv_heads * dims.head_dim, convolution - 1
        down, up = nn.Linear(dims.dim, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.direction = nn.Sequential(init_normal(down), init_normal(up))
        self.strength = init_normal(nn.Linear(dims.dim, dims.num_kv_heads))
        # PyTorch's initialization of convolutions. The first row belongs to the token itself.
        weights = torch.empty(convolution, width).uniform_(-1, 1) * convolution**-0.5
        self.filter = nn.Parameter(weights) if convolution > 1 else None

    def prepare(self, tokens: Tokens) -> Tokens:
        down, up = self.direction
        direction = apply_linear(up, apply_linear(down, tokens.x))  # [B, N, G K]
        strength = 2 * apply_linear(self.strength, tokens.x).sigmoid()  # [B, N, G]
        # Only directions of recent tokens are kept, and so are their documents.
        document = tokens.document
        if document is None:
            document = direction.new_zeros(1, direction.shape[1], dtype=torch.long)
        strength = tokens.clear_padding(strength)
        return tokens.with_per_token(
            path_direction=direction, path_strength=strength, path_document=document
        )

    def update_cached_keys(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        direction, strength = tokens.per_token["path_direction"], tokens.per_token["path_strength"]
        # The next call needs directions for its convolution, but no strengths of these tokens:
        # an empty strength marks their reflections as part of the keys.
        document = tokens.per_token["path_document"]
        if tokens.document is not None:
            order = order_padding_first(document)
            direction, document = take_tokens(direction, order), document.gather(1, order)
        start = max(direction.shape[1] - self.lookback, 0)
        with disable_autocast(k.device):
            k = update_keys(upcast(k), *self._reflections(tokens, k.shape[0]))
        return k, tokens.with_per_token(
            path_direction=direction[:, start:],
            path_strength=strength[:, :0],
            path_document=document[:, start:],
        )

    def modify(self, call: AttentionCall) -> AttentionCall:
        with disable_autocast(call.q.device):
            w, beta = self._reflections(call.keys, call.q.shape[0])
            w, beta = repeat_kv_heads(w, self.dims.heads), repeat_kv_heads(beta, self.dims.heads)
            q, k = upcast(call.q) * call.scale, upcast(call.k)
            if call.query_index is None:
                return call.add_bias(BlockBias(PathBias.build(q, k, w, beta)))
            bias = compute_path_bias(call.scatter_queries(q), k, w, beta)  # [B, H, M, M]
        return call.add_bias(bias_from_table(call.gather_queries(bias)))

    def panels(self, call: AttentionCall) -> Panels:
        strength = call.keys.per_token["path_strength"]
        caption = "Effect of a token on earlier keys: 0 none, 1 erases a direction, 2 reflects it."
        title, unit = "Strength", "beta, 0 to 2"
        return spread_panel(title, unit, strength, call.keys, caption, kind="key head")

    def _reflections(self, tokens: Tokens, batch: int) -> tuple[Tensor, Tensor]:
        """Return w [B, G, n, K] and beta [B, G, n] of the last n tokens, which keys lack so far."""
        direction, strength = tokens.per_token["path_direction"], tokens.per_token["path_strength"]
        if self.filter is not None:
            document = None if tokens.document is None else tokens.per_token["path_document"]
            direction = convolve(direction, self.filter, document)
        recent = direction[:, direction.shape[1] - strength.shape[1] :]
        w = F.normalize(recent.unflatten(-1, (self.dims.num_kv_heads, -1)).transpose(1, 2), dim=-1)
        return w.expand(batch, -1, -1, -1), strength.mT.expand(batch, -1, -1)


def compute_path_bias(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, block_size: int = BLOCK_SIZE
) -> Tensor:
    """Return k_j^T (H_{j+1} .. H_i - I) q_i, [.., N, M]; 0 for later keys.

    Args:
        q: Queries [.., N, K], the last N of M tokens.
        k: Keys [.., M, K]; those before the last n already contain the products up to there.
        w: Directions [.., n, K] of the last n tokens, N <= n <= M.
        beta: Strengths [.., n].
        block_size: Largest number of tokens in a block.
    """
    # Keys of the queries' own tokens: pairs within one run. Earlier keys: update them up to the
    # first query, and multiply by queries that are rotated back to the start of the run.
    past = k.shape[-2] - q.shape[-2]
    earlier, current = k[..., :past, :], k[..., past:, :]
    start = w.shape[-2] - q.shape[-2]
    near, rotated = _compute_run(q, current, w[..., start:, :], beta[..., start:], block_size)
    updated = update_keys(earlier, w[..., :start, :], beta[..., :start], block_size)
    far = rotated @ updated.mT - q @ earlier.mT
    return torch.cat([far, near], dim=-1)


@dataclass(frozen=True)
class PathBias:
    """The bias of `compute_path_bias` for a span of queries, without a table of all pairs.

    Keys before the span are read at the end of runs of 1, 2, 4, .. blocks, one run for each binary
    digit of the number of blocks before the span. Queries move back over one run after another.
    """

    q: Tensor
    """Queries [B, H, N, K]."""

    k: Tensor
    """Keys of the queries' tokens [B, H, N, K]."""

    w: Tensor
    """Directions of these tokens [B, H, N, K]."""

    beta: Tensor
    """Strengths of these tokens [B, H, N]."""

    past: Tensor
    """Keys before the first query [B, H, M - N, K]."""

    updated: Tensor
    """The same keys, multiplied by the products up to the first query."""

    runs: tuple[tuple[Tensor, Tensor], ...]
    """For runs of 2^l blocks: keys at the end of their run [B, H, .., K], and the product of each
    run [B, H, .., K, K]."""

    block_size: int

    @classmethod
    def build(
        cls, q: Tensor, k: Tensor, w: Tensor, beta: Tensor, block_size: int = BLOCK_SIZE
    ) -> PathBias:
        """Compute what all spans share, from the arguments of `compute_path_bias`."""
        past, start = k.shape[2] - q.shape[2], w.shape[2] - q.shape[2]
        earlier, current = k[:, :, :past], k[:, :, past:]
        updated = update_keys(earlier, w[:, :, :start], beta[:, :, :start], block_size)
        w, beta = w[:, :, start:], beta[:, :, start:]
        runs = () if has_variable_sizes() else tuple(_build_runs(current, w, beta, block_size))
        return cls(q, current, w, beta, earlier, updated, runs, block_size)

    def __call__(self, span: Span) -> Tensor:
        """Return the bias of a span [B, H, n, m]."""
        # The span is extended back to the start of a block.
        blocks = span.first_query // self.block_size
        first_row = blocks * self.block_size
        rows = slice(first_row, span.end_query)
        q, k, w, beta = (
            span.slicer(tensor, rows) for tensor in (self.q, self.k, self.w, self.beta)
        )
        near, rotated = _compute_run(q, k, w, beta, self.block_size)
        near, rotated, q = (
            tensor[:, :, span.first_query - first_row :] for tensor in (near, rotated, q)
        )

        parts = [near]
        while blocks:
            # The lowest binary digit of the number of blocks is the run just before.
            level = (blocks & -blocks).bit_length() - 1
            blocks -= 1 << level
            start = blocks * self.block_size
            keys, products = self.runs[level]
            run = slice(start, start + (self.block_size << level))
            product = span.slicer(products, slice(blocks >> level, (blocks >> level) + 1))
            unmoved = q @ span.slicer(self.k, run).mT
            parts.append(rotated @ span.slicer(keys, run).mT - unmoved)
            rotated = rotated @ product.squeeze(2).mT
        if self.past.shape[2]:
            parts.append(rotated @ self.updated.mT - q @ self.past.mT)
        bias = torch.cat(parts[::-1], dim=-1)
        return F.pad(bias, (0, span.end_key - bias.shape[-1]))


def update_keys(k: Tensor, w: Tensor, beta: Tensor, block_size: int = BLOCK_SIZE) -> Tensor:
    """Multiply each key by the H of all tokens after it.

    Args:
        k: Keys [.., M, K].
        w: Directions [.., n, K] of the last n tokens.
        beta: Strengths [.., n].
        block_size: Largest number of tokens in a block.
    """
    n, past = w.shape[-2], k.shape[-2] - w.shape[-2]
    if not n:
        return k
    earlier = k[..., :past, :]
    current, w, beta = _split_blocks(block_size, k[..., past:, :], w, beta[..., None])
    u, _, current = _solve_blocks(current, w, beta)
    # For few tokens, factors [.., C, K] are cheaper than products [K, K].
    for left, right in zip(u.unbind(-3), w.unbind(-3), strict=True):
        earlier = earlier - earlier @ left.mT @ right
    # Own keys are at the end of their blocks; join pairs of blocks until one is left.
    products = _block_products(u, w)
    while current.shape[-3] > 1:
        current, products = _join_keys(current, products), _join_products(products)
    return torch.cat([earlier, current.squeeze(-3)[..., :n, :]], dim=-2)


def _build_runs(
    k: Tensor, w: Tensor, beta: Tensor, block_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield keys at the end of their run [.., n, K], and products, for runs of 1, 2, 4, .. blocks.

    Only complete runs of blocks before the last token are needed.
    """
    count = (k.shape[-2] - 1) // block_size
    if not count:
        return
    end = count * block_size
    k, w, beta = (
        tensor[..., :end, :].unflatten(-2, (count, block_size))
        for tensor in (k, w, beta[..., None])
    )
    u, _, keys = _solve_blocks(k, w, beta)
    products = _block_products(u, w)
    yield keys.flatten(-3, -2), products
    while count > 1:
        count //= 2
        keys, products = keys[..., : 2 * count, :, :], products[..., : 2 * count, :, :]
        keys, products = _join_keys(keys, products), _join_products(products)
        yield keys.flatten(-3, -2), products


def _compute_run(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """Return the bias [.., N, N] within a run of tokens, and H_1 .. H_i q_i [.., N, K]."""
    # Within each block, by the UT transform: near [.., C, C], and queries at its start.
    n = q.shape[-2]
    q, k, w, beta = _split_blocks(block_size, q, k, w, beta[..., None])
    u, pairs, ends = _solve_blocks(k, w, beta)
    passed = (q @ w.mT).tril()
    near, starts, products = -passed @ pairs, q - passed @ u, _block_products(u, w)

    # Join two blocks: queries of the second meet keys at the end of the first, and the queries
    # at the start of the second move on to the start of the first.
    while q.shape[-3] > 1:
        (first, second), (end, _), (before, _) = map(_halves, (starts, ends, products))
        far = second @ end.mT - _halves(q)[1] @ _halves(k)[0].mT
        near_first, near_second = _halves(near)
        top = F.pad(near_first, (0, near_first.shape[-1]))
        bottom = torch.cat([far, near_second], dim=-1)
        near = torch.cat([top, bottom], dim=-2)
        starts = torch.cat([first, second @ before.mT], dim=-2)
        ends, products = _join_keys(ends, products), _join_products(products)
        q, k = (torch.cat(_halves(blocks), dim=-2) for blocks in (q, k))
    return near.squeeze(-3)[..., :n, :n], starts.squeeze(-3)[..., :n, :]


def _split_blocks(block_size: int, *runs: Tensor) -> list[Tensor]:
    """Split runs [.., n, X] into blocks [.., 2^L, C, X]; zeros at the end have no effect."""
    n = runs[0].shape[-2]
    # torch.export cannot capture a variable number of blocks: all tokens form one.
    if has_variable_sizes():
        return [run.unsqueeze(-3) for run in runs]
    count = 1 << ((n - 1) // block_size).bit_length()
    length = -(-n // count)
    padding = (0, 0, 0, count * length - n)
    return [F.pad(run, padding).unflatten(-2, (count, length)) for run in runs]


def _solve_blocks(k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [.., C, K], T stril(W K^T) [.., C, C], and keys at the end of their block."""
    # One triangular system solves for both: T applied to W and to stril(W K^T).
    system = beta * (w @ w.mT).tril(-1)
    right = beta * torch.cat([w, (w @ k.mT).tril(-1)], dim=-1)
    solution = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    u, pairs = solution.split([w.shape[-1], w.shape[-2]], dim=-1)
    return u, pairs, k - pairs.mT @ w


def _block_products(u: Tensor, w: Tensor) -> Tensor:
    """Return the product of each block [.., K, K]."""
    return torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - u.mT @ w


def _halves(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the second of each pair of blocks [.., 2^L, X, Y]."""
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    return first, second


def _join_products(products: Tensor) -> Tensor:
    first, second = _halves(products)
    return first @ second


def _join_keys(keys: Tensor, products: Tensor) -> Tensor:
    """Move keys from the end of their block to the end of their pair of blocks."""
    (first, second), (_, after) = _halves(keys), _halves(products)
    return torch.cat([first @ after, second], dim=-2)
