"""What an encoding does to an image, or to a frame of a clip, as panels that are chosen by what is measured."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.diagnostics.metrics import gram
from zoo.diagnostics.portrait.measures import nothing
from zoo.diagnostics.portrait.probe import Probe, added_to_scores
from zoo.diagnostics.portrait.turning import angles, commute, turns, waves
from zoo.reporting.panel import Heatmap, HeatmapGrid, Panel, Points, distinct, named, same

ADDED, ROW, COLUMN = "added by position", "row of patches", "column of patches"
SHOWN = 4  # maps of a mosaic
INPUT = "What each patch adds to its input, in four channels: waves along rows, along columns, or what training drew."
CENTRE = "What is added to the score of the marked patch with an equal one everywhere: it looks where the map is high."
CORNER = "The same for another patch: where its surroundings are not those of the centre, scores depend on where it stands."
HEADS = (
    "The same in some of the heads: heads that differ look near, far, along rows or along columns."
)
VECTORS = (
    "Each point is a pair of channels, drawn in both of its senses: it turns fastest along the direction from the middle to"
    " the point, the faster the farther out."
)
ANGLES = (
    "How far a step along each axis turns each pair of channels: turns that do not commute make scores depend on both places,"
    " and not on their offset alone."
)
PRODUCTS = (
    "What the marked patch has in common with each other in what they add to the input: it fades with distance where places"
    " are told apart by how near they are."
)


def panels(probe: Probe) -> Iterator[Panel]:
    """The panels that have something to show, the most telling first."""
    yield from _input(probe)
    rows, columns = probe.sizes[-2:]
    added = added_to_scores(probe.call(probe.alike(probe.contents())), 1.0).mean(0)  # [H, N, N]
    fields = added.unflatten(-1, (rows, columns)).unflatten(
        1, (rows, columns)
    )  # [H, row, column, row, column]
    centre, corner = (rows // 2, columns // 2), (rows // 5, columns // 5)
    yield _field("Scores of the centre with all", fields.mean(0), centre, CENTRE)
    if not _moves_along(fields, centre, corner):
        yield _field("Scores of a patch off the centre", fields.mean(0), corner, CORNER)
    yield from _spectrum(probe)
    if len(distinct(fields)) > 1:
        yield _heads("Scores of the centre, by head", fields[:, centre[0], centre[1]], centre)
    yield from _products(probe, centre)


def _input(probe: Probe) -> Iterator[Panel]:
    added = probe.entered(torch.zeros_like(probe.noise()))[0]  # [N, D]
    if nothing(added):
        return
    channels = torch.linspace(0, added.shape[1] - 1, SHOWN).long()
    yield HeatmapGrid(
        title="Added to an image, by channel",
        x=COLUMN,
        y=ROW,
        says=INPUT,
        unit="value",
        values=added[:, channels].mT.unflatten(-1, probe.sizes[-2:]),
        labels=tuple(f"channel {channel + 1}" for channel in channels),
    )


def _products(probe: Probe, patch: tuple[int, int]) -> Iterator[Panel]:
    """PE(i).PE(j) of what is added to the input, for one patch i."""
    added = probe.entered(torch.zeros_like(probe.noise()))[0]  # [N, D]
    if nothing(added):
        return
    products = (
        gram(added).unflatten(-1, probe.sizes[-2:]).unflatten(0, probe.sizes[-2:])
    )  # [row, column, row, column]
    yield Heatmap(
        title="Products of what is added to an image",
        x=COLUMN,
        y=ROW,
        says=PRODUCTS,
        values=products[patch],
        unit="product",
        signed=True,
        mark=patch,
    )


def _field(title: str, fields: Tensor, patch: tuple[int, int], says: str) -> Heatmap:
    return Heatmap(
        title=title,
        x=COLUMN,
        y=ROW,
        says=says,
        values=fields[patch],
        unit=ADDED,
        signed=True,
        mark=patch,
    )


def _heads(title: str, maps: Tensor, patch: tuple[int, int]) -> HeatmapGrid:
    heads = torch.linspace(0, len(maps) - 1, min(SHOWN, len(maps))).long()
    labels = tuple(f"head {head + 1}" for head in heads)
    return HeatmapGrid(
        title=title,
        x=COLUMN,
        y=ROW,
        says=HEADS,
        unit=ADDED,
        values=maps[heads],
        labels=labels,
        mark=patch,
    )


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
            title="Wave vectors of the turns",
            x="radians per column",
            y="radians per row",
            says=VECTORS,
            groups={head: (x, y) for head, (x, y) in named(both).items()},
            square=True,
        )
        return
    pairs = torch.arange(down.shape[-1] // 2) + 1
    groups = {
        "one row down": (pairs, angles(down).mean(0)),
        "one column across": (pairs, angles(across).mean(0)),
    }
    yield Points(
        title="Angles of turns, which do not commute",
        x="pair, sorted",
        y="radians per patch",
        says=ANGLES,
        groups=groups,
    )
