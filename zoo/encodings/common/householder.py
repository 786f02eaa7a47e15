"""Products of Householder transformations along a sequence (UT transform, arXiv:2505.16381).

Token t has H_t = I - beta_t w_t w_t^T, with |w_t| = 1 and beta_t from 0 to 2, so that norms do not
grow. The product over a block of tokens is I - U^T W, where U = T W and
T = (I + stril(diag(beta) W W^T))^-1 diag(beta). Blocks are joined two by two: M tokens cost
O(M^2 K) in O(log M) batched matrix products. Leading dimensions are batches.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK_SIZE = 64  # largest number of tokens of a block


def compute_path_bias(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, block_size: int = BLOCK_SIZE
) -> Tensor:
    """Return k_j^T (H_{j+1} .. H_i - I) q_i, [.., N, M], and 0 for later keys.

    Args:
        q: Queries [.., N, K], the last N of M tokens.
        k: Keys [.., M, K]; those before the last n have been updated up to there.
        w: Directions [.., n, K] of the last n tokens, N <= n <= M.
        beta: Strengths [.., n].
        block_size: Largest number of tokens of a block.
    """
    past = k.shape[-2] - q.shape[-2]
    earlier, own = k[..., :past, :], k[..., past:, :]
    start = w.shape[-2] - q.shape[-2]
    near, rotated = _compute_run(q, own, w[..., start:, :], beta[..., start:], block_size)
    updated = update_keys(earlier, w[..., :start, :], beta[..., :start], block_size)
    far = rotated @ updated.mT - q @ earlier.mT
    return torch.cat([far, near], dim=-1)


def update_keys(k: Tensor, w: Tensor, beta: Tensor, block_size: int = BLOCK_SIZE) -> Tensor:
    """Multiply each key by H of the tokens after it.

    Args:
        k: Keys [.., M, K].
        w: Directions [.., n, K] of the last n tokens.
        beta: Strengths [.., n].
        block_size: Largest number of tokens of a block.
    """
    n, past = w.shape[-2], k.shape[-2] - w.shape[-2]
    if not n:
        return k
    earlier = k[..., :past, :]
    own, w, beta = _split_blocks(block_size, k[..., past:, :], w, beta[..., None])
    u, _, own = _solve_blocks(own, w, beta)
    # factors [.., C, K] are cheaper than products [K, K] for few tokens
    for left, right in zip(u.unbind(-3), w.unbind(-3), strict=True):
        earlier = earlier - earlier @ left.mT @ right
    products = _block_products(u, w)
    while own.shape[-3] > 1:
        own, products = _join_keys(own, products), _join_products(products)
    return torch.cat([earlier, own.squeeze(-3)[..., :n, :]], dim=-2)


def _compute_run(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """Return the bias [.., N, N] within a run of tokens, and H_1 .. H_i q_i [.., N, K]."""
    n = q.shape[-2]
    q, k, w, beta = _split_blocks(block_size, q, k, w, beta[..., None])
    u, pairs, ends = _solve_blocks(k, w, beta)
    passed = (q @ w.mT).tril()
    near, starts, products = -passed @ pairs, q - passed @ u, _block_products(u, w)
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
    """Split runs [.., n, X] into blocks [.., 2^L, C, X]; zeros at the end transform nothing."""
    n = runs[0].shape[-2]
    if torch.compiler.is_exporting():  # the number of blocks of a variable length is not known
        return [run.unsqueeze(-3) for run in runs]
    count = 1 << ((n - 1) // block_size).bit_length()
    length = -(-n // count)
    padding = (0, 0, 0, count * length - n)
    return [F.pad(run, padding).unflatten(-2, (count, length)) for run in runs]


def _solve_blocks(k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [.., C, K], T stril(W K^T) [.., C, C], and keys at the end of their block."""
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
