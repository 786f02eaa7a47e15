"""Learned positions: x + table[p], row-major on a grid."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.attention.encoding import Encoding


def read_rows(encoding: Encoding, pos: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return [N, D] for whole coordinates [N, P] on a grid of these sizes."""
    rows = []
    for place in pos.long().tolist():
        row = 0
        for index, size in zip(place, sizes, strict=True):
            row = row * size + index
        rows.append(encoding.table[row])
    return torch.stack(rows)
