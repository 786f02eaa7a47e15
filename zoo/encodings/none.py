"""No position encoding (Haviv et al. 2022, arXiv:2203.16634; arXiv:2305.19466)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.attention import POINT_AXES, Encoding
from zoo.registry import register


@register
class None_(Encoding):  # noqa: N801 - None is Python's
    """scores = q k^T / sqrt(K)

    Only a causal mask reveals the order. Without one the model is permutation equivariant: it sees
    a set of tokens.
    """

    part = "nothing"
    reads_positions = False
    shift_invariant = True
    axes = (1, 2, 3)
    point_axes = POINT_AXES

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"linear": {}} if self.dims.axes > 1 else {}
