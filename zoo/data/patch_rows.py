"""Rows of patches of images of any aspect ratio: padded, or several images in a row (NaViT).

The layout is that of Patch n' Pack (Dehghani et al. 2023, arXiv:2307.06304): a budget of patches
for an image, and images that share a row as documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.errors import OptionError


class PatchRows(NamedTuple):
    """Which patches of a batch of images [B, C, H, W] are the tokens of which row."""

    places: Tensor
    """Numbers of patches, int64 [R, L], -1 for padding. They count the h x w patches of the first
    image row by row, padding included, then those of the next image."""
    members: Tensor | None = None
    """Numbers of the images in each row, int64 [R, S], -1 for none. None: a row for each image."""


def check_aspect(keeps: bool, pack: int | None) -> None:
    """Check that only images that keep their shape share rows.

    Args:
        keeps: Whether images keep their shape.
        pack: Number of tokens of a row that several images share.

    Raises:
        OptionError: Images of one size have rows of their own.
    """
    if pack is not None and not keeps:
        message = "images of one size fill their rows"
        raise OptionError("pack", f"{message}; set aspect to keep, or leave it out")


def fit_grid(height: float, width: float, patches: int) -> tuple[int, int]:
    """Return the grid of an image that keeps its shape as nearly as a budget of patches allows.

    Args:
        height: Height of the image in any unit.
        width: Width in the same unit.
        patches: Largest number of patches.

    Returns:
        Numbers of rows and columns of patches, at least 1 each.
    """
    scale = math.sqrt(patches / (height * width))
    # The sides in patches, not rounded: their product is the budget.
    exact = height * scale, width * scale
    floors = [min(max(int(side), 1), patches) for side in exact]
    # an axis of less than one patch takes one, and the other axis what is left
    rows, columns = (min(side, patches // opposite) for side, opposite in (floors, floors[::-1]))
    # one more row or column where the budget has room, for the side that lost the larger share
    for axis in sorted((0, 1), key=lambda axis: floors[axis] / exact[axis]):
        grown = (rows + 1, columns) if axis == 0 else (rows, columns + 1)
        if exact[axis] - floors[axis] > 0.5 and math.prod(grown) <= patches:
            rows, columns = grown
    return rows, columns


def place_patches(
    grids: Sequence[tuple[int, int]],
    columns: int | None = None,
    rows: int | None = None,
    *,
    pack: int | None = None,
) -> PatchRows:
    """Lay out the patches of images, each in the upper left corner of a batch [B, C, H, W].

    Args:
        grids: Rows and columns of patches of each image.
        columns: Columns of patches of the batch; those of the widest image by default.
        rows: Rows of patches of the batch; those of the highest image by default.
        pack: Number of tokens of a row that several images share. None: a row for each image.

    Returns:
        The tokens of each row and, with `pack`, the images in it: arguments of `vit` after the
        images.

    Raises:
        OptionError: An image has more patches than a row.
    """
    columns = columns or max(grid[1] for grid in grids)
    rows = rows or max(grid[0] for grid in grids)
    places: list[list[int]] = []
    members: list[list[int]] = []
    for number, (own_rows, own_columns) in enumerate(grids):
        count = own_rows * own_columns
        if pack is not None and count > pack:
            message = f"an image of {own_rows} x {own_columns} patches does not fit a row of {pack}"
            raise OptionError("pack", f"{message}; write {count} or more")
        # the first row with room, in the order of the images
        room = (row for row, held in enumerate(places) if pack and len(held) + count <= pack)
        row = next(room, len(places))
        if row == len(places):
            places.append([])
            members.append([])
        # Padding of the batch has numbers too, which no row contains.
        corner = number * rows * columns
        places[row] += [
            corner + y * columns + x for y in range(own_rows) for x in range(own_columns)
        ]
        members[row].append(number)
    laid_out = _pad(places)
    return PatchRows(laid_out, None if pack is None else _pad(members))


def find_covered(places: Tensor, batch: int, grid: Sequence[int]) -> Tensor:
    """Return which patches of a batch of images are no padding, bool [B, h, w].

    Args:
        places: As of `PatchRows`.
        batch: Number of images B.
        grid: Rows h and columns w of patches of the batch.
    """
    # What padding marks lies behind the last patch.
    count = batch * math.prod(grid)
    covered = torch.zeros(count + 1, dtype=torch.bool, device=places.device)
    covered = covered.index_fill(0, torch.where(places < 0, count, places).flatten(), True)
    return covered[:-1].view(batch, *grid)


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=-1)
