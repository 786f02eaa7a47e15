"""Skew-symmetric matrices brought to planes that turn: exp(t S) = Q rot(t w) Q^T, with a derivative that is exact everywhere.

A score contains Q^T Q = 1 between a query and a key, so the left Q is never applied. The derivative of Q itself is
infinite where eigenvalues coincide, that of the exponential is not: it is taken directly (Najfeld and Havel 1995), token
by token in the planes, so that a matrix of zeros or of low rank is as good as any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.encodings.rotation import circle, turn


def turn_by_exponential(x: Tensor, skew: Tensor, times: Tensor, spectrum: tuple[Tensor, Tensor]) -> Tensor:
    """Q^T exp(t S) x for x [B, H, N, K], block by block. skew [H, m, b, b], times [1|B, H, N, m], `spectrum` of skew.

    Differentiable in x, skew and times, provided that all that is made of the result are products of two such results.
    """
    frequencies, basis = spectrum
    table = circle((times[..., None] * frequencies[:, None]).flatten(-2))  # [1|B, H, N, K/2, 2]
    return turn(_ToPlanes.apply(x, skew, times, frequencies, basis), table)  # type: ignore[no-untyped-call]


@torch.no_grad()
def spectrum(skew: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies w [..., b/2] and basis Q [..., b, b] of skew matrices [..., b, b]: S = Q blockdiag(w (0 -1; 1 0)) Q^T.

    Decomposed in float64. Where S is singular, its null space is split into planes by a fixed generic matrix first.
    """
    exact = skew.double()
    values, vectors = torch.linalg.eigh(1j * exact)
    size = values.abs().amax(-1, keepdim=True)
    null = (values.abs() <= 1e-9 * size).to(vectors.dtype)  # [..., b], all of it for S = 0
    projector = ((vectors * null[..., None, :]) @ vectors.mH).real
    block = exact.shape[-1]
    generic = torch.arange(block**2, device=exact.device, dtype=exact.dtype).square().sin().view(block, block)
    split = projector @ (generic - generic.mT) @ projector * (size + (size == 0))[..., None]
    pairs = torch.linalg.eigh(1j * (exact + split)).eigenvectors[..., block // 2 :]  # those that turn forwards
    frequencies = (pairs.conj() * (1j * exact @ pairs)).sum(-2).real
    basis = torch.view_as_real(pairs).flatten(-2) * 2**0.5  # columns Re u_1, Im u_1, Re u_2, ...
    return frequencies.to(skew.dtype), basis.to(skew.dtype)


class _ToPlanes(torch.autograd.Function):
    """x -> Q^T x, whose gradient to S is that of Q^T exp(t S) x once the angles t w are held fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, skew: Tensor, times: Tensor, frequencies: Tensor, basis: Tensor) -> Tensor:
        planes = _product(x, _diagonal(basis))  # [B, H, N, K]
        ctx.save_for_backward(planes, times, frequencies, basis)
        return planes

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        planes, times, frequencies, basis = ctx.saved_tensors
        to_x = _product(gradient, _diagonal(basis).mT) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return to_x, None, None, None, None
        blocks = (basis.shape[1], basis.shape[2])
        g, x = (one.to(basis.dtype).unflatten(-1, blocks) for one in (gradient, planes))
        if times.shape[0] == 1:  # samples are summed at once; tokens before heads is how they lie in memory
            products = torch.einsum("bhnmi,bhnmj->nhmij", g, x)[None]
        else:
            products = torch.einsum("bhnmi,bhnmj->bnhmij", g, x)
        inner = _derivative(products, times.transpose(1, 2), frequencies)
        return to_x, basis @ inner @ basis.mT, None, None, None


def _derivative(products: Tensor, times: Tensor, frequencies: Tensor) -> Tensor:
    """Gradient [H, m, b, b] to Q^T S Q from products [1|B, N, H, m, b, b] of gradients and states in the planes.

    With planes as complex numbers, dS sends z to a z + c conj(z); over t it contributes
    t exp(-i d) sin(d) / d, d = t (w_r -+ w_s) / 2 for a and c.
    """
    rows, columns = frequencies[..., :, None], frequencies[..., None, :]  # [H, m, b/2, 1], [H, m, 1, b/2]
    t = times[..., None, None]  # [1|B, N, H, m, 1, 1]
    (xx, xy), (yx, yy) = (half.unbind(-1) for half in products.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).unbind(-3))
    straight = _summed(xx + yy, xy - yx, t, t * (rows - columns) / 2)
    crossed = _summed(xx - yy, -xy - yx, t, t * (rows + columns) / 2)
    (a, b), (c, d) = straight, crossed
    top, bottom = torch.stack([a + c, b - d], dim=-1), torch.stack([-b - d, a - c], dim=-1)  # [H, m, b/2, b/2, 2]
    return torch.stack([top, bottom], dim=-3).flatten(-2).flatten(-3, -2) / 2


def _summed(real: Tensor, imaginary: Tensor, t: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over samples and tokens of (real + i imaginary) t exp(-i d) sin(d) / d, as two tensors [H, m, b/2, b/2]."""
    cosine, sine = t * torch.sinc(2 * d / torch.pi), -t * d * torch.sinc(d / torch.pi) ** 2
    return (real * cosine - imaginary * sine).sum((0, 1)), (real * sine + imaginary * cosine).sum((0, 1))


def _product(x: Tensor, matrices: Tensor) -> Tensor:
    """x [B, H, N, K] times a matrix [H, K, K] per head; samples and tokens are one dimension, so that nothing is copied."""
    return torch.einsum("bhnk,hkl->bhnl", x, matrices.to(x.dtype))


def _diagonal(blocks: Tensor) -> Tensor:
    """Blocks [H, m, b, b] on the diagonal of [H, K, K]."""
    one = torch.eye(blocks.shape[1], device=blocks.device, dtype=blocks.dtype)
    return torch.einsum("hmij,mn->hminj", blocks, one).flatten(3).flatten(1, 2)
