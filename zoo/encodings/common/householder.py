"""Products of Householder transformations between the tokens of a sequence (the UT transform, as in arXiv:2505.16381).

Token t stands for H_t = I - beta_t w_t w_t^T, w_t of norm 1 and beta_t from 0 to 2, so that nothing grows along a path. The
product over a block of tokens is I - U^T W, U = T W, T = (I + stril(diag(beta) W W^T))^-1 diag(beta); for the pairs of a
block, T is cut to the tokens between. Blocks are joined two by two, so that M tokens cost O(M^2 K), in products of matrices
of which there are O(log M). Leading dimensions are batches.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SIZE = 64  # tokens of a block at most


def compute_path_bias(
    q: Tensor, k: Tensor, w: Tensor, beta: Tensor, block_size: int = SIZE
) -> Tensor:
    """k_j^T (H_{j+1} .. H_i - I) q_i, [.., N, M], 0 for later keys. The queries [.., N, K] are the last N of M tokens.

    w [.., n, K] and beta [.., n] are those of the last n tokens, N <= n <= M; earlier keys are settled up to there.
    """
    past = k.shape[-2] - q.shape[-2]
    earlier, own = k[..., :past, :], k[..., past:, :]
    before, now = w.shape[-2] - q.shape[-2], slice(w.shape[-2] - q.shape[-2], None)
    near, turned = _within(q, own, w[..., now, :], beta[..., now], block_size)
    far = (
        turned @ update_keys(earlier, w[..., :before, :], beta[..., :before], block_size).mT
        - q @ earlier.mT
    )
    return torch.cat([far, near], dim=-1)


def update_keys(k: Tensor, w: Tensor, beta: Tensor, block_size: int = SIZE) -> Tensor:
    """Keys [.., M, K] times H of each token after them, as far as the last n of M tell: w [.., n, K] and beta [.., n]."""
    n, past = w.shape[-2], k.shape[-2] - w.shape[-2]
    if not n:
        return k
    before, (own, w, beta) = (
        k[..., :past, :],
        _blocks(block_size, k[..., past:, :], w, beta[..., None]),
    )
    u, _, own = _solved(own, w, beta)
    for left, right in zip(
        u.unbind(-3), w.unbind(-3), strict=True
    ):  # [.., C, K]: for few tokens cheaper than [K, K]
        before = before - before @ left.mT @ right
    whole = _whole(u, w)
    while own.shape[-3] > 1:
        own, whole = _to_the_end(own, whole), _product(whole)
    return torch.cat([before, own.squeeze(-3)[..., :n, :]], dim=-2)


def _within(q: Tensor, k: Tensor, w: Tensor, beta: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """`added` for the pairs [.., N, N] of a run of tokens; and H_1 .. H_i q_i [.., N, K], queries turned to its start."""
    n = q.shape[-2]
    q, k, w, beta = _blocks(size, q, k, w, beta[..., None])
    u, pairs, ends = _solved(k, w, beta)
    passed = (q @ w.mT).tril()
    near, starts, whole = -passed @ pairs, q - passed @ u, _whole(u, w)
    while q.shape[-3] > 1:
        (first, second), (end, _), (before, _) = _halves(starts), _halves(ends), _halves(whole)
        far = second @ end.mT - _halves(q)[1] @ _halves(k)[0].mT
        near_first, near_second = _halves(near)
        rows = F.pad(near_first, (0, near_first.shape[-1])), torch.cat([far, near_second], dim=-1)
        near, starts = torch.cat(rows, dim=-2), torch.cat([first, second @ before.mT], dim=-2)
        ends, whole = _to_the_end(ends, whole), _product(whole)
        q, k = (torch.cat(_halves(one), dim=-2) for one in (q, k))
    return near.squeeze(-3)[..., :n, :n], starts.squeeze(-3)[..., :n, :]


def _blocks(size: int, *runs: Tensor) -> list[Tensor]:
    """Runs [.., n, X] as blocks [.., 2^L, C, X] of at most `size` tokens; zeros at the end, which transform nothing."""
    n = runs[0].shape[-2]
    count = 1 << ((n - 1) // size).bit_length()
    length = -(-n // count)
    return [
        F.pad(run, (0, 0, 0, count * length - n)).unflatten(-2, (count, length)) for run in runs
    ]


def _solved(k: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of blocks: U = T W [.., C, K], T stril(W K^T) [.., C, C], and keys turned to the end of their block [.., C, K]."""
    system = beta * (w @ w.mT).tril(-1)
    known = beta * torch.cat([w, (w @ k.mT).tril(-1)], dim=-1)
    found = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    u, pairs = found.split([w.shape[-1], w.shape[-2]], dim=-1)
    return u, pairs, k - pairs.mT @ w


def _whole(u: Tensor, w: Tensor) -> Tensor:
    """The product of each block, [.., K, K]."""
    return torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - u.mT @ w


def _halves(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second of each pair of blocks [.., 2^L, X, Y]."""
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    return first, second


def _product(whole: Tensor) -> Tensor:
    first, second = _halves(whole)
    return first @ second


def _to_the_end(keys: Tensor, whole: Tensor) -> Tensor:
    """Keys turned to the end of their block, turned to the end of their pair of blocks."""
    (first, second), (_, after) = _halves(keys), _halves(whole)
    return torch.cat([first @ after, second], dim=-2)
