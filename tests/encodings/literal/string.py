"""STRING: q and k rotate by the exponential of commuting generators, in a learned basis."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding


def cayley(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    """exp(sum_a p_a L_a), L_a = Q^T blockdiag(w (0 -1; 1 0)) Q, Q = (I - S)(I + S)^-1."""
    numbers = iter(encoding.skew[h])
    upper = torch.stack(
        [
            torch.stack([next(numbers) if c > r else p.new_zeros(()) for c in range(size)])
            for r in range(size)
        ]
    )
    skew, one = upper - upper.T, torch.eye(size, dtype=p.dtype)
    q = (one - skew) @ torch.linalg.inv(one + skew)
    generators = [
        q.T @ torch.block_diag(*map(build_plane, encoding.frequencies[a, h])) @ q
        for a in range(len(p))
    ]
    return torch.linalg.matrix_exp(
        sum(x * generator for x, generator in zip(p, generators, strict=True))
    )


def build_plane(frequency: Tensor) -> Tensor:
    zero = torch.zeros_like(frequency)
    return torch.stack([torch.stack([zero, -frequency]), torch.stack([frequency, zero])])


def circulant(encoding: Encoding, h: int, p: Tensor, size: int) -> Tensor:
    """exp(sum_a p_a (C_a - C_a^T)), C_a[m, n] = c_a[m - n mod K]."""
    generator = torch.zeros(size, size, dtype=p.dtype)
    for a in range(len(p)):
        column = encoding.circulants[a, h]
        matrix = torch.stack(
            [torch.stack([column[(m - n) % size] for n in range(size)]) for m in range(size)]
        )
        generator = generator + p[a] * (matrix - matrix.T)
    return torch.linalg.matrix_exp(generator)


def transform_circulant(encoding: Encoding, h: int, p: Tensor, z: Tensor) -> Tensor:
    """Rotate z by the paper's fast form: ifft(exp(2 i sum_a p_a Im fft(c_a)) fft(z))."""
    angles = sum(
        x * torch.fft.fft(column).imag
        for x, column in zip(p, encoding.circulants[:, h], strict=True)
    )
    return torch.fft.ifft(torch.exp(2j * angles) * torch.fft.fft(z)).real
