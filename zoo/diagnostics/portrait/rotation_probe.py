"""How an encoding rotates queries and keys, found by rotating unit vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.diagnostics.portrait.probe import EncodingProbe

TOLERANCE = 1e-6


def measure_rotations(probe: EncodingProbe, axes: int) -> Tensor | None:
    """Return rotations [P, H, K, K] by one step along each of the last `axes` axes.

    None is returned if nothing is rotated, or if two steps are not one step twice.
    """
    unit = torch.eye(probe.dims.axes, dtype=torch.float64)[-axes:]
    found = measure_transfer(probe, torch.cat([unit, 2 * unit]))
    if found is None:
        return None
    once, twice = found.chunk(2)
    identity = torch.eye(once.shape[-1], dtype=once.dtype).expand_as(once)
    is_rotated = not torch.allclose(once, identity, atol=TOLERANCE)
    is_group = torch.allclose(once @ once, twice, atol=TOLERANCE)
    return once if is_rotated and is_group else None


def measure_transfer(probe: EncodingProbe, steps: Tensor) -> Tensor | None:
    """Return matrices T [S, H, K, K] for steps [S, P] of the index.

    A query q at the step meets a key k at the origin with the score k.(T q). None is returned if
    heads change their size, or if no matrix does it, as when an angle depends on the token.
    """
    size, heads = probe.dims.head_dim, probe.dims.heads
    unit, content = torch.eye(size, dtype=torch.float64), probe.draw_contents(1)
    vectors = torch.cat([torch.zeros_like(content), unit, content])
    x = vectors.repeat(1, heads)[:, None]  # [1 + K + 1, 1, D]
    index = torch.cat([torch.zeros_like(steps[:1]), steps])
    call = probe.call(x.expand(-1, len(index), -1), index)
    if call.q.shape[-1] != size or call.k.shape[-1] != size:
        return None

    q, k = (one[1:] - one[:1] for one in (call.q, call.k))  # [K + 1, H, 1 + S, K]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    for one in (q, k):
        expected = torch.einsum("ihsd,i->hsd", one[:-1], content[0])
        if not torch.allclose(expected, one[-1]):
            return None
    return torch.einsum("jhd,ihsd->shji", k[:-1, :, 0], q[:-1, :, 1:])


def rotation_angles(rotation: Tensor) -> Tensor:
    """Return angles [..., K/2] in radians, in falling order, of rotations [..., K, K]."""
    found = torch.linalg.eigvals(rotation).angle().abs().sort(dim=-1, descending=True).values
    return found[..., ::2]


def is_commuting(first: Tensor, second: Tensor) -> bool:
    """Tell whether the generators of the rotations commute."""
    return torch.allclose(first @ second, second @ first, atol=TOLERANCE)


def wave_vectors(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return angles [..., K] of two commuting rotations in the planes that they share.

    Each plane is there with both of its senses.
    """
    vectors = torch.linalg.eig(first + 0.618 * second).eigenvectors
    inverse = torch.linalg.inv(vectors)

    def angles(rotation: Tensor) -> Tensor:
        return (inverse @ rotation.to(vectors.dtype) @ vectors).diagonal(dim1=-2, dim2=-1).angle()

    return angles(first), angles(second)
