"""Profiles of distance that queries mix (Inkling 2, github.com/huggingface/transformers)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Encoding, Lookup, Tokens, disable_autocast, upcast
from zoo.attention.tokens import pick
from zoo.encodings.common.layers import apply_linear, init_normal
from zoo.encodings.common.panels import Panels, curve_panel
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

# Added to norms before they divide.
EPSILON = 1e-6


@register
class RelativeProjection(Encoding):
    """scores + r_i . profiles[:, d] for 0 <= d = p_i - p_j < reach, r_i = clip(scale query(x_i))

    r_i has `width` numbers per head, and each profile is a function of the distance that all heads
    share. clip(r) = r min(1, clip / (|r| + 1e-6)); without `clip` there is no `scale` either.
    `log_scale` [a, n] multiplies r_i, after the clip, and q_i by 1 + a ln max((p_i + 1) / n, 1).
    Profiles start at 0; the published model draws them from a normal distribution.

    Args:
        reach: Distances up to this one, excluded, have profiles.
        width: Numbers per head that are projected on profiles.
        clip: Largest length of r_i.
        log_scale: [a, n] of the factor that grows with the logarithm of the position.
    """

    part = "gates"
    shared, shift_invariant, reads_states = False, True, True
    axes_reason = "its profiles are functions of a distance in sequences; t5 accepts grids"

    def __init__(
        self,
        dims: Dims,
        *,
        reach: Annotated[int, Between(1)] = 256,
        width: Annotated[int, Between(1)] = 16,
        clip: Annotated[float, Between(EPSILON)] | None = None,
        log_scale: tuple[Annotated[float, Between(0)], ...] | None = None,
    ) -> None:
        super().__init__(dims)
        self.reach, self.width, self.clip = reach, width, clip
        self.log_scale = None if log_scale is None else _check_log_scale(log_scale)
        # Factors that grow with the position are no function of the distance, and queries that have
        # them meet all keys, also those without a position.
        self.shift_invariant = log_scale is None
        self.handles_special_tokens = log_scale is not None
        self.query = init_normal(nn.Linear(dims.dim, dims.heads * width, bias=False))
        self.scale = None if clip is None else nn.Parameter(torch.ones(dims.heads, width))
        self.profiles = nn.Parameter(torch.zeros(width, reach))

    def modify(self, call: AttentionCall) -> AttentionCall:
        mixture = self._mix(call.queries).transpose(1, 2)  # [B, H, N, R]
        if self.log_scale is not None:
            growth, start = self.log_scale
            lengths = ((call.queries.pos[..., 0] + 1) / start).clamp(min=1)
            factors = (1 + growth * lengths.log())[:, None, :, None]  # [1|B, 1, N, 1]
            mixture = mixture * factors
            call = call.replace(q=(call.q * factors).to(call.q.dtype))
        with disable_autocast(mixture.device):
            values = mixture @ upcast(self.profiles)  # [B, H, N, reach]

        # The last column is what pairs out of reach get.
        def find_column(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            offset = call.offset(b, i, j)[..., 0].round()
            is_near = (offset >= 0) & (offset < self.reach)
            for placed, n in ((call.queries.has_position, i), (call.keys.has_position, j)):
                if placed is not None:
                    is_near = is_near & pick(placed, b, n)
            return torch.where(is_near, offset, self.reach).long()

        return call.add_bias(Lookup(F.pad(values, (0, 1)), find_column))

    def panels(self, call: AttentionCall) -> Panels:
        mean = self._mix(call.queries).mean((0, 1))  # [H, R]
        curves = mean @ upcast(self.profiles)
        caption = "Mean bias of a head by distance, over the queries."
        distances = torch.arange(self.reach)
        x, y = "query position - key position", "added to scores"
        yield curve_panel("Mean profiles", x, y, distances, curves, caption)

    def _mix(self, queries: Tokens) -> Tensor:
        """Return r of the queries, [B, N, H, R]."""
        # Only queries have one: it is made after the cache, which need not keep it for keys.
        mixture = apply_linear(self.query, queries.x).unflatten(-1, (self.dims.heads, -1))
        if self.clip is None or self.scale is None:
            return mixture
        mixture = mixture * upcast(self.scale)
        squares = mixture.square().sum(-1, keepdim=True)
        is_long = squares.detach().sqrt() + EPSILON > self.clip
        # The root of a short one is not taken: at 0 it has no derivative.
        norms = torch.where(is_long, squares, 1).sqrt()
        return mixture * torch.where(is_long, self.clip / (norms + EPSILON), 1)


def _check_log_scale(log_scale: tuple[float, ...]) -> tuple[float, float]:
    if len(log_scale) != 2:
        message = f"{len(log_scale)} numbers; expected two, [a, n]"
        raise OptionError("log_scale", f"log_scale has {message}")
    growth, start = log_scale
    if not start >= 1:
        raise OptionError("log_scale", f"n is {start:g}, expected at least 1 token")
    return growth, start
