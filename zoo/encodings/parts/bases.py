"""Skew-symmetric matrices, and constant orthogonal bases for planes that turn."""

from __future__ import annotations

import math

import torch
from torch import Tensor

WIDTH = 16  # channels of a product: of 8 the overhead is larger, of 64 most are products with zeros


def antisymmetric(triangles: Tensor, size: int) -> Tensor:
    """U - U^T [..., K, K] for strict upper triangles U [..., K (K - 1) / 2], row-major."""
    rows, columns = torch.triu_indices(size, size, offset=1, device=triangles.device)
    upper = triangles.new_zeros(*triangles.shape[:-1], size, size)
    upper[..., rows, columns] = triangles
    return upper - upper.mT


def cayley(skew: Tensor) -> Tensor:
    """The transpose of Q = (I - S) (I + S)^-1 for skew-symmetric matrices S [G, K, K]: what a row is multiplied by."""
    one = torch.eye(skew.shape[-1], device=skew.device, dtype=skew.dtype)
    return torch.linalg.solve(one - skew, one + skew)


def fourier(size: int, like: Tensor) -> Tensor:
    """The discrete Fourier transform as an orthogonal basis [K, K]: columns cos, -sin of k = 1 .. K/2 - 1, then k = 0, K/2."""
    places = torch.arange(size, device=like.device)
    turns = places[:, None] * places[1 : size // 2] % size  # whole numbers, so that no angle is large
    angles = turns.to(like.dtype) * (2 * math.pi / size)  # [K, K/2 - 1]
    pairs = torch.stack([angles.cos(), -angles.sin()], dim=-1).flatten(1) * 2**0.5
    still = torch.stack([torch.ones_like(places), 1 - 2 * (places % 2)], dim=1)
    return torch.cat([pairs, still.to(like.dtype)], dim=1) / size**0.5


def sines(basis: Tensor) -> Tensor:
    """The columns -sin [K, K/2 - 1] of `fourier`, of which a skew-symmetric circulant matrix is made."""
    return basis[:, 1:-2:2]


def rebased(x: Tensor, bases: Tensor) -> Tensor:
    """x [B, H, N, K] times matrices [H, m, K/m, K/m] per head, tokens before heads in memory, as projections lie."""
    batch, heads, tokens, _ = x.shape
    rows, bases = x.unflatten(-1, bases.shape[1:3]), bases.to(x.dtype)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.einsum("bhnmk,hmkl->bnhml", rows, bases).flatten(-2).transpose(1, 2)
    out = x.new_empty(batch * tokens, heads * bases.shape[1], bases.shape[-1])  # written where it is to lie
    torch.bmm(rows.permute(1, 3, 0, 2, 4).flatten(2, 3).flatten(0, 1), bases.flatten(0, 1), out=out.transpose(0, 1))
    return out.view(batch, tokens, heads, -1).transpose(1, 2)


def diagonal(blocks: Tensor) -> Tensor:
    """Blocks [H, m, b, b] as fewer and wider ones, [H, m / r, r b, r b], with r of them on the diagonal of each."""
    count = math.gcd(blocks.shape[1], max(WIDTH // blocks.shape[-1], 1))
    one = torch.eye(count, device=blocks.device, dtype=blocks.dtype)
    return torch.einsum("hmrij,rs->hmrisj", blocks.unflatten(1, (-1, count)), one).flatten(4).flatten(2, 3)


def blocks(wide: Tensor, shape: torch.Size) -> Tensor:
    """The blocks of a `shape` [H, m, b, b] on the diagonals of wider ones."""
    split = wide.unflatten(-1, (-1, shape[-1])).unflatten(-3, (-1, shape[-1]))  # [H, m / r, r, b, r, b]
    return split.diagonal(dim1=2, dim2=4).movedim(-1, 2).flatten(1, 2)
