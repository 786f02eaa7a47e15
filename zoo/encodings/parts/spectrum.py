"""Skew-symmetric matrices brought to planes that turn: S = Q blockdiag(w (0 -1; 1 0)) Q^T."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import precise


def skew(generators: Tensor) -> Tensor:
    """G - G^T of matrices [..., b, b], in at least float32."""
    matrices = precise(generators)
    return matrices - matrices.mT


def spectrum(skew: Tensor) -> tuple[Tensor, Tensor]:
    """Frequencies w [..., b/2] and basis Q [..., b, b] of skew matrices [..., b, b]: S = Q blockdiag(w (0 -1; 1 0)) Q^T.

    Decomposed in float64. Where S is singular, its null space is split into planes by a fixed generic matrix first.
    """
    exact, block = skew.double(), skew.shape[-1]
    values, vectors = torch.linalg.eigh(1j * exact)
    size = values.abs().amax(-1, keepdim=True)
    null = values.abs() <= 1e-9 * size  # [..., b], all of it for S = 0
    if torch.compiler.is_compiling() or skew.device.type != "cpu" or null.any():  # asking a GPU would wait for it
        projector = ((vectors * null[..., None, :]) @ vectors.mH).real
        generic = torch.arange(block**2, device=exact.device, dtype=exact.dtype).square().sin().view(block, block)
        split = projector @ (generic - generic.mT) @ projector * (size + (size == 0))[..., None]
        vectors = torch.linalg.eigh(1j * (exact + split)).eigenvectors
    pairs = vectors[..., block // 2 :]  # those that turn forwards
    frequencies = (pairs.conj() * (1j * exact @ pairs)).sum(-2).real
    basis = torch.view_as_real(pairs).flatten(-2) * 2**0.5  # columns Re u_1, Im u_1, Re u_2, ...
    basis = 1.5 * basis - 0.5 * basis @ (basis.mT @ basis)  # orthogonal to rounding also where a frequency is nearly 0
    return frequencies.to(skew.dtype), basis.to(skew.dtype)


def weights(times: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """What a change of S contributes over t [1|B, N, H, m], for each two planes [1|B, N, H, m, b/2, b/2], complex.

    With the planes as complex numbers, dS sends z to a z + c conj(z). Of what has been turned by exp(t S), that adds
    t exp(i d) sin(d) / d over t, with d = t (w_r - w_s) / 2 for a, and d = t (w_r + w_s) / 2 for c.
    """
    t, rows, columns = times[..., None, None], frequencies[..., :, None] / 2, frequencies[..., None, :] / 2
    return _weight(t, t * (rows - columns)), _weight(t, t * (rows + columns))


def _weight(t: Tensor, d: Tensor) -> Tensor:
    sine = d.sin()
    size = torch.where(d == 0, t, t * sine / d)
    return torch.complex(size * d.cos(), size * sine)
