"""Polar coordinates of channels (PoPE; Gopalakrishnan et al. 2025, arXiv:2509.10534)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims, Tokens, upcast
from zoo.encodings.common.frequencies import compute_angles, float64_like
from zoo.encodings.common.panels import Panels, pair_panel
from zoo.encodings.common.rotation import Rotary, cos_sin
from zoo.options import Between
from zoo.registry import register


@register
class PoPE(Rotary):
    """scores sum_c softplus(q_ic) softplus(k_jc) cos((p_j - p_i) w_c + phase_c) / sqrt(K)

    w_c = base^(-c/K), c = 0..K-1. Lengths encode what a token is, angles where it is. Each channel
    becomes a pair, so heads are 2K wide; the scale stays that of K. `phase` belongs to the key head
    and starts as U(-init_std, 0). Published values of init_std are 2 pi and, for texts longer than
    in training, 0. The paper clamps phases to [-2 pi, 0]. Here they are free: that range is a full
    rotation, and clamped phases would stop learning. Tokens without a position have lengths too, at
    the angles of position 0. The paper covers sequences only.

    Args:
        base: The frequencies are base^(-c/K).
        init_std: Width of the interval of initial phases.
    """

    part = "rotation"
    shared, handles_special_tokens = False, True
    axes_reason = "its authors cover only sequences; rope_axial and rope_mixed accept grids"

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        init_std: Annotated[float, Between(0, 2 * math.pi)] = 2 * math.pi,
    ) -> None:
        super().__init__(dims)
        self.base = base
        phase = -init_std * torch.rand(dims.num_kv_heads, dims.head_dim)
        self.phase = nn.Parameter(phase)  # [G, K]

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        # Queries and keys have different tables: only keys have phases.
        angles = compute_angles(pos, self.wave_vectors(float64_like(pos)))  # [1|B, 1, N, K]
        keys = angles + upcast(self.phase)[:, None]  # [1|B, G, N, K]
        return cos_sin(angles), cos_sin(keys)

    def wave_vectors(self, like: Tensor) -> Tensor:
        channels = torch.arange(self.dims.head_dim, device=like.device, dtype=like.dtype)
        return (self.base ** (-channels / self.dims.head_dim))[None, None]

    def panels(self, call: AttentionCall) -> Panels:
        yield from super().panels(call)
        caption = (
            "Angle between query and key at which a channel adds most to a score; 0 is the token."
        )
        yield pair_panel("Phases", "radians", self.phase, caption, steep=False, x="channel")

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return _to_polar(q, self.get_rotation(tokens)[0])

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return _to_polar(k, self.get_rotation(tokens)[1])


def _to_polar(x: Tensor, table: Tensor) -> Tensor:
    """Place lengths of heads [B, H, N, K] at angles [1|B, 1|H, N, K, 2]: [B, H, N, 2K]."""
    lengths = F.softplus(upcast(x))
    parts = [lengths * side for side in table.unbind(-1)]
    return torch.stack(parts, dim=-1).flatten(-2).to(x.dtype)
