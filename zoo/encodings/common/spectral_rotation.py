"""Skew-symmetric matrices S, and rotation by exp(t S) = Q rot(t w) Q^T.

S = Q blockdiag(w (0 -1; 1 0)) Q^T. The derivative is exact everywhere.

A score contains Q^T Q = 1 between a query and a key, so the left Q is never applied. For the same
reason the products of rotated heads with their gradients, summed over tokens, are transposes of
each other for queries and keys, so that the contribution of a change of Q to the left is zero.
What remains is one product per head, q^T times its gradient before the rotation, divided by
differences of frequencies (the derivative of an eigenvector). For equal frequencies this quotient
is infinite, but the derivative of the exponential is finite (Najfeld and Havel 1995). There it is
computed as a series in the difference, so that matrices that are zero or of low rank are no
special case.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from zoo.attention import has_variable_sizes, is_derived_again, is_transformed
from zoo.encodings.common.frequencies import compute_angles, float64_like, sum_products
from zoo.encodings.common.matrix_exp import (
    exponential_gradient,
    matrix_exp,
    multiply_blocks,
    split_channels,
)
from zoo.encodings.common.rotation import angle_gradient, cos_sin, multiply_pairs
from zoo.encodings.common.skew_jacobi import WIDEST, decompose_skew

# Channels of a merged product: 8 have more overhead, and with 64 most factors are zeros.
MERGED_WIDTH = 16
# A frequency counts as 0 below this fraction of the largest one.
NULL = 1e-12
# Below this fraction, eigenvectors of w and -w are conjugate to fewer digits than float64 has.
SINGULAR = 1e-4
# Angle below which two frequencies count as equal: rounding equals the error of the series there.
NEAR = {torch.float64: 1e-5, torch.float32: 0.02}


def spectral_tables(skew: Tensor, pos: Tensor, scales: Tensor) -> tuple[Tensor, ...]:
    """Return the tables of `rotate_by_spectrum`, which serve both queries and keys.

    Args:
        skew: Skew-symmetric matrices S [H, m, b, b] of `skew_part`.
        pos: Coordinates [1|B, N, P].
        scales: Scales [P, 1|H, m] of coordinates, whose sum is the factor t [1|B, H, N, m].
    """
    # No table is a view of another tensor: FSDP refuses views among the outputs of a block.
    times = sum_products(pos, scales)
    if times.shape[1] != len(skew):
        times = times.repeat(1, len(skew), 1, 1)
    rounded = skew.to(times)  # for derivatives of derivatives
    if is_transformed(skew, times):
        return (_plain_rotations(spectrum(skew.detach())[1].to(times), times, rounded),)
    frequencies, basis, *moments = _Spectrum.apply(skew, times.detach())  # type: ignore[no-untyped-call]
    waves = scales.to(frequencies)[..., None] * frequencies  # [P, H, m, b/2]
    angles = compute_angles(pos, waves.flatten(-2))
    return cos_sin(angles.detach()), angles, basis, times, rounded, *moments


def rotate_by_spectrum(x: Tensor, *tables: Tensor) -> Tensor:
    """Return Q^T exp(t S) x for x [B, H, N, K], block by block.

    Gradients of x, S and t are correct only if results are used in products of two, as in scores.
    """
    if len(tables) == 1:  # the matrices Q^T exp(t S), under a transform
        return multiply_blocks(tables[0], x)
    if is_transformed(x):
        _, _, basis, times, skew, *_ = tables
        return multiply_blocks(_plain_rotations(split_blocks(basis, skew.shape), times, skew), x)
    return _RotateBySpectrum.apply(x, *tables)  # type: ignore[no-untyped-call]


def rotate_back_by_spectrum(x: Tensor, *tables: Tensor) -> Tensor:
    """Apply the inverse of `rotate_by_spectrum` to sums x [B, H, N, K] of rotated heads.

    Gradients are correct in the same products: that of an output times an output is a score.
    """
    if len(tables) == 1:
        return multiply_blocks(tables[0].mT, x)
    if is_transformed(x):
        _, _, basis, times, skew, *_ = tables
        rotations = _plain_rotations(split_blocks(basis, skew.shape), times, skew)
        return multiply_blocks(rotations.mT, x)
    return _RotateBackBySpectrum.apply(x, *tables)  # type: ignore[no-untyped-call]


def _plain_rotations(basis: Tensor, times: Tensor, skew: Tensor) -> Tensor:
    """Return Q^T exp(t S), [1|B, H, N, m, b, b], with derivatives of all orders of t and S.

    Args:
        basis: The bases Q [H, m, b, b], as constants: a score does not depend on them.
        times: Factors t [1|B, H, N, m].
        skew: Skew-symmetric matrices S [H, m, b, b].
    """
    return basis.mT[:, None] @ matrix_exp(times[..., None, None] * skew[:, None])


class _RotateBySpectrum(torch.autograd.Function):
    """x -> rot(angles) Q^T x, with gradients of x, of the angles and of moments.

    The gradient of moment k = 0, 1, 2 is the sum over tokens of t^k g x^T, block by block, where g
    is the gradient of Q^T x. If a gradient is differentiated again, it is computed as that of
    `_plain_rotations`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, angles: Tensor, *spectrum: Tensor) -> Tensor:
        coefficients = change_basis(x, spectrum[0])  # [B, H, N, K]
        rotated = multiply_pairs(coefficients, table)
        ctx.save_for_backward(rotated, coefficients, table, *spectrum)
        return rotated

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rotated, x, table, basis, times, skew, *moments = ctx.saved_tensors
        # The last input is a moment, an output of `_Spectrum`, unless S has no gradient.
        # A compiler has no such node, and derives once only.
        has_node = ctx.needs_input_grad[-1] and not torch.compiler.is_compiling()
        spectral = ctx.next_functions[-1][0] if has_node else None
        if is_derived_again(gradient) or (spectral is not None and spectral.is_recorded):
            if spectral is not None:
                spectral.is_recorded = True
            plain = _differentiate_plainly(gradient, rotated, basis, times, skew)
            return plain[0], None, None, None, *plain[1:], *(None for _ in moments)

        g = multiply_pairs(gradient, table, -1)
        grad_x = change_basis(g, basis.mT) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[2]:
            return grad_x, *(None,) * (5 + len(moments))
        return grad_x, *_spectral_gradients(g, x, table, basis, times, len(moments))


