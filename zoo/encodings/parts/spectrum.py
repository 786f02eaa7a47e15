"""Skew-symmetric matrices brought to planes that turn: S = Q blockdiag(w (0 -1; 1 0)) Q^T."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import precise

NULL = 1e-12  # of the largest frequency: what is smaller is taken for 0
SINGULAR = 1e-4  # of the largest frequency: the vectors of a smaller one are conjugate to fewer digits


def skew(generators: Tensor) -> Tensor:
    """G - G^T of matrices [..., b, b], in at least float32."""
    matrices = precise(generators)
    return matrices - matrices.mT


def spectrum(skew: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies w [..., b/2] and basis Q [..., b, b] of skew matrices [..., b, b]: S = Q blockdiag(w (0 -1; 1 0)) Q^T.

    Decomposed in float64. Where S is singular, or nearly so, its null space is split into planes by a fixed generic matrix
    first, and the basis made orthogonal to rounding.
    """
    hermitian, half = 1j * skew.double(), skew.shape[-1] // 2
    values, vectors = torch.linalg.eigh(hermitian)  # ascending: those that turn backwards, then forwards
    frequencies, pairs = values[..., half:], vectors[..., half:]
    small = frequencies[..., 0] <= SINGULAR * frequencies[..., -1]
    unsure = torch.compiler.is_compiling() or skew.device.type != "cpu" or bool(small.any())  # a GPU would have to wait
    if unsure:
        pairs = _split(hermitian, values, vectors)[..., half:]
        frequencies = (pairs.conj() * (hermitian @ pairs)).sum(-2).real
    basis = torch.view_as_real(pairs).flatten(-2) * 2**0.5  # columns Re u_1, Im u_1, Re u_2, ...
    if unsure:
        for _ in range(2):  # from 1e-4 off, as what is just not null may be, to rounding
            basis = 1.5 * basis - 0.5 * basis @ (basis.mT @ basis)
    return frequencies.to(skew.dtype), basis.to(skew.dtype)


def _split(hermitian: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    """Vectors of the same values, conjugate by pairs also among those of the value 0."""
    size, block = values[..., -1:], values.shape[-1]
    null = values.abs() <= NULL * size  # [..., b], all of it for S = 0
    projector = ((vectors * null[..., None, :]) @ vectors.mH).real
    generic = torch.arange(block**2, device=values.device, dtype=values.dtype).square().sin().view(block, block)
    split = projector @ (generic - generic.mT) @ projector * (size + (size == 0))[..., None]
    return torch.linalg.eigh(hermitian + 1j * split).eigenvectors


def planes(matrices: Tensor) -> Tensor:
    """What sums over tokens of g x^T, [..., b, b], say of maps z -> a z + c conj(z) of planes as complex numbers.

    conj(g_r) x_s, the gradient to a, and conj(g_r) conj(x_s), that to c: [..., 2, b/2, b/2].
    """
    rows = torch.view_as_complex(matrices.unflatten(-1, (-1, 2))).unflatten(-2, (-1, 2))  # [..., b/2, 2, b/2]
    first, second = rows.unbind(-2)
    return torch.stack([first - 1j * second, (first + 1j * second).conj()], dim=-3)


def gaps(frequencies: Tensor) -> Tensor:
    """What `planes` of a skew matrix change by as S turns them, w_r - w_s and w_r + w_s, [..., 2, b/2, b/2].

    A plane that turns as fast as itself is no gap: infinite there.
    """
    rows, columns = frequencies[..., :, None], frequencies[..., None, :]
    same = torch.eye(frequencies.shape[-1], device=frequencies.device, dtype=torch.bool)
    return torch.stack([rows - columns, rows + columns], dim=-3).masked_fill(same, torch.inf)


def matrix(parts: Tensor) -> Tensor:
    """The gradient to a real matrix [..., b, b], from that to its `planes`, [..., 2, b/2, b/2]."""
    a, c = parts.unbind(-3)
    plus, minus = a + c, a - c
    top, bottom = torch.stack([plus.real, minus.imag], dim=-1), torch.stack([-plus.imag, minus.real], dim=-1)
    return torch.stack([top, bottom], dim=-3).flatten(-2).flatten(-3, -2) / 2
