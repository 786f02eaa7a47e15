"""Which pairs of a query and a key are meant: bool [1|B, 1, 1|N, M], to be joined with `&` and `|`."""

from __future__ import annotations

import torch
from torch import Tensor


def first(weights: Tensor, same: Tensor | None = None) -> Tensor:
    """The first key of a query's document, where heads that need nothing rest (Xiao et al. 2023, arXiv:2309.17453).

    [1|B, 1, 1|N, M]. `same`, bool [1|B, N, M], tells the keys of each query's document; by default there is one.
    """
    if same is None:
        same = weights.new_ones(1, 1, weights.shape[-1]).bool()
    return (same & (same.cumsum(-1) == 1))[:, None]


def unplaced(placed: Tensor) -> Tensor:
    """Keys without a place, [1|B, 1, 1, M]; `placed` is bool [1|B, M]."""
    return ~placed[:, None, None]


def own(slots: Tensor, keys: int) -> Tensor:
    """Each query's own key, [1, 1, N, M]; slots int [N] of the queries among so many keys."""
    return (slots[:, None] == torch.arange(keys, device=slots.device))[None, None]


def both(queries: Tensor, keys: Tensor) -> Tensor:
    """Pairs of a query and a key that both have a place, [1|B, 1, N, M], from bool [1|B, N] and [1|B, M]."""
    return queries[:, None, :, None] & keys[:, None, None]


def near(offsets: Tensor, window: float, placed: Tensor | None = None) -> Tensor:
    """Pairs at most `window` apart along every axis, [1|B, 1, N, M].

    Offsets are [1|B, N, M, P]; `placed`, as `both` gives it, leaves out pairs without an offset.
    """
    close = (offsets.abs() <= window).all(-1)[:, None]
    return close if placed is None else close & placed
