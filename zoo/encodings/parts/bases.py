"""Skew-symmetric matrices, and constant orthogonal bases for planes that turn."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
    """x [B, H, N, K] times matrices [H, m, K/m, K/m] per head; samples and tokens are one dimension, so that nothing is copied."""
    count = bases.shape[1]
    product = torch.einsum("bhnmk,hmkl->bnhml", x.unflatten(-1, (count, -1)), bases.to(x.dtype))
    return product.flatten(-2).transpose(1, 2)  # tokens before heads, as projections lie
