"""Attention as small pictures for TensorBoard, one cell for each head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.diagnostics.looking import Look

STOPS = ((0, 32, 76), (87, 92, 109), (166, 157, 117), (255, 234, 70))  # from dark blue to yellow, for everyone's eyes
MARK = (214, 40, 57)
QUERIES, SIDE, GAP = 6, 96, 2  # rows of a picture of a grid; pixels of a cell at least, and between cells
COLUMNS, ACROSS = 192, 4  # pixels of a line of text at most, and cells beside one another


def attended(look: Look) -> Tensor:
    """What the queries of the first sample look at, uint8 [3, height, width].

    On a grid a row for each of a few queries and a column for each head, a cell being the grid, with a dot on the query; of a
    text a cell for each head, in which a line is a query and a column a key, or the largest of some keys where there are many.
    Each line is relative to its largest weight.
    """
    weights = look.weights[0].abs().float().cpu()  # [H, Q, M]
    weights = weights / weights.amax(-1, keepdim=True).clamp(min=1e-12)
    if look.terms.keys.index.shape[-1] == 1:
        return _lines(weights)
    keys = look.grid[1][0].cpu()
    sizes = _sizes(look, int(keys.sum()))
    chosen = torch.linspace(0, weights.shape[1] - 1, min(QUERIES, weights.shape[1])).long().unique()
    cells = weights[:, chosen][..., keys].unflatten(-1, sizes).transpose(0, 1)  # [Q, H, (T,) rows, columns]
    own = (look.slots.cpu()[chosen, None] == torch.arange(weights.shape[-1]))[:, keys].unflatten(-1, sizes)
    if len(sizes) == 3:  # frames side by side
        cells, own = (one.movedim(-3, -2).flatten(-2) for one in (cells, own))
    return _mosaic(cells, own)


def _sizes(look: Look, count: int) -> tuple[int, ...]:
    """Of the grid; of one that nobody told, a single row."""
    extent = look.terms.keys.extent
    return (1, count) if extent is None else tuple(int(size) for size in extent[0, 0])


def _lines(weights: Tensor) -> Tensor:
    """Weights [H, Q, M] of a text as one picture: few heads beside one another, lines as high as the cell is to be."""
    heads, queries, keys = weights.shape
    weights = F.adaptive_max_pool1d(weights, min(keys, COLUMNS))
    weights = weights.repeat_interleave(max(1, SIDE // queries // max(1, SIDE // weights.shape[-1])), 1)
    across = min(heads, ACROSS)
    cells = F.pad(weights, (0, 0, 0, 0, 0, -heads % across)).unflatten(0, (-1, across))
    return _mosaic(cells, torch.zeros(len(cells), *cells.shape[-2:], dtype=torch.bool))


def _mosaic(cells: Tensor, dots: Tensor) -> Tensor:
    """Cells [down, across, rows, columns] from 0 to 1 as one picture uint8 [3, height, width].

    A value is a square of pixels, with a smaller one of another colour within where `dots`, bool [down, rows, columns].
    """
    scale = max(1, SIDE // cells.shape[-1])
    inner = torch.arange(scale)
    inside = (inner >= scale // 3) & (inner < scale - scale // 3)
    marked = _magnified(dots, scale) & (inside[:, None] & inside).tile(dots.shape[-2:])
    mark = torch.tensor(MARK, dtype=torch.uint8)[:, None, None]
    pixels = torch.where(marked[:, None, None], mark, _magnified(_coloured(cells), scale))
    pixels = F.pad(pixels, (0, GAP, 0, GAP), value=255)  # [down, across, 3, height, width]
    return pixels.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)


def _coloured(values: Tensor) -> Tensor:
    """Values [.., rows, columns] from 0 to 1 as colours uint8 [.., 3, rows, columns]."""
    stops = torch.tensor(STOPS, dtype=torch.float32)
    at = values.float().nan_to_num().clamp(0, 1) * (len(stops) - 1)
    low = at.long().clamp(max=len(stops) - 2)
    return stops[low].lerp(stops[low + 1], (at - low)[..., None]).round().to(torch.uint8).movedim(-1, -3)


def _magnified(cells: Tensor, scale: int) -> Tensor:
    return cells.repeat_interleave(scale, -2).repeat_interleave(scale, -1)