class _RotateBackBySpectrum(torch.autograd.Function):
    """x -> Q rot(-angles) x, with gradients of x, of the angles and of moments.

    The product of its output and a gradient g is that of x and R g, as if g were rotated and x were
    the gradient: the roles of `_RotateBySpectrum` are exchanged.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, angles: Tensor, *spectrum: Tensor) -> Tensor:
        basis = spectrum[0]
        unrotated = multiply_pairs(x, table, -1)
        out = change_basis(unrotated, basis.mT)
        ctx.save_for_backward(out, unrotated, table, *spectrum)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        out, unrotated, table, basis, times, skew, *moments = ctx.saved_tensors
        has_node = ctx.needs_input_grad[-1] and not torch.compiler.is_compiling()
        spectral = ctx.next_functions[-1][0] if has_node else None
        if is_derived_again(gradient) or (spectral is not None and spectral.is_recorded):
            if spectral is not None:
                spectral.is_recorded = True
            rotations = _plain_rotations(split_blocks(basis, skew.shape), times, skew)
            grad_x = multiply_blocks(rotations, gradient)
            x = multiply_blocks(rotations, out)
            plain = _exponential_gradients(x, gradient, rotations, basis, times, skew)
            return grad_x, None, None, None, *plain, *(None for _ in moments)

        rows = change_basis(gradient, basis)
        rotated = multiply_pairs(rows, table) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[2]:
            return rotated, *(None,) * (5 + len(moments))
        gradients = _spectral_gradients(unrotated, rows, table, basis, times, len(moments))
        return rotated, *gradients


def _spectral_gradients(
    g: Tensor, x: Tensor, table: Tensor, basis: Tensor, times: Tensor, moments: int
) -> tuple[Tensor | None, ...]:
    """Return the gradients of table, angles, basis, t, S and moments.

    Args:
        g: Gradients of coefficients before their rotation [B, H, N, K].
        x: The coefficients.
        table: cos and sin of the angles.
        basis: The bases Q [H, m, b, b].
        times: Factors t [1|B, H, N, m].
        moments: Number of moments.
    """
    grad_angles = angle_gradient(x, g, table.shape[:-1]).to(table.dtype)
    grad_moments = [_moment(g, x, times, power, basis) for power in range(moments)]
    return None, grad_angles, None, None, None, *grad_moments


def _differentiate_plainly(
    gradient: Tensor, rotated: Tensor, basis: Tensor, times: Tensor, skew: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, t and S from that of R x, with R of `_plain_rotations`."""
    rotations = _plain_rotations(split_blocks(basis, skew.shape), times, skew)
    grad_x = multiply_blocks(rotations.mT, gradient)
    # x = R^T R x has a graph, which the saved Q^T x has not, and takes no memory.
    x = multiply_blocks(rotations.mT, rotated)
    return grad_x, *_exponential_gradients(gradient, x, rotations, basis, times, skew)


