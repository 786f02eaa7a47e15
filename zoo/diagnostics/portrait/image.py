"""What an encoding does to an image, or to a frame of a clip, as panels that are chosen by what is measured."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.diagnostics.portrait.measures import nothing
from zoo.diagnostics.portrait.probe import Probe, added_to_scores
from zoo.diagnostics.portrait.turning import angles, commute, turns, waves
from zoo.panels import Map, Mosaic, Panel, Points, distinct, named, same

ADDED, ROW, COLUMN = "added by position", "row of patches", "column of patches"
SHOWN = 4  # maps of a mosaic


def panels(probe: Probe) -> Iterator[Panel]:
    """The panels that have something to show, the most telling first."""
    yield from _input(probe)
    rows, columns = probe.sizes[-2:]
    added = added_to_scores(probe.terms(probe.alike(probe.contents())), 1.0).mean(0)  # [H, N, N]
    fields = added.unflatten(-1, (rows, columns)).unflatten(1, (rows, columns))  # [H, row, column, row, column]
    centre, corner = (rows // 2, columns // 2), (rows // 5, columns // 5)
    yield _field("Scores of the centre with all", fields.mean(0), centre)
    if not _moves_along(fields, centre, corner):
        yield _field("Scores of a patch off the centre", fields.mean(0), corner)
    yield from _spectrum(probe)
    if len(distinct(fields)) > 1:
        yield _heads("Scores of the centre, by head", fields[:, centre[0], centre[1]], centre)


def _input(probe: Probe) -> Iterator[Panel]:
    added = probe.entered(torch.zeros_like(probe.noise()))[0]  # [N, D]
    if nothing(added):
        return
    channels = torch.linspace(0, added.shape[1] - 1, SHOWN).long()
    yield Mosaic(
        title="Added to an image, by channel", x=COLUMN, y=ROW, unit="value",
        values=added[:, channels].mT.unflatten(-1, probe.sizes[-2:]),
        labels=tuple(f"channel {channel + 1}" for channel in channels),
    )  # fmt: skip


def _field(title: str, fields: Tensor, patch: tuple[int, int]) -> Map:
    return Map(title=title, x=COLUMN, y=ROW, values=fields[patch], unit=ADDED, signed=True, mark=patch)


def _heads(title: str, maps: Tensor, patch: tuple[int, int]) -> Mosaic:
    heads = torch.linspace(0, len(maps) - 1, min(SHOWN, len(maps))).long()
    labels = tuple(f"head {head + 1}" for head in heads)
    return Mosaic(title=title, x=COLUMN, y=ROW, unit=ADDED, values=maps[heads], labels=labels, mark=patch)


def _moves_along(fields: Tensor, centre: tuple[int, int], corner: tuple[int, int]) -> bool:
    """Whether what a patch sees around it is the same wherever it is."""
    reach = min(corner)
    here, there = (
        fields[:, row, column, row - reach : row + reach + 1, column - reach : column + reach + 1]
        for row, column in (centre, corner)
    )
    return same(here, there)


def _spectrum(probe: Probe) -> Iterator[Panel]:
    turn = turns(probe, 2)
    if turn is None:
        return
    down, across = turn
    if commute(down, across):
        rows, columns = waves(down, across)  # [H, K]
        both = distinct(torch.stack([columns, rows], dim=1))
        yield Points(
            title="Wave vectors of the turns", x="radians per column", y="radians per row",
            groups={head: (x, y) for head, (x, y) in named(both).items()}, square=True,
        )  # fmt: skip
        return
    pairs = torch.arange(down.shape[-1] // 2) + 1
    groups = {
        "one row down": (pairs, angles(down).mean(0)),
        "one column across": (pairs, angles(across).mean(0)),
    }
    yield Points(
        title="Angles of turns, which do not commute", x="pair, sorted", y="radians per patch", groups=groups
    )  # fmt: skip
