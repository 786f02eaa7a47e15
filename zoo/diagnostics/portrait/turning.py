"""How queries and keys are turned, found out by turning unit vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.diagnostics.portrait.probe import Probe

TOLERANCE = 1e-6


def transfer(probe: Probe, steps: Tensor) -> Tensor | None:
    """Matrices T [S, H, K, K] for steps [S, P] of the index: q at the step meets k at the origin with the product k.(T q).

    None where heads do not keep their size, or are not turned by a matrix, as where the angle depends on the token.
    """
    size, heads = probe.dims.head_dim, probe.dims.heads
    unit, content = torch.eye(size, dtype=torch.float64), probe.contents(1)
    x = torch.cat([torch.zeros_like(content), unit, content]).repeat(1, heads)[
        :, None
    ]  # [1 + K + 1, 1, D]
    index = torch.cat([torch.zeros_like(steps[:1]), steps])
    call = probe.call(x.expand(-1, len(index), -1), index)
    if call.q.shape[-1] != size or call.k.shape[-1] != size:
        return None
    q, k = (one[1:] - one[:1] for one in (call.q, call.k))  # [K + 1, H, 1 + S, K]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    if not all(
        torch.allclose(torch.einsum("ihsd,i->hsd", one[:-1], content[0]), one[-1]) for one in (q, k)
    ):
        return None
    return torch.einsum("jhd,ihsd->shji", k[:-1, :, 0], q[:-1, :, 1:])


def unit_steps(probe: Probe, axes: int) -> Tensor:
    """Steps [2 P, P]: one token along each of the last `axes` axes, then two."""
    unit = torch.eye(probe.dims.axes, dtype=torch.float64)[-axes:]
    return torch.cat([unit, 2 * unit])


def turns(probe: Probe, axes: int) -> Tensor | None:
    """T [P, H, K, K] of one step along each of the last `axes` axes.

    None where nothing turns, or where two steps are not one step twice.
    """
    found = transfer(probe, unit_steps(probe, axes))
    if found is None:
        return None
    once, twice = found.chunk(2)
    still = torch.allclose(
        once, torch.eye(once.shape[-1], dtype=once.dtype).expand_as(once), atol=TOLERANCE
    )
    return once if not still and torch.allclose(once @ once, twice, atol=TOLERANCE) else None


def angles(turn: Tensor) -> Tensor:
    """Angles [.., K/2] in radians, falling, of turns [.., K, K]."""
    found = torch.linalg.eigvals(turn).angle().abs().sort(dim=-1, descending=True).values
    return found[..., ::2]


def commute(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first @ second, second @ first, atol=TOLERANCE)


def waves(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Angles [.., K] of two commuting turns in the planes that they share, each plane with both of its senses."""
    vectors = torch.linalg.eig(first + 0.618 * second).eigenvectors
    inverse = torch.linalg.inv(vectors)

    def along(turn: Tensor) -> Tensor:
        return (inverse @ turn.to(vectors.dtype) @ vectors).diagonal(dim1=-2, dim2=-1).angle()

    return along(first), along(second)