def _exponential_gradients(
    gradient: Tensor, x: Tensor, rotations: Tensor, basis: Tensor, times: Tensor, skew: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of t and S from that of R x, for rotations R [1|B, H, N, m, b, b]."""
    rows, columns = (split_channels(tensor, rotations) for tensor in (gradient, x))
    grad_rotations = (rows[..., :, None] * columns[..., None, :]).to(rotations.dtype)
    basis = split_blocks(basis, skew.shape)
    grad_exponentials = basis[:, None] @ grad_rotations.sum_to_size(rotations.shape)

    factors = times[..., None, None]
    skew = skew[:, None]
    inner = exponential_gradient(factors * skew, grad_exponentials)
    grad_times = (inner * skew).sum((-2, -1))
    return grad_times, (inner * factors).sum_to_size(skew.shape).squeeze(1)


class _Spectrum(torch.autograd.Function):
    """S -> frequencies, basis, and zero tensors that collect the moments as their gradients.

    Moments beyond the first are needed for equal frequencies. A CPU skips them if no frequencies
    are equal; on a GPU the test would force a synchronization.
    """

    @staticmethod
    def forward(ctx: Any, skew: Tensor, times: Tensor) -> tuple[Tensor, ...]:
        frequencies, basis = spectrum(skew)
        basis = basis.to(times)
        gaps = frequency_gaps(frequencies.to(times))  # [H, m, 2, b/2, b/2]
        merged = merge_blocks(basis)  # [H, m / r, r b, r b]
        longest = times.abs().amax((0, 2)) if times.numel() else times.new_zeros(times.shape[1::2])
        near = gaps.abs() * longest[..., None, None, None] <= NEAR[times.dtype]
        on_cpu = times.device.type == "cpu" and not torch.compiler.is_compiling()
        count = 3 if not on_cpu or bool(near.any()) else 1
        # Whether a derivative of a derivative was begun. All rotations by this spectrum then use
        # plain operations to the end: the gradients of plain ones and of moments do not mix.
        ctx.is_recorded = False
        # The last tensor has the dtype and device of S.
        ctx.save_for_backward(gaps, near, basis, skew.new_empty(0))
        ctx.mark_non_differentiable(merged)
        return frequencies, merged, *(torch.zeros_like(merged) for _ in range(count))

    @staticmethod
    def backward(
        ctx: Any, frequencies: Tensor, _: Tensor, *moments: Tensor
    ) -> tuple[Tensor | None, None]:
        if ctx.is_recorded or is_derived_again(frequencies, *moments):
            return None, None
        # In planes, divide by differences of frequencies; where these are near 0, use the series.
        gaps, near, basis, like = ctx.saved_tensors
        product, *series_terms = (split_blocks(moment, basis.shape) for moment in moments)
        parts = to_planes(product - product.mT) * (-0.5j / gaps)
        if series_terms:
            series = to_planes(series_terms[0]) - 0.5j * gaps * to_planes(series_terms[1])
            parts = torch.where(near, series, parts)
        # The gradient of a frequency is that of the rotation within its own plane.
        diagonal = torch.diag_embed(frequencies.to(basis))
        inner = from_planes(
            parts - 1j * torch.stack([diagonal, torch.zeros_like(diagonal)], dim=-3)
        )
        return (basis @ inner @ basis.mT).to(like), None


def _moment(g: Tensor, x: Tensor, times: Tensor, power: int, basis: Tensor) -> Tensor:
    """Return the sum of t^power g x^T over samples and tokens, in blocks as wide as the basis."""
    g, x = g.to(times.dtype), x.to(times.dtype)
    if power:
        x = (x.unflatten(-1, (times.shape[-1], -1)) * times[..., None] ** power).flatten(-2)
    g, x = (tensor.unflatten(-1, (basis.shape[1], -1)) for tensor in (g, x))
    return torch.einsum("bhnmi,bhnmj->hmij", g, x)


def from_upper_triangle(triangles: Tensor, size: int) -> Tensor:
    """Return U - U^T [..., K, K] from strict upper triangles [..., K (K - 1) / 2], row-major."""
    rows, columns = torch.triu_indices(size, size, offset=1, device=triangles.device)
    upper = triangles.new_zeros(*triangles.shape[:-1], size, size)
    upper[..., rows, columns] = triangles
    return upper - upper.mT


def skew_part(generators: Tensor) -> Tensor:
    """Return G - G^T of matrices [..., b, b] in float64 (see `float64_like`)."""
    # Rounding S to float32 would change its frequencies.
    matrices = generators.to(float64_like(generators))
    return matrices - matrices.mT


def cayley_basis(skew: Tensor) -> Tensor:
    """Return the transpose of (I - S) (I + S)^-1 for skew-symmetric S [G, K, K]."""
    identity = torch.eye(skew.shape[-1], device=skew.device, dtype=skew.dtype)
    # Without error codes, which a GPU's host would wait for: I - S is never singular.
    # torch's solve drops the tangent of its factors where the gradient is followed forward.
    if is_transformed(skew):
        return torch.linalg.inv_ex(identity - skew).inverse @ (identity + skew)
    return torch.linalg.solve_ex(identity - skew, identity + skew).result


def fourier_basis(size: int, like: Tensor) -> Tensor:
    """Return the discrete Fourier transform as an orthogonal basis [K, K].

    Columns are cos and -sin of k = 1 .. K/2 - 1, then the cosines of k = 0 and k = K/2.
    """
    index = torch.arange(size, device=like.device)
    # Integers modulo K keep every angle below 2 pi, and so exact.
    rotations = index[:, None] * index[1 : size // 2] % size
    angles = rotations.to(like.dtype) * (2 * math.pi / size)  # [K, K/2 - 1]
    pairs = torch.stack([angles.cos(), -angles.sin()], dim=-1).flatten(1) * 2**0.5
    constant = torch.stack([torch.ones_like(index), 1 - 2 * (index % 2)], dim=1)
    return torch.cat([pairs, constant.to(like.dtype)], dim=1) / size**0.5


def sine_columns(basis: Tensor) -> Tensor:
    """Return the columns -sin [K, K/2 - 1] of `fourier_basis`, which span the odd vectors."""
    return basis[:, 1:-2:2]


def change_basis(x: Tensor, bases: Tensor) -> Tensor:
    """Multiply x [B, H, N, K] by matrices [H, m, K/m, K/m] of each head, block by block."""
    batch, heads, tokens, _ = x.shape
    rows, bases = x.unflatten(-1, bases.shape[1:3]), bases.to(x.dtype)
    # The strides of einsum's result would depend on the sizes, which are variable here.
    if has_variable_sizes():
        return (rows.transpose(2, 3) @ bases).transpose(2, 3).flatten(-2)
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_transformed(x, bases):
        return torch.einsum("bhnmk,hmkl->bnhml", rows, bases).flatten(-2).transpose(1, 2)
    # In memory tokens come before heads, which is the order of projections.
    out = x.new_empty(batch * tokens, heads * bases.shape[1], bases.shape[-1])
    left = rows.permute(1, 3, 0, 2, 4).flatten(2, 3).flatten(0, 1)
    bases = bases.expand(heads, -1, -1, -1)  # heads may share one basis
    torch.bmm(left, bases.flatten(0, 1), out=out.transpose(0, 1))
    return out.view(batch, tokens, heads, x.shape[-1]).transpose(1, 2)


def merge_blocks(blocks: Tensor) -> Tensor:
    """Merge blocks [H, m, b, b] into block-diagonal [H, m / r, r b, r b], which apply faster."""
    count = math.gcd(blocks.shape[1], max(MERGED_WIDTH // blocks.shape[-1], 1))
    identity = torch.eye(count, device=blocks.device, dtype=blocks.dtype)
    groups = blocks.unflatten(1, (-1, count))
    return torch.einsum("hmrij,rs->hmrisj", groups, identity).flatten(4).flatten(2, 3)


def split_blocks(merged: Tensor, shape: torch.Size) -> Tensor:
    """Return the blocks on the diagonals of merged ones, in the shape [H, m, b, b]."""
    size = shape[-1]
    # [H, m / r, r, b, r, b]
    groups = merged.unflatten(-1, (-1, size)).unflatten(-3, (-1, size))
    return groups.diagonal(dim1=2, dim2=4).movedim(-1, 2).flatten(1, 2)


def spectrum(skew: Tensor) -> tuple[Tensor, Tensor]:
    """Return frequencies w [..., b/2] and basis Q [..., b, b] of skew matrices [..., b, b].

    The decomposition and its results are in float64. With `eigh`, the null space of a nearly
    singular matrix is split into planes by a fixed generic matrix, and the basis is then
    orthogonalized up to rounding. Off the CPU, where a host would wait for `eigh`, matrices of up
    to `WIDEST` channels are decomposed by `decompose_skew`.
    """
    # On the meta device operations are counted, which are those of a CPU in all records.
    if skew.device.type not in ("cpu", "meta") and skew.shape[-1] <= WIDEST:
        return decompose_skew(skew)
    # i S is Hermitian. Its eigenvalues ascend: negative frequencies, then the same ones positive.
    hermitian, half = 1j * skew.double(), skew.shape[-1] // 2
    values, vectors = torch.linalg.eigh(hermitian)
    frequencies, pairs = values[..., half:], vectors[..., half:]
    small = frequencies[..., 0] <= SINGULAR * frequencies[..., -1]
    # Reading a value from a GPU would force a synchronization.
    is_readable = skew.device.type == "cpu" and not torch.compiler.is_compiling()
    singular = not is_readable or is_transformed(skew) or bool(small.any())
    if singular:
        pairs = _split_null_space(hermitian, values, vectors)[..., half:]
        frequencies = (pairs.conj() * (hermitian @ pairs)).sum(-2).real
    # The columns are Re u_1, Im u_1, Re u_2, ...
    basis = torch.view_as_real(pairs).flatten(-2) * 2**0.5
    if singular:
        # Two steps of Newton-Schulz reduce errors of 1e-4 to rounding.
        for _ in range(2):
            basis = 1.5 * basis - 0.5 * basis @ (basis.mT @ basis)
    return frequencies, basis


def _split_null_space(hermitian: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
    """Return eigenvectors that are conjugate in pairs, including those of the eigenvalue 0."""
    # A generic skew matrix, projected to the null space, separates its planes. Its entries are
    # sin(n^2), so that results are reproducible.
    size, block = values[..., -1:], values.shape[-1]
    null = values.abs() <= NULL * size  # [..., b], all of it for S = 0
    projector = ((vectors * null[..., None, :]) @ vectors.mH).real
    numbers = torch.arange(block**2, device=values.device, dtype=values.dtype)
    generic = numbers.square().sin().view(block, block)
    split = projector @ (generic - generic.mT) @ projector * (size + (size == 0))[..., None]
    return torch.linalg.eigh(hermitian + 1j * split).eigenvectors


def to_planes(matrices: Tensor) -> Tensor:
    """Write matrices [..., b, b] as maps z -> a z + c conj(z) between planes.

    Planes are complex numbers. For a sum of g x^T, the result [..., 2, b/2, b/2] contains
    conj(g_r) x_s, the gradient of a, and conj(g_r) conj(x_s), the gradient of c.
    """
    # [..., b/2, 2, b/2]
    rows = torch.view_as_complex(matrices.unflatten(-1, (-1, 2))).unflatten(-2, (-1, 2))
    first, second = rows.unbind(-2)
    return torch.stack([first - 1j * second, (first + 1j * second).conj()], dim=-3)


def frequency_gaps(frequencies: Tensor) -> Tensor:
    """Return w_r - w_s and w_r + w_s, [..., 2, b/2, b/2]; infinite for a plane with itself."""
    # An infinite gap makes the quotient of a plane with itself 0.
    rows, columns = frequencies[..., :, None], frequencies[..., None, :]
    same = torch.eye(frequencies.shape[-1], device=frequencies.device, dtype=torch.bool)
    return torch.stack([rows - columns, rows + columns], dim=-3).masked_fill(same, torch.inf)


def from_planes(parts: Tensor) -> Tensor:
    """Return the gradient of a matrix [..., b, b] from that of its planes."""
    a, c = parts.unbind(-3)
    plus, minus = a + c, a - c
    top = torch.stack([plus.real, minus.imag], dim=-1)
    bottom = torch.stack([-plus.imag, minus.real], dim=-1)
    return torch.stack([top, bottom], dim=-3).flatten(-2).flatten(-3, -2) / 2
