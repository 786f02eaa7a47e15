"""How far heads look, in tokens or patches."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import precise
from zoo.diagnostics.measures.rows import shares


def offsets(queries: Tensor, keys: Tensor) -> Tensor:
    """Place of the query less place of the key, [1|B, N, M, P], from indices [1|B, N, P] and [1|B, M, P]."""
    return precise(queries)[:, :, None] - precise(keys)[:, None]


def distance(weights: Tensor, offsets: Tensor, placed: Tensor | None = None) -> Tensor:
    """sum_j s_j |o_j|, [B, H, N]: Euclidean distance of what a query looks at (Dosovitskiy et al. 2020, arXiv:2010.11929).

    Shares s are of keys that have a place alone, `placed` bool [1|B, M]; NaN where these have no weight. Offsets o are
    [1|B, N, M, P]. Queries without a place are the caller's to leave out.
    """
    far = precise(offsets).norm(dim=-1, keepdim=True)
    return _expected(weights, far, placed)[..., 0]


def distance_by_axis(weights: Tensor, offsets: Tensor, placed: Tensor | None = None) -> Tensor:
    """sum_j s_j |o_jp| along each axis p, [B, H, N, P]; the rest is as in `distance`."""
    return _expected(weights, precise(offsets).abs(), placed)


def _expected(weights: Tensor, values: Tensor, placed: Tensor | None) -> Tensor:
    """Mean over placed keys of values [1|B, N, M, P], [B, H, N, P]."""
    if placed is not None:
        weights = weights.masked_fill(~placed[:, None, None], 0)
        values = values.masked_fill(~placed[:, None, :, None], 0)  # whatever stands there
    found = shares(weights)
    return torch.einsum("bhnm,bnmp->bhnp", found, values.to(found.dtype))


def profile(
    weights: Tensor, offsets: Tensor, visible: Tensor, placed: Tensor | None = None
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Mean weight at each offset over all visible pairs and samples: for each axis the offsets, and values [H, ...].

    An axis runs from -r to r, with r the farthest offset that is met along it; values are NaN at offsets that no visible
    pair has. A curve for a text, a map for an image, a volume for a clip. `visible` is bool [1|B, 1, N, M], as is `placed`,
    which `pairs.both` gives. Raises ValueError where offsets [1|B, N, M, P] are not whole numbers.
    """
    counted = (visible if placed is None else visible & placed).expand(len(weights), 1, *weights.shape[2:])[:, 0]
    met = offsets.expand(len(weights), *offsets.shape[1:])[counted]  # [pairs, P]
    if (met != met.round()).any():
        raise ValueError("a profile needs offsets of whole tokens or patches")
    reach = torch.cat([met.abs(), met.new_zeros(1, met.shape[-1])]).amax(0).long()  # [P]
    sizes = (2 * reach + 1).tolist()
    bins = _flat(met.long() + reach, sizes)
    found = precise(weights).movedim(1, -1)[counted]  # [pairs, H]
    cells = torch.Size(sizes).numel()
    sums = found.new_zeros(cells, found.shape[-1]).index_add_(0, bins, found)
    values = (sums.mT / torch.bincount(bins, minlength=cells)).unflatten(-1, sizes)
    return tuple(torch.arange(-r, r + 1, device=met.device) for r in reach.tolist()), values


def _flat(places: Tensor, sizes: list[int]) -> Tensor:
    """Places [pairs, P] in a grid as numbers of its cells, row by row."""
    flat = torch.zeros_like(places[:, 0])
    for axis, size in enumerate(sizes):
        flat = flat * size + places[:, axis]
    return flat
