"""Functional interpolation for relative positions (FIRE; Li et al. 2023, arXiv:2310.04418)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, BlockBias, Dims, Encoding, Span, upcast
from zoo.encodings.common.layers import freeze_linear
from zoo.encodings.common.panels import Panels, curve_panel, head_panel
from zoo.registry import Between, register


@register
class FIRE(Encoding):
    """scores + f(psi(|p_i - p_j|) / psi(max(p_i, tau)))_h, psi(x) = log(|c x| + 1), tau = |threshold_scale threshold|

    f is Linear, ReLU, Linear with `hidden` units and an output per head. Distances are shares of what the query looks back
    on, so scores depend on where it stands.
    """

    shared = False
    zero_gradient = ("net.2.bias",)
    axes_reason = "a distance is a share of what the query looks back on, and a grid has none; alibi and t5 take grids"

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
        of_share, c = self._of_share(), upcast(self.c)
        reach = (
            c * torch.maximum(call.queries.pos[:, None], self._tau())
        ).abs().log1p() + 1e-6  # [1|B, 1, N, 1]

        def block(span: Span) -> Tensor:
            distance = call.evaluate(
                lambda b, h, i, j: call.distance(b, i, j), span
            )  # [1|B, 1, n, m]
            return of_share((c * distance).abs().log1p() / span.slice_queries(reach))[:, 0].movedim(
                -1, 1
            )  # [1|B, H, n, m]

        return call.add_bias(BlockBias(block))

    def panels(self, call: AttentionCall) -> Panels:
        shares = torch.linspace(0, 1, 65, device=self.c.device)
        lines, told = (
            self._of_share()(shares).mT,
            "What is added to scores, by logarithms of the way back: 0 is the token.",
        )
        yield curve_panel(
            "Function of the share", "share of the way", "added to scores", shares, lines, told
        )
        told = "Nearer to the start than so many tokens, a share is one of them and not of what a query looks back on."
        yield head_panel("Threshold", "tokens", self._tau()[None], told)
        told = "How fast distances are squeezed by the logarithm: near 0 not at all."
        yield head_panel("Squeeze", "c, per token", upcast(self.c)[None], told)

    def _of_share(self) -> Callable[[Tensor], Tensor]:
        """f [.., H] of shares [..]."""
        first, second = freeze_linear(self.net[0]), freeze_linear(self.net[2])
        return lambda shares: second(first(shares[..., None]).relu())

    def _tau(self) -> Tensor:
        return (upcast(self.threshold_scale) * self.threshold).abs()
