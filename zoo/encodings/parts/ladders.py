"""Frequencies of pairs of channels: which of them turn with which axis, and how fast."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import Dims
from zoo.errors import Invalid


def check_pairs(dims: Dims) -> None:
    """Refuse head sizes whose pairs of channels cannot be dealt out to the axes."""
    divisor = 4 if dims.axes == 2 else 2
    if dims.head % divisor or dims.head < 2 * dims.axes:
        needed = f"divisible by {divisor} and at least {2 * dims.axes}"
        raise Invalid(
            "name", f"turning pairs of channels on {dims.axes} axes needs a head size {needed}, not {dims.head}"
        )


def per_axis(value: Tensor, there: Dims, here: Dims) -> Tensor | None:
    """A parameter [P, ...] of one set of axes for another: a clip's rows and columns are those of an image.

    What is new, its frames, is 0: a token turns by its place in the frame alone, as before, until training changes it.
    None where one of them is a text.
    """
    if there.axes == here.axes:
        return value
    if 1 in (there.axes, here.axes):
        return None
    return torch.cat([torch.zeros_like(value[:1]), value]) if there.axes < here.axes else value[1:]


def ladders(dims: Dims, base: float, like: Tensor, pairs: int | None = None) -> list[Tensor]:
    """The K/2 pairs, or fewer, dealt out to the P axes in nearly equal parts, as magnitudes base^(-2Pk/K).

    k is counted in each part.
    """
    parts = torch.arange(pairs or dims.head // 2, device=like.device).tensor_split(dims.axes)
    return [base ** (-2 * dims.axes / dims.head * (part - part[0]).to(like.dtype)) for part in parts]


def angles(pos: Tensor, waves: Tensor) -> Tensor:
    """Angles of wave vectors [P, G, pairs], each turning by sum_a p_a waves[a], at [1|B, N, P]: [1|B, G, N, pairs]."""
    parts = [pos[:, None, :, a, None] * waves[a, :, None] for a in range(len(waves))]
    return sum(parts[1:], parts[0])
