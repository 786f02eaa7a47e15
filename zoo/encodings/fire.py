"""Functional interpolation for relative positions (FIRE; Li et al. 2023, arXiv:2310.04418)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, BlockBias, Dims, Encoding, Span, upcast
from zoo.encodings.common.layers import freeze_linear
from zoo.encodings.common.panels import Panels, curve_panel, head_panel
from zoo.options import Between
from zoo.registry import register


@register
class FIRE(Encoding):
    """scores + f(psi(|p_i - p_j|) / psi(max(p_i, tau)))_h, psi(x) = log(|c x| + 1)

    tau = |threshold_scale threshold|, and f is Linear, ReLU, Linear with `hidden` units and one
    output per head. Distances are relative to the query's position, so scores depend on it. The
    defaults are those of the paper's listing, whose network keeps PyTorch's initialization. For
    texts much shorter than `threshold` all distances are relative to it: choose a smaller one.
    """

    shared = False
    zero_gradient = ("net.2.bias",)
    axes_reason = "distances are relative to the query's position; alibi and t5 accept grids"

    def __init__(
        self,
        dims: Dims,
        *,
        hidden: Annotated[int, Between(1)] = 32,
        initial_c: float = 0.1,
        threshold: Annotated[float, Between(0)] = 512.0,
    ) -> None:
        super().__init__(dims)
        self.threshold = threshold
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, dims.heads))
        self.c = nn.Parameter(torch.tensor(initial_c))
        self.threshold_scale = nn.Parameter(torch.ones(()))

    def modify(self, call: AttentionCall) -> AttentionCall:
        apply_net, c = self._freeze_net(), upcast(self.c)
        largest = torch.maximum(call.queries.pos[:, None], self._tau())
        # 1e-6 avoids 0 / 0 for c = 0, as in the paper's listing.
        scale = (c * largest).abs().log1p() + 1e-6  # [1|B, 1, N, 1]

        def compute_block(span: Span) -> Tensor:
            distance = call.evaluate(lambda b, h, i, j: call.distance(b, i, j), span)
            ratio = (c * distance).abs().log1p() / span.slice_queries(scale)  # [1|B, 1, n, m]
            return apply_net(ratio)[:, 0].movedim(-1, 1)  # [1|B, H, n, m]

        return call.add_bias(BlockBias(compute_block))

    def panels(self, call: AttentionCall) -> Panels:
        ratios = torch.linspace(0, 1, 65, device=self.c.device)
        curves = self._freeze_net()(ratios).mT
        caption = "Bias over the logarithmic distance; 0 is the token itself, 1 the first token."
        title = "Bias by relative distance"
        yield curve_panel(title, "relative distance", "added to scores", ratios, curves, caption)
        caption = "Queries before this position use it in place of their own position."
        yield head_panel("Threshold", "tokens", self._tau()[None], caption)
        caption = "Strength of the logarithmic compression of distances; near 0 there is none."
        yield head_panel("Compression", "c, per token", upcast(self.c)[None], caption)

    def _freeze_net(self) -> Callable[[Tensor], Tensor]:
        """Return f [.., H] of relative distances [..]."""
        first, last = freeze_linear(self.net[0]), freeze_linear(self.net[2])
        return lambda ratio: last(first(ratio[..., None]).relu())

    def _tau(self) -> Tensor:
        return (upcast(self.threshold_scale) * self.threshold).abs()
