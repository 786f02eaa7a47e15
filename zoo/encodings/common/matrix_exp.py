"""Exponentials of many small skew-symmetric matrices, by a scaled and squared Taylor series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from zoo.attention import has_variable_sizes, is_derived_again, is_transformed, upcast

# Largest block that is multiplied element by element on a CPU. Compared with torch's batched
# product, that takes a third of the time for blocks of 8 and 2.5 times as long for blocks of 16.
SMALL = 8
# Numbers that are multiplied at once. More do not fit into the cache; with fewer the overhead of
# each operation dominates.
CACHED = 2**18
# The same on a GPU: 16 MB in float32, which take longer than the launch of a kernel. A pass keeps
# some 30 tensors of this size at its peak, whatever the number of tokens.
LAUNCHED = 2**22
# Number of squarings where the required number cannot be read: under a compiler, or on a GPU.
SQUARINGS = 16


def is_small(matrices: Tensor) -> bool:
    """Return whether matrices [..., b, b] are multiplied element by element."""
    on_cpu = matrices.device.type == "cpu" and not torch.compiler.is_compiling()
    return matrices.shape[-1] <= SMALL and on_cpu


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b for matrices [..., b, b]."""
    if not is_small(a):
        return a @ b
    (column, *columns), (row, *rows) = a.split(1, dim=-1), b.split(1, dim=-2)
    return _accumulate_products(column * row, columns, rows)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return total + a @ b for matrices [..., b, b]. It may overwrite `total`."""
    if not is_small(a):
        return total + a @ b
    return _accumulate_products(total, a.split(1, dim=-1), b.split(1, dim=-2))


def _accumulate_products(
    total: Tensor, columns: Sequence[Tensor], rows: Sequence[Tensor]
) -> Tensor:
    # a @ b = sum_k a[:, k] b[k, :]
    for column, row in zip(columns, rows, strict=True):
        total.addcmul_(column, row)
    return total


def rotate_blocks(x: Tensor, rotations: Tensor) -> Tensor:
    """Rotate heads [B, H, N, K] by blocks [1|B, H, N, m, b, b]; channels past m b stay the same."""
    width = rotations.shape[3] * rotations.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([rotate_blocks(x[..., :width], rotations), x[..., width:]], dim=-1)
    if is_transformed(x, rotations):
        return multiply_blocks(rotations, x)
    if is_small(rotations):
        return _RotateBlocks.apply(x, rotations)  # type: ignore[no-untyped-call]
    blocks, matrices = x.unflatten(-1, rotations.shape[3:5]), rotations.to(x.dtype)
    if matrices.shape[0] == 1:
        return torch.einsum("hnmij,bhnmj->bhnmi", matrices[0], blocks).flatten(-2)
    return torch.einsum("bhnmij,bhnmj->bhnmi", matrices, blocks).flatten(-2)


def multiply_blocks(rotations: Tensor, x: Tensor) -> Tensor:
    """Multiply heads [B, H, N, m b] by blocks [1|B, 1|H, N, m, b, b], as transforms follow it."""
    blocks = split_channels(upcast(x).to(rotations.dtype), rotations)
    return (rotations @ blocks[..., None]).reshape(x.shape).to(x.dtype)


def split_channels(x: Tensor, rotations: Tensor) -> Tensor:
    """Split heads [B, H, N, m b] into [B, H, N, m, b], the channels of blocks [.., m, b, b]."""
    # Under `is_grads_batched` torch has no rule for unflatten.
    return x.reshape(*x.shape[:-1], *rotations.shape[3:5])


class _RotateBlocks(torch.autograd.Function):
    """A rotation by small matrices whose backward pass sums over samples in one operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rotations: Tensor) -> Tensor:
        columns, matrices = _to_columns(x, rotations), _to_elements(rotations)
        ctx.save_for_backward(columns, rotations, x)
        return _to_heads(_apply_elements(matrices, columns)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        columns, rotations, x = ctx.saved_tensors
        if is_derived_again(gradient):
            outer, blocks = (split_channels(tensor, rotations) for tensor in (gradient, x))
            products = upcast(outer)[..., :, None] * upcast(blocks)[..., None, :]
            grad_rotations = products.sum_to_size(rotations.shape).to(rotations.dtype)
            return multiply_blocks(rotations.mT, gradient), grad_rotations
        rows, matrices = _to_columns(gradient, rotations), _to_elements(rotations)
        grad_x = _to_heads(_apply_elements(matrices.transpose(1, 2), rows)).to(gradient.dtype)
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        return grad_x, _outer_products(rows, columns, len(rotations))


def _to_columns(x: Tensor, rotations: Tensor) -> Tensor:
    """Lay out heads [B, H, N, K] as [B, b, N, H, m]: elements first, tokens before heads."""
    blocks = upcast(x).to(rotations.dtype).unflatten(-1, rotations.shape[3:5])
    return blocks.permute(0, 4, 2, 1, 3).contiguous()


def _to_heads(columns: Tensor) -> Tensor:
    return columns.permute(0, 2, 3, 4, 1).flatten(-2).transpose(1, 2)


def _to_elements(rotations: Tensor) -> Tensor:
    """Lay out [1|B, H, N, m, b, b] as [1|B, b, b, N, H, m]."""
    return rotations.permute(0, 4, 5, 2, 1, 3)


def _apply_elements(matrices: Tensor, columns: Tensor) -> Tensor:
    # R x = sum_j R[:, j] x_j
    out = matrices[:, :, 0] * columns[:, :1]  # [B, b, N, H, m]
    for j in range(1, matrices.shape[2]):
        out.addcmul_(matrices[:, :, j], columns[:, j : j + 1])
    return out


def _outer_products(rows: Tensor, columns: Tensor, batch: int) -> Tensor:
    """Return rows times columns [batch, H, N, m, b, b], summed over samples if batch is 1."""
    rows, columns = rows[:, :, None], columns[:, None]
    out = rows[:batch] * columns[:batch]
    for sample in range(batch, len(rows)):
        out[0].addcmul_(rows[sample], columns[sample])
    return out.permute(0, 4, 3, 5, 1, 2)


def split_times(times: Tensor, generators: Tensor) -> tuple[Tensor, ...]:
    """Split times [T, P] so that the matrices of each part fit into the cache, or into memory."""
    # A compiler would repeat its graph for each part.
    if torch.compiler.is_compiling() or has_variable_sizes():
        return (times,)
    numbers = CACHED if times.device.type == "cpu" else LAUNCHED
    return times.split(max(numbers // generators[0].numel(), 1))


def combine_generators(generators: Tensor, times: Tensor) -> Tensor:
    """Return sum_p times[t, p] generators[p] of matrices [P, K, b, b], as [T K, b, b]."""
    if not is_small(generators):
        return torch.einsum("tp,pkij->tkij", times, generators).flatten(0, 1)
    leading, *remaining = generators.permute(0, 2, 3, 1).unsqueeze(3)  # [b, b, 1, K] each
    out = leading * times[:, 0, None]
    for number, generator in enumerate(remaining, start=1):
        out.addcmul_(generator, times[:, number, None])
    return out.flatten(2).movedim(2, 0)


def generator_gradient(gradient: Tensor, times: Tensor) -> Tensor:
    """Return the gradient of generators [P, K, b, b] from that of their sums [T K, b, b]."""
    by_time = gradient.unflatten(0, (len(times), -1))
    if not is_small(gradient):
        return torch.einsum("tkij,tp->pkij", by_time, times)
    return (times.mT @ by_time.permute(2, 3, 0, 1)).permute(2, 3, 0, 1)


def time_gradient(gradient: Tensor, generators: Tensor) -> Tensor:
    """Return the gradient of times [T, P] from that of the sums [T K, b, b]."""
    by_time = gradient.unflatten(0, (-1, generators.shape[1]))
    return torch.einsum("tkij,pkij->tp", by_time, generators)


def join_parts(results: Sequence[Tensor], times: Sequence[Tensor]) -> Tensor:
    """Join the results [T K, b, b] of all parts of times into one [T, K, b, b]."""
    parts = [
        result.unflatten(0, (part.shape[0], -1))
        for result, part in zip(results, times, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    if not is_small(parts[0]):
        return torch.cat(parts)
    # The matrix elements come first in memory, so joining in that order copies whole runs.
    return torch.cat([part.permute(2, 3, 0, 1) for part in parts], 2).permute(2, 3, 0, 1)


# Coefficients of four cubic polynomials B of A (Bader, Blanes and Casas 2019,
# doi:10.3390/math7121174). The Taylor series of degree 12 is B_0 + (B_1 + C) C with
# C = B_2 + B_3^2: four products forward, seven backward.
B0 = (
    -0.01860232051462055322,
    -0.00500702322573317730,
    -0.57342012296052226390,
    -0.13339969394389205970,
)
B1 = (4.6, 0.99287510353848683614, -0.13244556105279963884, 0.00172990000000000000)
B2 = (
    0.21169311829980944294,
    0.15822438471572672537,
    0.16563516943672741501,
    0.01078627793157924250,
)
B3 = (0.0, -0.13181061013830184015, -0.02027855540589259079, -0.00675951846863086359)


def taylor_forward(a: Tensor) -> tuple[Tensor, ...]:
    """Return 1 + A + ... + A^12 / 12!, followed by A^2, A^3 and C for the backward pass."""
    a2 = multiply(a, a)
    powers = a, a2, multiply(a2, a)
    b3 = _cubic(B3, powers)
    c = add_product(_cubic(B2, powers), b3, b3)
    return add_product(_cubic(B0, powers), _cubic(B1, powers).add_(c), c), *powers[1:], c


def taylor_backward(gradient: Tensor, a: Tensor, a2: Tensor, a3: Tensor, c: Tensor) -> Tensor:
    """Return the gradient of a skew-symmetric A, itself skew-symmetric, from that of the series."""
    # In reverse: the series is B_0 + (B_1 + C) C, C is B_2 + B_3 B_3, and each B is cubic in A.
    b1, b3 = _cubic(B1, (a, a2, a3)), _cubic(B3, (a, a2, a3))
    grad_b1 = multiply(gradient, c.mT)
    grad_c = add_product(grad_b1.clone(), b1.add_(c).mT, gradient)
    grad_b3 = add_product(multiply(grad_c, b3.mT), b3.mT, grad_c)
    grads = gradient, grad_b1, grad_c, grad_b3
    _, *coefficients = zip(B0, B1, B2, B3, strict=True)
    grad_a, grad_a2, grad_a3 = (_weighted_sum(numbers, grads) for numbers in coefficients)
    # A^3 = A^2 A, and A^T = -A.
    grad_a2.sub_(multiply(grad_a3, a))
    grad_a = add_product(grad_a, a2, grad_a3)
    # One product serves both factors of A^2 = A A, because only the skew part is returned.
    grad_a.sub_(multiply(grad_a2 + grad_a2.mT, a))
    return (grad_a - grad_a.mT) / 2


def _cubic(coefficients: Sequence[float], powers: Iterable[Tensor]) -> Tensor:
    constant, *higher = coefficients
    out = _weighted_sum(higher, powers)
    # ONNX cannot write to the view of a diagonal.
    if has_variable_sizes():
        return out + constant * torch.eye(out.shape[-1], device=out.device, dtype=out.dtype)
    out.diagonal(dim1=-2, dim2=-1).add_(constant)
    return out


def _weighted_sum(coefficients: Sequence[float], tensors: Iterable[Tensor]) -> Tensor:
    leading, *remaining = tensors
    out = leading * coefficients[0]
    for coefficient, tensor in zip(coefficients[1:], remaining, strict=True):
        out.add_(tensor, alpha=coefficient)
    return out


Steps = tuple[list[Tensor], Tensor | None]
"""Tensors for the backward pass, and the number of halvings; None if the list implies it."""


def skew_matrix_exp(skew: Tensor, times: Tensor) -> Tensor:
    """Return exp(sum_p t_p A_p) to the precision of the wider dtype.

    Args:
        skew: Skew-symmetric matrices A [P, K, b, b]; their gradient is skew-symmetric too.
        times: Coefficients t [T, P].

    Returns:
        Rotations [T, K, b, b].
    """
    dtype = torch.promote_types(skew.dtype, times.dtype)
    if not times.shape[0]:
        return skew.new_zeros((0, *skew.shape[1:]), dtype=dtype)
    if is_transformed(skew, times):
        return matrix_exp(torch.einsum("tp,pkij->tkij", times.to(dtype), skew.to(dtype)))
    return _Exponential.apply(skew.to(dtype), times.to(dtype))  # type: ignore[no-untyped-call]


def matrix_exp(matrices: Tensor) -> Tensor:
    """Return exp(A) of matrices [..., b, b] by torch, which has derivatives of all orders."""
    return torch.linalg.matrix_exp(matrices.double()).to(matrices.dtype)


def exponential_gradient(skew: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of skew-symmetric A, itself skew-symmetric, from that G of exp(A).

    It can be differentiated again. exp of (A^T G; 0 A^T) contains it (Najfeld and Havel 1995).
    """
    size = skew.shape[-1]
    top = torch.cat([skew.mT, gradient], dim=-1)
    bottom = torch.cat([torch.zeros_like(skew), skew.mT], dim=-1)
    inner = matrix_exp(torch.cat([top, bottom], dim=-2))[..., :size, size:]
    return (inner - inner.mT) / 2


class _Exponential(torch.autograd.Function):
    """A, t -> exp(sum_p t_p A_p).

    The steps are saved for the backward pass if matrices are small, and recomputed otherwise.
    """

    @staticmethod
    def forward(ctx: Any, skew: Tensor, times: Tensor) -> Tensor:
        parts, keeps = split_times(times, skew), is_small(skew)
        # A call of list[Tensor] is one that a compiler cannot trace.
        exponentials: list[Tensor] = []
        steps: list[Tensor] = []
        counts: list[int] = []
        for part in parts:
            exponential, tensors, _ = _exponentiate(combine_generators(skew, part))
            exponentials.append(exponential)
            if keeps:
                steps += tensors
                counts.append(len(tensors))
            del tensors
        ctx.counts = counts
        ctx.save_for_backward(skew, times, *steps)
        return join_parts(exponentials, parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        skew, times, *saved = ctx.saved_tensors
        if is_derived_again(gradient):
            sums = torch.einsum("tp,pkij->tkij", times, skew)
            # Under `is_grads_batched` torch has no rule for einsum.
            inner = exponential_gradient(sums, gradient).reshape(len(times), -1)  # [T, k b b]
            grad_times = inner @ skew.reshape(len(skew), -1).mT
            return (times.mT @ inner).reshape(skew.shape), grad_times
        parts = split_times(times, skew)
        gradients = gradient.split([len(part) for part in parts])
        ends = [*accumulate(ctx.counts, initial=0)] if ctx.counts else []
        grads_skew: list[Tensor] = []
        grads_times: list[Tensor] = []
        for number, (part, part_gradient) in enumerate(zip(parts, gradients, strict=True)):
            # The steps of a part were saved in one flat list, or are computed again.
            if ends:
                steps: Steps = (saved[ends[number] : ends[number + 1]], None)
            else:
                steps = _exponentiate(combine_generators(skew, part))[1:]
            inner = _backward(part_gradient.flatten(0, 1), *steps)
            # else it would live on while the next part is computed
            del steps
            grads_skew.append(generator_gradient(inner, part))
            if ctx.needs_input_grad[1]:
                grads_times.append(time_gradient(inner, skew))
        grad_times = torch.cat(grads_times) if grads_times else None
        return torch.stack(grads_skew).sum(0), grad_times


def _exponentiate(skew: Tensor) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Return exp(A) and the Steps: the scaled A, its series, and every matrix that was squared.

    `skew` is overwritten.
    """
    # exp(A) = exp(A / 2^s)^(2^s), where the series is exact for A / 2^s.
    halvings, count = _count_halvings(skew)
    scaled = skew.mul_(0.5**count if halvings is None else _power_of_half(halvings))
    power, *inner = taylor_forward(scaled)
    tensors = [scaled, *inner]
    for step in range(count):
        tensors.append(power)
        square = multiply(power, power)
        # With an unknown count, squarings beyond it are computed and discarded.
        power = square if halvings is None else torch.where(step < halvings, square, power)
    return power, tensors, halvings


def _backward(gradient: Tensor, tensors: list[Tensor], halvings: Tensor | None) -> Tensor:
    """Return the gradient of A from that of exp(A)."""
    # The gradient G of R R gives G R^T + R^T G for R, one square root after the other.
    scaled, a2, a3, c, *roots = tensors
    for step in reversed(range(len(roots))):
        root = roots[step].mT
        both = add_product(multiply(gradient, root), root, gradient)
        gradient = both if halvings is None else torch.where(step < halvings, both, gradient)
    scale = 0.5 ** len(roots) if halvings is None else _power_of_half(halvings)
    return taylor_backward(gradient, scaled, a2, a3, c).mul_(scale)


def _count_halvings(skew: Tensor) -> tuple[Tensor | None, int]:
    """Return the number of halvings, as a tensor if it cannot be read, and that of squarings."""
    # Up to this norm the series of degree 12 is exact to rounding.
    limit = 1.5 if skew.dtype == torch.float32 else 0.3
    # The singular values of a skew A come in pairs, so |A|_F / sqrt(2) bounds its spectral norm.
    norms = skew.square().sum((-2, -1)).max().div(2).sqrt()
    halvings = (norms / limit).clamp(min=1).log2().ceil()
    if skew.device.type == "cpu" and not torch.compiler.is_compiling():
        return None, int(halvings)
    return halvings, SQUARINGS


def _power_of_half(halvings: Tensor) -> Tensor:
    # A norm that needs more squarings gives NaN, which is noticed, in place of a wrong result.
    return torch.where(halvings > SQUARINGS, torch.nan, torch.exp2(-halvings))
