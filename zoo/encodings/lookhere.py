"""Heads that look in different directions (LookHere; Fuller et al. 2024, arXiv:2405.13985)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding
from zoo.encodings.common.panels import Panels, head_panel
from zoo.encodings.common.position_tables import extend_slopes, position_offsets, straight_distance
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

# Heads of the first, the second and the undirected group, by the number of heads.
GROUPS = {4: (4, 0, 0), 6: (4, 0, 2), 8: (4, 0, 4), 16: (8, 4, 4)}
# Where fields of view start, in eighths of a turn from the right against the clock: those of the
# first and of the second group, each repeated over its heads.
STARTS = {
    180: ((0, 4, 2, 6), (7, 1, 5, 3)),
    90: ((2, 0, 4, 6), (1, 5, 3, 7)),
    45: ((2, 5, 3, 0), (1, 6, 4, 7)),
}
# Share of an offset by which rounded coordinates may leave the edge of a field of view.
SLACK = 1e-4


@register
class LookHere(Encoding):
    """scores - global_slope layer_slope_l head_slope_h |p_i - p_j|, in a field of view of each head

    Keys outside a head's field of view of `fov` degrees are hidden from it; a token sees itself.
    With fov 180 the first group of heads looks up, down, left and right, the second along the
    diagonals, and the last sees everything. Head slopes are 1/2 for the first four heads of a
    group, then 1/4 and so on; those of the last group are 1/4, 1/16, 1/64 and 1/256. `layer_slopes`
    are those of the first and of the last layer. `distance` is the straight line in patches, its
    root or its square.

    Args:
        fov: Field of view of a head, in degrees.
        global_slope: Factor of all slopes.
        layer_slopes: Slopes of the first and of the last layer; those between are interpolated.
        distance: Function of the straight-line distance in patches.
    """

    part = "bias"
    shared, shift_invariant = False, True
    axes = (2,)
    axes_reason = "fields of view are directions in an image; alibi, kerple and t5 accept others"

    def __init__(
        self,
        dims: Dims,
        *,
        fov: Literal[180, 90, 45] = 180,
        global_slope: Annotated[float, Between(0)] = 1.0,
        layer_slopes: Sequence[float] = (1.5, 0.5),
        distance: Literal["linear", "sqrt", "square"] = "linear",
    ) -> None:
        super().__init__(dims)
        if len(layer_slopes) != 2:
            message = f"layer_slopes has {len(layer_slopes)} numbers, not those of two layers"
            raise OptionError("layer_slopes", f"{message}: [first, last]")
        if dims.layer and dims.depth is None:
            message = "a layer's slope depends on the number of layers; give Dims(depth=...)"
            raise OptionError("depth", message)
        self.groups = split_heads(dims.heads)
        self.fov, self.distance = fov, distance
        self.global_slope, self.layer_slopes = global_slope, tuple(layer_slopes)

    def check_options(self) -> None:
        if self.shared and len({*self.layer_slopes}) > 1:
            message = "layers that share one module have one slope"
            raise OptionError("shared", f"{message}; leave it out, or choose equal layer_slopes")

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return extend_slopes(self.global_slope, factors)

    def modify(self, call: AttentionCall) -> AttentionCall:
        slopes = self.slopes(call.keys.pos)
        (first_x, first_y), (last_x, last_y) = self._edges(call.keys.pos)
        rows, columns = (position_offsets(call, axis) for axis in (0, 1))
        measure = straight_distance(call)

        def bias(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            # The key is `right` and `up` of the query.
            up, right = rows(b, h, i, j), -columns(b, h, i, j)
            slack = SLACK * (up.abs() + right.abs())
            after_first = first_x[h] * up - first_y[h] * right >= -slack
            before_last = last_y[h] * right - last_x[h] * up >= -slack
            length = measure(b, h, i, j)
            if self.distance == "sqrt":
                length = length.sqrt()
            elif self.distance == "square":
                length = length.square()
            return torch.where(after_first & before_last, -slopes[h] * length, -torch.inf)

        return call.add_bias(bias)

    def panels(self, call: AttentionCall) -> Panels:
        caption = "Penalty per unit of distance: heads with steep slopes attend to near patches."
        yield head_panel("Slopes", "score per patch", self.slopes(call.keys.pos), caption)

    def slopes(self, like: Tensor) -> Tensor:
        """Return the slope of each head in this layer, [H], as a tensor like `like`."""
        first_slope, last_slope = self.layer_slopes
        progress = self.dims.layer / max((self.dims.depth or 1) - 1, 1)
        layer_slope = first_slope + (last_slope - first_slope) * progress
        *directed, undirected = self.groups
        # Computed where the tokens are: a table of the host would be copied in each call.
        powers = [1 + torch.arange(heads, device=like.device) // 4 for heads in directed]
        heads_per_slope = max(undirected // 4, 1)
        powers.append(2 * (1 + torch.arange(undirected, device=like.device) // heads_per_slope))
        return self.global_slope * layer_slope * torch.exp2(-torch.cat(powers).to(like.dtype))

    def _edges(self, like: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the first and the last direction of each head's field of view.

        Each is a step right and a step up, [H]; both are 0 for a head that sees everything.
        """
        *directed, undirected = self.groups
        starts = []
        for heads, fields in zip(directed, STARTS[self.fov], strict=True):
            four = torch.cat([like.new_full((1,), start) for start in fields])
            starts.append(four.repeat(heads // 4))
        edges = []
        for turn in (0, self.fov // 45):
            angle = (torch.cat(starts) + turn) * (math.pi / 4)
            # Rounded, sides and diagonals are whole steps.
            steps = [(math.sqrt(2) * side).round() for side in (angle.cos(), angle.sin())]
            right, up = (F.pad(side, (0, undirected)) for side in steps)
            edges.append((right, up))
        return edges


def split_heads(heads: int) -> tuple[int, int, int]:
    """Return the numbers of heads of the first, the second and the undirected group.

    Raises:
        OptionError: The paper and its code have no groups for this number.
    """
    if heads % 12 == 0:
        return heads // 3, heads // 3, heads // 3
    if heads not in GROUPS:
        numbers = f"{', '.join(map(str, GROUPS))} or a multiple of 12"
        message = f"there are no groups of directions for {heads} heads"
        raise OptionError("heads", f"{message}; choose {numbers}")
    return GROUPS[heads]
