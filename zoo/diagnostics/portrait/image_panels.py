"""Panels that show the effect of an encoding on images, or on a frame of a clip.

The measurements decide which panels there are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from zoo.diagnostics.metrics import gram
from zoo.diagnostics.portrait.probe import (
    EncodingProbe,
    is_commuting,
    is_zero,
    measure_rotations,
    rotation_angles,
    subtract_base,
    wave_vectors,
)
from zoo.reporting.panel import (
    Heatmap,
    HeatmapGrid,
    Panel,
    Points,
    distinct,
    label_heads,
    name_head,
    same,
)

ADDED = "added by position"
COLUMN, ROW = "column of patches", "row of patches"
MAX_MAPS = 4  # largest number of heat maps in a panel
INPUT = (
    "The vector that is added to each patch, in four channels: waves along rows, along columns, or "
    "learned values."
)
CENTRE = (
    "What is added to the score of the marked patch with an equal patch at each position: it "
    "attends where the map is high."
)
CORNER = (
    "The same for another patch: if its surroundings differ from those of the centre, scores "
    "depend on absolute positions."
)
HEADS = (
    "The same for some of the heads: different heads attend near, far, along rows or along columns."
)
VECTORS = (
    "Each pair of channels is two opposite points: it rotates fastest along the direction from the "
    "origin to a point, and faster the farther out."
)
ANGLES = (
    "Angle by which a step along each axis rotates each pair of channels: if rotations do not "
    "commute, scores depend on both positions, not only on their offset."
)
PRODUCTS = (
    "Products of the vectors that are added to the marked patch and to each other patch: they fade "
    "with distance if near positions are similar."
)


def collect_image_panels(probe: EncodingProbe) -> Iterator[Panel]:
    """Yield the panels that are not trivial, the most informative first."""
    rows, columns = probe.sizes[-2:]
    centre, corner = (rows // 2, columns // 2), (rows // 5, columns // 5)
    added = probe.measure_input()  # [N, D]
    if not is_zero(added):
        yield _channels(added, (rows, columns))

    # Equal patches differ only by position, so all differences of scores are due to the encoding.
    equal = probe.repeat_content(probe.draw_contents())
    scores = subtract_base(probe.call(equal), 1.0).mean(0)  # [H, N, N]
    fields = scores.unflatten(-1, (rows, columns)).unflatten(1, (rows, columns))
    # over the heads that see a patch, since some encodings hide patches from heads
    means = fields.nanmean(0)
    yield _field("Scores of the centre with all", means, centre, CENTRE)
    if not _is_shift_invariant(fields, centre, corner):
        yield _field("Scores of a patch off the centre", means, corner, CORNER)
    yield from _rotation_panels(probe)
    if len(distinct(fields)) > 1:
        yield _heads("Scores of the centre, by head", fields[:, centre[0], centre[1]], centre)
    if not is_zero(added):
        products = gram(added).unflatten(-1, (rows, columns)).unflatten(0, (rows, columns))
        yield Heatmap(
            title="Products of what is added to an image",
            x=COLUMN,
            y=ROW,
            caption=PRODUCTS,
            values=products[centre],
            unit="product",
            signed=True,
            mark=centre,
        )


def _channels(added: Tensor, sizes: tuple[int, int]) -> HeatmapGrid:
    channels = torch.linspace(0, added.shape[1] - 1, MAX_MAPS).long()
    return HeatmapGrid(
        title="Added to an image, by channel",
        x=COLUMN,
        y=ROW,
        caption=INPUT,
        unit="value",
        values=added[:, channels].mT.unflatten(-1, sizes),
        labels=tuple(f"channel {channel + 1}" for channel in channels),
    )


def _field(title: str, fields: Tensor, patch: tuple[int, int], caption: str) -> Heatmap:
    values = fields[patch]
    return Heatmap(
        title=title,
        x=COLUMN,
        y=ROW,
        caption=caption,
        values=values,
        unit=ADDED,
        signed=True,
        mark=patch,
    )


def _heads(title: str, maps: Tensor, patch: tuple[int, int]) -> HeatmapGrid:
    heads = torch.linspace(0, len(maps) - 1, min(MAX_MAPS, len(maps))).long()
    return HeatmapGrid(
        title=title,
        x=COLUMN,
        y=ROW,
        caption=HEADS,
        unit=ADDED,
        values=maps[heads],
        labels=tuple(name_head(int(head)) for head in heads),
        mark=patch,
    )


def _is_shift_invariant(fields: Tensor, centre: tuple[int, int], corner: tuple[int, int]) -> bool:
    """Return whether two patches have the same scores with their surroundings.

    Args:
        fields: Scores [H, row, column, row, column] of each patch with each other.
        centre: Row and column of a patch.
        corner: Row and column of another patch, nearer to the edge.
    """
    reach = min(corner)
    around = []
    for row, column in (centre, corner):
        rows = slice(row - reach, row + reach + 1)
        columns = slice(column - reach, column + reach + 1)
        around.append(fields[:, row, column, rows, columns])
    return same(*around)


def _rotation_panels(probe: EncodingProbe) -> Iterator[Panel]:
    rotations = measure_rotations(probe, 2)
    if rotations is None:
        return
    # Commuting rotations share planes, in which each pair has a wave vector.
    down, across = rotations
    if is_commuting(down, across):
        rows, columns = wave_vectors(down, across)  # [H, K]
        both = distinct(torch.stack([columns, rows], dim=1))
        yield Points(
            title="Wave vectors of the rotations",
            x="radians per column",
            y="radians per row",
            caption=VECTORS,
            groups={head: (x, y) for head, (x, y) in label_heads(both).items()},
            square=True,
        )
        return
    pairs = torch.arange(down.shape[-1] // 2) + 1
    groups = {
        "one row down": (pairs, rotation_angles(down).mean(0)),
        "one column across": (pairs, rotation_angles(across).mean(0)),
    }
    yield Points(
        title="Angles of rotations that do not commute",
        x="pair, sorted",
        y="radians per patch",
        caption=ANGLES,
        groups=groups,
    )
