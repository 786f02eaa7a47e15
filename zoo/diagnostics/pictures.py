"""Attention as small pictures for TensorBoard, one cell for each head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.diagnostics.looking import Look

STOPS = ((0, 32, 76), (87, 92, 109), (166, 157, 117), (255, 234, 70))  # from dark blue to yellow, for everyone's eyes
MARK = (214, 40, 57)
QUERIES, SIDE, GAP = 6, 96, 2  # rows of a picture of a grid; pixels of a cell at least, and between cells


def attended(look: Look) -> Tensor:
    """What the queries of the first sample look at, uint8 [3, height, width].

    On a grid a row for each of a few queries and a column for each head, a cell being the grid, with a dot on the query; of a
    text a row of cells
    for the heads, in each of which a line is a query and a column a key. Each line is relative to its largest weight.
    """
    weights = look.weights[0].abs()  # [H, Q, M]
    weights = weights / weights.amax(-1, keepdim=True).clamp(min=1e-12)
    sizes = _grid(look)
    if len(sizes) == 1:
        return _joined([_picture(head) for head in weights], across=True)
    keys = slice(None) if look.terms.keys.placed is None else look.terms.keys.placed[0]
    chosen = torch.linspace(0, weights.shape[1] - 1, min(QUERIES, weights.shape[1])).long().unique()
    cells = weights[:, chosen][..., keys].unflatten(-1, sizes)  # [H, Q, (T,) rows, columns]
    own = (look.slots[chosen, None] == torch.arange(weights.shape[-1], device=weights.device))[:, keys].unflatten(
        -1, sizes
    )
    if len(sizes) == 3:  # frames side by side
        cells, own = (one.movedim(-3, -2).flatten(-2) for one in (cells, own))
    pairs = zip(cells.transpose(0, 1), own, strict=True)
    return _joined([_joined([_picture(cell, dot) for cell in row], across=True) for row, dot in pairs], across=False)


def _grid(look: Look) -> tuple[int, ...]:
    extent = look.terms.keys.extent
    if extent is None or look.terms.keys.index.shape[-1] == 1:
        return (look.weights.shape[-1],)
    return tuple(int(size) for size in extent[0, 0])


def _picture(values: Tensor, dot: Tensor | None = None) -> Tensor:
    """Values [rows, columns] from 0 to 1 as colours uint8 [3, height, width], each a square of pixels.

    Where `dot`, bool [rows, columns], the square has one of another colour within.
    """
    stops = torch.tensor(STOPS, dtype=torch.float32, device=values.device)
    at = values.float().nan_to_num().clamp(0, 1) * (len(stops) - 1)
    low = at.long().clamp(max=len(stops) - 2)
    colours = stops[low].lerp(stops[low + 1], (at - low)[..., None]).movedim(-1, 0)  # [3, rows, columns]
    scale = max(1, -(-SIDE // max(values.shape)))
    found = _magnified(colours.round().to(torch.uint8), scale)
    if dot is None:
        return found
    inner = torch.arange(scale, device=values.device)
    inside = (inner >= scale // 3) & (inner < scale - scale // 3)
    square = (inside[:, None] & inside).tile(values.shape)
    return torch.where(square & _magnified(dot, scale), stops.new_tensor(MARK).to(torch.uint8)[:, None, None], found)


def _magnified(cells: Tensor, scale: int) -> Tensor:
    return cells.repeat_interleave(scale, -2).repeat_interleave(scale, -1)


def _joined(cells: list[Tensor], across: bool) -> Tensor:
    """Cells of one size beside or below one another, with white between them."""
    pad = (0, GAP) if across else (0, 0, 0, GAP)
    return torch.cat([F.pad(cell, pad, value=255) for cell in cells], dim=2 if across else 1)
