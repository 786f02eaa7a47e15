"""Functional interpolation for relative positions (FIRE; Li et al. 2023, arXiv:2310.04418)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from zoo.attention import POINT_AXES, AttentionCall, BlockBias, Dims, Encoding, Span, upcast
from zoo.encodings.common.layers import freeze_linear
from zoo.encodings.common.panels import Panels, curve_panel, head_panel
from zoo.encodings.common.position_tables import straight_distance
from zoo.encodings.common.visible_keys import find_farthest
from zoo.options import Between
from zoo.registry import register


@register
class FIRE(Encoding):
    """scores + f(psi(|p_i - p_j|) / psi(max(p_i, tau)))_h, psi(x) = log(|c x| + 1)

    tau = |threshold_scale threshold|, and f is Linear, ReLU, Linear with `hidden` units and one
    output per head. Distances are relative to the query's position, so scores depend on it. The
    defaults are those of the paper's listing, whose network keeps PyTorch's initialization. For
    texts much shorter than `threshold` all distances are relative to it: choose a smaller one. On a
    grid, and for points, |p_i - p_j| is the straight-line distance in patches or in units of the
    data, the distance from the query to the farthest token that it sees takes the place of p_i, and
    scores depend on offsets only. `threshold` is 512 tokens on texts, 16 patches on grids and 1 for
    points by default.

    Args:
        hidden: Units of the hidden layer of f.
        initial_c: Value of c at the start.
        threshold: Query positions below it count as this one, in the units of the coordinates.
    """

    part = "bias"
    shared = False
    axes = (1, 2, 3)
    point_axes = POINT_AXES
    zero_gradient = ("net.2.bias",)

    def __init__(
        self,
        dims: Dims,
        *,
        hidden: Annotated[int, Between(1)] = 32,
        initial_c: Annotated[float, Between(-1e6, 1e6)] = 0.1,
        threshold: Annotated[float, Between(0)] | None = None,
    ) -> None:
        super().__init__(dims)
        self.is_text = dims.axes == 1 and not dims.points
        # A window or padding moves with the tokens, so that on a grid only offsets matter.
        self.shift_invariant = not self.is_text
        if threshold is None:
            threshold = 1.0 if dims.points else 512.0 if self.is_text else 16.0
        self.threshold = threshold
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, dims.heads))
        self.c = nn.Parameter(torch.tensor(initial_c))
        self.threshold_scale = nn.Parameter(torch.ones(()))

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        return {"linear": {"coordinates": "interpolated"}} if self.dims.axes > 1 else {}

    def modify(self, call: AttentionCall) -> AttentionCall:
        apply_net, c = self._freeze_net(), upcast(self.c)
        measure = straight_distance(call)
        reach = call.queries.pos[:, None]  # [1|B, 1, N, 1]
        if not self.is_text:
            reach = find_farthest(call, measure)[..., None]
        largest = torch.maximum(reach, self._tau())
        # 1e-6 avoids 0 / 0 for c = 0, as in the paper's listing.
        scale = (c * largest).abs().log1p() + 1e-6  # [1|B, 1, N, 1]

        def compute_block(span: Span) -> Tensor:
            distance = call.evaluate(measure, span)
            ratio = (c * distance).abs().log1p() / span.slice_queries(scale)  # [1|B, 1, n, m]
            return apply_net(ratio)[:, 0].movedim(-1, 1)  # [1|B, H, n, m]

        return call.add_bias(BlockBias(compute_block))

    def panels(self, call: AttentionCall) -> Panels:
        c = upcast(self.c)
        ratios = torch.linspace(0, 1, 65, device=c.device, dtype=c.dtype)
        curves = self._freeze_net()(ratios).mT
        noun = "point" if self.dims.points else "token"
        farthest = "the first token" if self.is_text else f"the farthest {noun} that it sees"
        caption = f"Bias over the logarithmic distance; 0 is the {noun} itself, 1 {farthest}."
        title = "Bias by relative distance"
        yield curve_panel(title, "relative distance", "added to scores", ratios, curves, caption)
        caption = "Queries before this position use it in place of their own position."
        if not self.is_text:
            caption = f"Queries whose farthest {noun} is nearer use it in place of that distance."
        unit, plural = ("token", "tokens") if self.is_text else ("patch", "patches")
        if self.dims.points:
            unit = plural = "unit of the data"
        yield head_panel("Threshold", plural, self._tau()[None], caption)
        caption = "Strength of the logarithmic compression of distances; near 0 there is none."
        yield head_panel("Compression", f"c, per {unit}", c[None], caption)

    def _freeze_net(self) -> Callable[[Tensor], Tensor]:
        """Return f [.., H] of relative distances [..]."""
        fc1, fc2 = freeze_linear(self.net[0]), freeze_linear(self.net[2])
        return lambda ratio: fc2(fc1(ratio[..., None]).relu())

    def _tau(self) -> Tensor:
        return (upcast(self.threshold_scale) * self.threshold).abs()
