"""RoPE whose pairs turn by sums of waves (Fourier position embedding, FoPE; Hua et al. 2024, arXiv:2412.17739)."""

from __future__ import annotations

import math
from typing import Annotated, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention import Dims
from zoo.encodings.common.frequencies import check_pairs
from zoo.encodings.common.rotation import Rotary, rotate_pairs
from zoo.registry import Between, register


@register
class FoPE(Rotary):
    """(x1, x2) -> (x1 C - x2 S, x2 C + x1 S), C = cos(p w) cosine_h, S = sin(p w) sine_h, w_t = base^(-2t/K) >= 2 pi / length

    x1 and x2 are the halves of q, and of k. `sine` and `cosine` are frozen: each column has one of the F waves that fit the
    length of training (at least the first), spread evenly, and noise on all, N(0, gain^2 2 / (F + columns)). Pairs past
    the min(F, K/4) columns stay as they are. C and S lie on no circle, so scores depend also on where a pair stands.
    """

    shared, shift_invariant, identity_at_zero = False, False, False
    axes_reason = (
        "its waves are those that fit the length of a text; rope_axial and rope_mixed take grids"
    )
    sine: Tensor
    cosine: Tensor

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        gain: Annotated[float, Between(0)] = 0.3,
    ) -> None:
        super().__init__(dims)
        check_pairs(dims)
        self.base, length = base, dims.tokens
        kept = sum(
            base ** (-2 * t / dims.head_dim) >= 2 * math.pi / length
            for t in range(dims.head_dim // 2)
        )
        self.count = max(kept, 1)
        columns = min(self.count, max(dims.head_dim // 4, 1))
        chosen = torch.eye(self.count)[
            torch.arange(columns) * self.count // columns
        ].T  # [F, columns]
        std = gain * math.sqrt(2 / (self.count + columns))
        for name in ("sine", "cosine"):
            self.register_buffer(
                name, chosen + std * torch.randn(dims.num_kv_heads, *chosen.shape)
            )  # [G, F, columns]

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        more = self.count - source.count  # longer waves than were there, of which no column has any
        if more < 0 or (source.base, source.dims.head_dim) != (self.base, self.dims.head_dim):
            return None
        return F.pad(value, (0, 0, 0, more)) if more else value

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        angles = pos[:, None] * self.wave_vectors(pos)[0]  # [1|B, 1, N, F]
        parts = (
            wave @ matrix.to(wave.dtype)
            for wave, matrix in ((angles.cos(), self.cosine), (angles.sin(), self.sine))
        )
        return (torch.stack(list(parts), dim=-1),)  # [1|B, G, N, columns, 2]

    def wave_vectors(self, like: Tensor) -> Tensor:
        steps = torch.arange(self.count, device=like.device, dtype=like.dtype)
        return (self.base ** (-2 * steps / self.dims.head_dim))[None, None]

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        pairs = x.unflatten(-1, (2, -1)).mT.flatten(-2)  # channels t and t + K/2 side by side
        return rotate_pairs(pairs, *tables).unflatten(-1, (-1, 2)).mT.flatten(-2)
