"""Functional interpolation for relative positions (FIRE; Li et al. 2023, arXiv:2310.04418)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import Dims, Encoding, Lookup, Terms, precise
from zoo.encodings.parts.linear import linear
from zoo.registry import Between, register


@register
class FIRE(Encoding):
    """scores + f(psi(|p_i - p_j|) / psi(max(p_i, tau)))_h, psi(x) = log(|c x| + 1), tau = |threshold_scale threshold|

    f is Linear, ReLU, Linear with `hidden` units and an output per head. Distances are shares of what the query looks back
    on, so scores depend on where it stands.
    """

    shared = False
    row_constant = ("net.2.bias",)
    axes_because = (
        "a distance is a share of what the query looks back on, which a grid does not have; alibi and t5 take grids"
    )

    def __init__(
        self, dims: Dims, *, hidden: Annotated[int, Between(1)] = 32, initial_c: float = 0.1,
        threshold: Annotated[float, Between(0)] = 512.0,
    ) -> None:  # fmt: skip
        super().__init__(dims)
        self.threshold = threshold
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, dims.heads))
        self.c = nn.Parameter(torch.tensor(initial_c))
        self.threshold_scale = nn.Parameter(torch.ones(()))

    def terms(self, terms: Terms) -> Terms:
        tau = (precise(self.threshold_scale) * self.threshold).abs()
        reach = self._psi(torch.maximum(terms.queries.pos[:, None], tau)) + 1e-6  # [1|B, 1, N, 1]
        distance = terms.grid(lambda b, h, i, j: terms.distance(b, i, j))  # [1|B, 1, N, M]
        hidden = linear(self.net[0], (self._psi(distance) / reach)[..., None]).relu()
        table = linear(self.net[2], hidden)[:, 0].movedim(-1, 1)  # [1|B, H, N, M]
        return terms.add_bias(Lookup(table, lambda b, h, i, j: j))

    def _psi(self, x: Tensor) -> Tensor:
        return (precise(self.c) * x).abs().log1p()
