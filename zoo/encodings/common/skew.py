"""Skew-symmetric matrices and their planes of rotation: S = Q blockdiag(w (0 -1; 1 0)) Q^T."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.attention import upcast

MERGED_WIDTH = 16  # channels of a product: with 8 the overhead is larger, with 64 most are zeros
NULL = 1e-12  # share of the largest frequency below which a frequency counts as 0
SINGULAR = 1e-4  # share of it below which eigenvectors are conjugate to fewer digits


def from_upper_triangle(triangles: Tensor, size: int) -> Tensor:
    """Return U - U^T [..., K, K] of strict upper triangles [..., K (K - 1) / 2], row-major."""
    rows, columns = torch.triu_indices(size, size, offset=1, device=triangles.device)
    upper = triangles.new_zeros(*triangles.shape[:-1], size, size)
    upper[..., rows, columns] = triangles
    return upper - upper.mT


def skew_part(generators: Tensor) -> Tensor:
    """Return G - G^T of matrices [..., b, b], in at least float32."""
    matrices = upcast(generators)
    return matrices - matrices.mT


def cayley_basis(skew: Tensor) -> Tensor:
    """Return the transpose of (I - S) (I + S)^-1 for skew-symmetric S [G, K, K]."""
    one = torch.eye(skew.shape[-1], device=skew.device, dtype=skew.dtype)
    return torch.linalg.solve(one - skew, one + skew)


def fourier_basis(size: int, like: Tensor) -> Tensor:
    """Return the discrete Fourier transform as an orthogonal basis [K, K].

    Columns are cos and -sin of k = 1 .. K/2 - 1, then those of k = 0 and K/2.
    """
    index = torch.arange(size, device=like.device)
    rotations = index[:, None] * index[1 : size // 2] % size  # integers: no angle is large
    angles = rotations.to(like.dtype) * (2 * math.pi / size)  # [K, K/2 - 1]
    pairs = torch.stack([angles.cos(), -angles.sin()], dim=-1).flatten(1) * 2**0.5
    constant = torch.stack([torch.ones_like(index), 1 - 2 * (index % 2)], dim=1)
    return torch.cat([pairs, constant.to(like.dtype)], dim=1) / size**0.5


def sine_columns(basis: Tensor) -> Tensor:
    """Return the columns -sin [K, K/2 - 1] of `fourier_basis`: they span skew circulants."""
    return basis[:, 1:-2:2]


def change_basis(x: Tensor, bases: Tensor) -> Tensor:
    """Multiply x [B, H, N, K] by matrices [H, m, K/m, K/m] of each head, block by block."""
    batch, heads, tokens, _ = x.shape
    rows, bases = x.unflatten(-1, bases.shape[1:3]), bases.to(x.dtype)
    if torch.compiler.is_exporting():  # strides of einsum's result would depend on sizes
        return (rows.transpose(2, 3) @ bases).transpose(2, 3).flatten(-2)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.einsum("bhnmk,hmkl->bnhml", rows, bases).flatten(-2).transpose(1, 2)
    # tokens before heads in memory, as projections have them
    out = x.new_empty(batch * tokens, heads * bases.shape[1], bases.shape[-1])
    left = rows.permute(1, 3, 0, 2, 4).flatten(2, 3).flatten(0, 1)
    torch.bmm(left, bases.flatten(0, 1), out=out.transpose(0, 1))
    return out.view(batch, tokens, heads, x.shape[-1]).transpose(1, 2)


def merge_blocks(blocks: Tensor) -> Tensor:
    """Merge blocks [H, m, b, b] into block-diagonal ones [H, m / r, r b, r b], faster to apply."""
    count = math.gcd(blocks.shape[1], max(MERGED_WIDTH // blocks.shape[-1], 1))
    one = torch.eye(count, device=blocks.device, dtype=blocks.dtype)
    groups = blocks.unflatten(1, (-1, count))
    return torch.einsum("hmrij,rs->hmrisj", groups, one).flatten(4).flatten(2, 3)


def split_blocks(merged: Tensor, shape: torch.Size) -> Tensor:
    """Return the blocks of a shape [H, m, b, b] on the diagonals of merged ones."""
    size = shape[-1]
    # [H, m / r, r, b, r, b]
    groups = merged.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    return groups.diagonal(dim1=2, dim2=4).movedim(-1, 2).flatten(1, 2)


def spectrum(skew: Tensor) -> tuple[Tensor, Tensor]:
    """Return frequencies w [..., b/2] and basis Q [..., b, b] of skew matrices [..., b, b].

    Decomposed in float64. The null space of a nearly singular matrix is first split into planes by
    a fixed generic matrix, and the basis made orthogonal up to rounding.
    """
    hermitian, half = 1j * skew.double(), skew.shape[-1] // 2
    # ascending: negative frequencies, then the same ones positive
    values, vectors = torch.linalg.eigh(hermitian)
    frequencies, pairs = values[..., half:], vectors[..., half:]
    small = frequencies[..., 0] <= SINGULAR * frequencies[..., -1]
    # asking a GPU would mean waiting for it
    on_cpu = skew.device.type == "cpu" and not torch.compiler.is_compiling()
    singular = not on_cpu or bool(small.any())
    if singular:
        pairs = _split_null_space(hermitian, values, vectors)[..., half:]
        frequencies = (pairs.conj() * (hermitian @ pairs)).sum(-2).real
    basis = torch.view_as_real(pairs).flatten(-2) * 2**0.5  # columns Re u_1, Im u_1, Re u_2, ...
    if singular:
        for _ in range(2):  # Newton-Schulz: from errors of 1e-4 to rounding
            basis = 1.5 * basis - 0.5 * basis @ (basis.mT @ basis)
    return frequencies.to(skew.dtype), basis.to(skew.dtype)


def _split_null_space(hermitian: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    """Return eigenvectors that are conjugate in pairs also for the eigenvalue 0."""
    size, block = values[..., -1:], values.shape[-1]
    null = values.abs() <= NULL * size  # [..., b], all of it for S = 0
    projector = ((vectors * null[..., None, :]) @ vectors.mH).real
    numbers = torch.arange(block**2, device=values.device, dtype=values.dtype)
    generic = numbers.square().sin().view(block, block)
    split = projector @ (generic - generic.mT) @ projector * (size + (size == 0))[..., None]
    return torch.linalg.eigh(hermitian + 1j * split).eigenvectors


def to_planes(matrices: Tensor) -> Tensor:
    """Write matrices [..., b, b] as maps z -> a z + c conj(z) between planes.

    Planes are complex numbers. For a sum of g x^T, the result [..., 2, b/2, b/2] has
    conj(g_r) x_s, the gradient for a, and conj(g_r) conj(x_s), the gradient for c.
    """
    # [..., b/2, 2, b/2]
    rows = torch.view_as_complex(matrices.unflatten(-1, (-1, 2))).unflatten(-2, (-1, 2))
    first, second = rows.unbind(-2)
    return torch.stack([first - 1j * second, (first + 1j * second).conj()], dim=-3)


def frequency_gaps(frequencies: Tensor) -> Tensor:
    """Return w_r - w_s and w_r + w_s, [..., 2, b/2, b/2]; infinite for a plane with itself."""
    rows, columns = frequencies[..., :, None], frequencies[..., None, :]
    same = torch.eye(frequencies.shape[-1], device=frequencies.device, dtype=torch.bool)
    return torch.stack([rows - columns, rows + columns], dim=-3).masked_fill(same, torch.inf)


def from_planes(parts: Tensor) -> Tensor:
    """Return the gradient for a matrix [..., b, b], given that for its planes."""
    a, c = parts.unbind(-3)
    plus, minus = a + c, a - c
    top = torch.stack([plus.real, minus.imag], dim=-1)
    bottom = torch.stack([-plus.imag, minus.real], dim=-1)
    return torch.stack([top, bottom], dim=-3).flatten(-2).flatten(-3, -2) / 2
