"""Planes of skew-symmetric matrices by a Jacobi method of fixed length, which no host waits for.

`torch.linalg.eigh` on a GPU ends in a read of its error codes by the host.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# Sweeps over all pairs of planes, for blocks of up to 8 channels and for wider ones: one more than
# any matrix of the tests needs, which are random, sparse, graded, singular or degenerate.
SWEEPS_OF_8, SWEEPS = 6, 11
# A block of more channels takes so many rounds that a wait for `eigh` costs less.
WIDEST = 16
# Share of the norm of S above which what couples two planes after all sweeps is not rounding.
COUPLED = 1e-10


def decompose_skew(skew: Tensor) -> tuple[Tensor, Tensor]:
    """Return frequencies w [..., b/2], ascending from 0, and basis Q [..., b, b] in float64.

    S = Q blockdiag(w (0 -1; 1 0)) Q^T. A skew 4 x 4 matrix is x -> u x + x v for imaginary
    quaternions u and v, so that a pair of planes is decoupled in closed form: by x -> p x q with
    the unit quaternions that turn u and v to the axis i. Pairs meet as in a round-robin tournament.

    Args:
        skew: Skew-symmetric matrices S [..., b, b], b even. If the sweeps do not suffice, the
            frequencies of a matrix are NaN.
    """
    channels = skew.shape[-1]
    # An empty plane makes the number of planes even; nothing couples it to another.
    s = F.pad(skew.double(), (0, -channels % 4) * 2)
    width = s.shape[-1]
    planes = width // 2
    left, right = _quaternion_units(s)
    projection = torch.cat([left[1:], right[1:]]).flatten(1).mT / 4  # [16, 6]
    # p x q for p and q of components 1, j and k: there is no turn about the axis i itself.
    factors = (torch.cat([factor[:1], factor[2:]]) for factor in (left, right))
    turns = torch.einsum("kij,ljm->klim", *factors).flatten(2).flatten(0, 1)  # [9, 16]
    seats = _next_seats(planes, s.device)
    diagonal = torch.eye(planes // 2, device=s.device, dtype=s.dtype)[:, None, :, None]
    rounding = torch.finfo(s.dtype).eps * torch.linalg.matrix_norm(s)[..., None, None]

    basis = torch.eye(width, device=s.device, dtype=s.dtype).expand_as(s)
    for _ in range((SWEEPS_OF_8 if channels <= 8 else SWEEPS) * (planes - 1)):
        pairs = s.unflatten(-1, (-1, 4)).unflatten(-3, (-1, 4)).diagonal(dim1=-4, dim2=-2)
        parts = pairs.movedim(-1, -3).flatten(-2) @ projection  # [..., pairs, 6]
        quaternions = _turn_to_axis(parts.unflatten(-1, (2, 3)), rounding)  # [..., pairs, 2, 3]
        p, q = quaternions.unbind(-2)
        blocks = (p[..., :, None] * q[..., None, :]).flatten(-2) @ turns
        blocks = blocks.unflatten(-1, (4, 4))[..., None, :] * diagonal  # [..., pairs, 4, pairs, 4]
        turn = blocks.flatten(-2).flatten(-3, -2).index_select(-1, seats)
        basis, s = basis @ turn, turn.mT @ s @ turn
    return _order_planes(s, basis, channels)


def _quaternion_units(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices of x -> e_k x and of x -> x e_k, [4, 4, 4] each, for e = 1, i, j, k."""
    # Numbers from the device itself: a table in Python would be copied to it, with a wait.
    index = torch.arange(4, device=like.device)
    k, row, column = index[:, None, None], index[:, None], index

    def sign(a: Tensor, b: Tensor) -> Tensor:
        # e_a e_b = sign(a, b) e_(a xor b)
        a1, a2, b1, b2 = a & 1, a >> 1, b & 1, b >> 1
        return 1 - 2 * ((a1 * b1 + a2 * b1 + a2 * b2) & 1)

    is_product = (k ^ column) == row
    return (is_product * sign(k, column)).to(like), (is_product * sign(column, k)).to(like)


def _next_seats(planes: int, device: torch.device) -> Tensor:
    """Return which channel moves to each place after a round, [2 planes]; neighbours form pairs."""
    # The first plane stays, and the others move on by one place in a ring.
    ring = [torch.arange(1, planes, 2, device=device)]
    ring.append(torch.arange(2, planes, 2, device=device).flip(0))
    places = torch.cat(ring)
    seats = torch.zeros(planes, device=device, dtype=torch.long)
    seats[places] = places.roll(1)
    return (2 * seats[:, None] + torch.arange(2, device=device)).flatten()


def _turn_to_axis(parts: Tensor, rounding: Tensor) -> Tensor:
    """Return the components 1, j, k of the smallest turns of vectors [..., 2, 3] to an axis +-i.

    The second vector is turned from the other side, so its quaternion is a conjugate.
    """
    norms = torch.linalg.vector_norm(parts, dim=-1)  # [..., pairs, 2]
    # A vector of rounding errors has no direction.
    is_zero = norms <= rounding
    unit = parts / norms.masked_fill(is_zero, 1)[..., None]
    # cos of half the angle, which is at most 90 degrees
    cosine = ((1 + unit[..., 0].abs()) / 2).sqrt().masked_fill(is_zero, 1)
    factor = torch.copysign(0.5 / cosine, unit[..., 0]).masked_fill(is_zero, 0)
    sides = 1 - 2 * torch.arange(2, device=parts.device)
    factor = factor * sides
    return torch.stack([cosine, -unit[..., 2] * factor, unit[..., 1] * factor], dim=-1)


def _order_planes(s: Tensor, basis: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Read frequencies [..., b/2] off S in its planes; make them positive and ascending."""
    plane = torch.arange(s.shape[-1], device=s.device) // 2
    coupling = torch.linalg.matrix_norm(s.masked_fill(plane == plane[:, None], 0))
    has_failed = coupling > COUPLED * torch.linalg.matrix_norm(s)

    frequencies = s.diagonal(-1, dim1=-2, dim2=-1)[..., :channels:2]
    basis = basis[..., :channels, :channels].unflatten(-1, (-1, 2))  # [..., b, b/2, 2]
    # A plane whose second axis is reversed rotates the other way.
    signs = torch.copysign(torch.ones_like(frequencies), frequencies)
    basis = torch.stack([basis[..., 0], basis[..., 1] * signs[..., None, :]], dim=-1)
    frequencies, order = frequencies.abs().sort(dim=-1)
    basis = basis.gather(-2, order[..., None, :, None].expand(basis.shape))
    return frequencies.masked_fill(has_failed[..., None], torch.nan), basis.flatten(-2)
