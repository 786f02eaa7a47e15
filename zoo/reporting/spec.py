"""What a figure shows, as data: kinds of panels, painted as PNG files or drawn in a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Panel:
    """`x` and `y` name the axes, with their units; `says` is a sentence: what one should see."""

    title: str
    x: str
    y: str
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class Numbers(Panel):
    """A number for each of a few groups, by name: heads, or one for all. `x` names the groups, `y` the number and its unit."""

    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Curves(Panel):
    """Lines over `places`: one for each head, or one in all; `low` and `high` bound a band around the first."""

    places: Tensor  # [N]
    lines: Mapping[str, Tensor]  # {label: [N]}
    band: tuple[Tensor, Tensor] | None = None  # [N] each


@dataclass(frozen=True, kw_only=True)
class Map(Panel):
    """Values over two axes, NaN where there is none. `unit` names the values; `corner` is the row and the column of the first.

    Of a map over offsets the corner is negative: that of a grid of 8 by 8 is (-7, -7).
    """

    values: Tensor  # [rows, columns]
    unit: str
    signed: bool  # whether 0 lies in the middle of the colours
    mark: tuple[int, int] | None = None  # a row and a column
    corner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Mosaic(Panel):
    """Small maps side by side on one scale, each with a label. `mark` and `corner` are those of a map."""

    values: Tensor  # [maps, rows, columns]
    labels: tuple[str, ...]
    unit: str
    mark: tuple[int, int] | None = None
    corner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Points(Panel):
    """Points by group; `steep` draws the y axis logarithmically, `square` both axes alike around 0."""

    groups: Mapping[str, tuple[Tensor, Tensor]]  # {label: (x, y)}
    steep: bool = False
    square: bool = False
    note: str = ""


def same(first: Tensor, second: Tensor) -> bool:
    """Equal up to rounding, NaN where the other is."""
    return torch.allclose(first, second.expand_as(first), atol=1e-6, rtol=1e-6, equal_nan=True)


def distinct(values: Tensor) -> Tensor:
    """Heads [H, ...] if they differ, else the first alone, which stands for all."""
    return values[:1] if same(values, values[:1]) else values


def named(values: Tensor, kind: str = "head") -> dict[str, Tensor]:
    """Heads [H, ...] by name, or one that stands for all."""
    if len(values) == 1:
        return {"all heads": values[0]}
    return {f"{kind} {number}": value for number, value in enumerate(values, start=1)}
