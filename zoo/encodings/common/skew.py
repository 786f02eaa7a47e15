"""Skew-symmetric matrices brought to planes that turn: S = Q blockdiag(w (0 -1; 1 0)) Q^T."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.attention import upcast

WIDTH = 16  # channels of a product: of 8 the overhead is larger, of 64 most are products with zeros


def from_upper_triangle(triangles: Tensor, size: int) -> Tensor:
    """U - U^T [..., K, K] for strict upper triangles U [..., K (K - 1) / 2], row-major."""
    rows, columns = torch.triu_indices(size, size, offset=1, device=triangles.device)
    upper = triangles.new_zeros(*triangles.shape[:-1], size, size)
    upper[..., rows, columns] = triangles
    return upper - upper.mT


def cayley_basis(skew: Tensor) -> Tensor:
    """The transpose of Q = (I - S) (I + S)^-1 for skew-symmetric matrices S [G, K, K]: what a row is multiplied by."""
    one = torch.eye(skew.shape[-1], device=skew.device, dtype=skew.dtype)
    return torch.linalg.solve(one - skew, one + skew)


def fourier_basis(size: int, like: Tensor) -> Tensor:
    """The discrete Fourier transform as an orthogonal basis [K, K]: columns cos, -sin of k = 1 .. K/2 - 1, then k = 0, K/2."""
    places = torch.arange(size, device=like.device)
    turns = (
        places[:, None] * places[1 : size // 2] % size
    )  # whole numbers, so that no angle is large
    angles = turns.to(like.dtype) * (2 * math.pi / size)  # [K, K/2 - 1]
    pairs = torch.stack([angles.cos(), -angles.sin()], dim=-1).flatten(1) * 2**0.5
    still = torch.stack([torch.ones_like(places), 1 - 2 * (places % 2)], dim=1)
    return torch.cat([pairs, still.to(like.dtype)], dim=1) / size**0.5


def sine_columns(basis: Tensor) -> Tensor:
    """The columns -sin [K, K/2 - 1] of `fourier`, of which a skew-symmetric circulant matrix is made."""
    return basis[:, 1:-2:2]


def change_basis(x: Tensor, bases: Tensor) -> Tensor:
    """x [B, H, N, K] times matrices [H, m, K/m, K/m] per head, tokens before heads in memory, as projections lie."""
    batch, heads, tokens, _ = x.shape
    rows, bases = x.unflatten(-1, bases.shape[1:3]), bases.to(x.dtype)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.einsum("bhnmk,hmkl->bnhml", rows, bases).flatten(-2).transpose(1, 2)
    out = x.new_empty(
        batch * tokens, heads * bases.shape[1], bases.shape[-1]
    )  # written where it is to lie
    torch.bmm(
        rows.permute(1, 3, 0, 2, 4).flatten(2, 3).flatten(0, 1),
        bases.flatten(0, 1),
        out=out.transpose(0, 1),
    )
    return out.view(batch, tokens, heads, -1).transpose(1, 2)


def merge_blocks(blocks: Tensor) -> Tensor:
    """Blocks [H, m, b, b] as fewer and wider ones, [H, m / r, r b, r b], with r of them on the diagonal of each."""
    count = math.gcd(blocks.shape[1], max(WIDTH // blocks.shape[-1], 1))
    one = torch.eye(count, device=blocks.device, dtype=blocks.dtype)
    return (
        torch.einsum("hmrij,rs->hmrisj", blocks.unflatten(1, (-1, count)), one)
        .flatten(4)
        .flatten(2, 3)
    )


def split_blocks(wide: Tensor, shape: torch.Size) -> Tensor:
    """The blocks of a `shape` [H, m, b, b] on the diagonals of wider ones."""
    split = wide.unflatten(-1, (-1, shape[-1])).unflatten(
        -3, (-1, shape[-1])
    )  # [H, m / r, r, b, r, b]
    return split.diagonal(dim1=2, dim2=4).movedim(-1, 2).flatten(1, 2)


NULL = 1e-12  # of the largest frequency: what is smaller is taken for 0
SINGULAR = (
    1e-4  # of the largest frequency: the vectors of a smaller one are conjugate to fewer digits
)


def skew_part(generators: Tensor) -> Tensor:
    """G - G^T of matrices [..., b, b], in at least float32."""
    matrices = upcast(generators)
    return matrices - matrices.mT


def spectrum(skew: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies w [..., b/2] and basis Q [..., b, b] of skew matrices [..., b, b]: S = Q blockdiag(w (0 -1; 1 0)) Q^T.

    Decomposed in float64. Where S is singular, or nearly so, its null space is split into planes by a fixed generic matrix
    first, and the basis made orthogonal to rounding.
    """
    hermitian, half = 1j * skew.double(), skew.shape[-1] // 2
    values, vectors = torch.linalg.eigh(
        hermitian
    )  # ascending: those that turn backwards, then forwards
    frequencies, pairs = values[..., half:], vectors[..., half:]
    small = frequencies[..., 0] <= SINGULAR * frequencies[..., -1]
    unsure = (
        torch.compiler.is_compiling() or skew.device.type != "cpu" or bool(small.any())
    )  # a GPU would have to wait
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
    generic = (
        torch.arange(block**2, device=values.device, dtype=values.dtype)
        .square()
        .sin()
        .view(block, block)
    )
    split = projector @ (generic - generic.mT) @ projector * (size + (size == 0))[..., None]
    return torch.linalg.eigh(hermitian + 1j * split).eigenvectors


def to_planes(matrices: Tensor) -> Tensor:
    """What sums over tokens of g x^T, [..., b, b], say of maps z -> a z + c conj(z) of planes as complex numbers.

    conj(g_r) x_s, the gradient to a, and conj(g_r) conj(x_s), that to c: [..., 2, b/2, b/2].
    """
    rows = torch.view_as_complex(matrices.unflatten(-1, (-1, 2))).unflatten(
        -2, (-1, 2)
    )  # [..., b/2, 2, b/2]
    first, second = rows.unbind(-2)
    return torch.stack([first - 1j * second, (first + 1j * second).conj()], dim=-3)


def frequency_gaps(frequencies: Tensor) -> Tensor:
    """What `planes` of a skew matrix change by as S turns them, w_r - w_s and w_r + w_s, [..., 2, b/2, b/2].

    A plane that turns as fast as itself is no gap: infinite there.
    """
    rows, columns = frequencies[..., :, None], frequencies[..., None, :]
    same = torch.eye(frequencies.shape[-1], device=frequencies.device, dtype=torch.bool)
    return torch.stack([rows - columns, rows + columns], dim=-3).masked_fill(same, torch.inf)


def from_planes(parts: Tensor) -> Tensor:
    """The gradient to a real matrix [..., b, b], from that to its `planes`, [..., 2, b/2, b/2]."""
    a, c = parts.unbind(-3)
    plus, minus = a + c, a - c
    top, bottom = (
        torch.stack([plus.real, minus.imag], dim=-1),
        torch.stack([-plus.imag, minus.real], dim=-1),
    )
    return torch.stack([top, bottom], dim=-3).flatten(-2).flatten(-3, -2) / 2
