"""RoPE with Fourier series for each pair (FoPE; Hua et al. 2024, arXiv:2412.17739)."""

from __future__ import annotations

import math
from typing import Annotated, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.attention import AttentionCall, Dims
from zoo.encodings.common.frequencies import (
    check_head_dim,
    compute_angles,
    float64_like,
    rope_frequencies,
)
from zoo.encodings.common.rotation import Rotary, rotate_pairs
from zoo.options import Between
from zoo.registry import register


@register
class FoPE(Rotary):
    """(x1, x2) -> (x1 C - x2 S, x2 C + x1 S), C = cos(p w) cosine_h, S = sin(p w) sine_h

    w_t = base^(-2t/K) >= 2 pi / length; x1 and x2 are the halves of q or k. `sine` and `cosine` are
    frozen: each column selects one of the F waves that fit the training length (at least the
    first), spread evenly, and adds noise N(0, gain^2 2 / (F + columns)) of all F. Pairs past the
    min(F, K/4) columns stay unchanged. (C, S) is not on the unit circle, so scores depend also on
    absolute positions.

    Args:
        base: The waves are base^(-2t/K).
        gain: Scale of the noise in sines and cosines; 0 leaves pure waves.
    """

    part = "rotation"
    shared, shift_invariant, identity_at_zero = False, False, False
    axes_reason = "its waves fit a training length; rope_axial and rope_mixed accept grids"
    sine: Tensor
    cosine: Tensor

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        gain: Annotated[float, Between(0, 1e6)] = 0.3,
    ) -> None:
        super().__init__(dims)
        check_head_dim(self)
        self.base = base
        # The count is needed while a model is built on the meta device, too.
        like = torch.zeros(0, dtype=torch.float64, device="cpu")
        frequencies = rope_frequencies(base, dims.head_dim, like)
        self.count = max(int((frequencies >= 2 * math.pi / dims.tokens).sum()), 1)

        # A frozen matrix of Fourier coefficients: one wave per column, plus noise.
        columns = min(self.count, max(dims.head_dim // 4, 1))
        chosen = torch.arange(columns) * self.count // columns
        identity = torch.eye(self.count)[chosen].T  # [F, columns]
        std = gain * math.sqrt(2 / (self.count + columns))
        for name in ("sine", "cosine"):
            noise = std * torch.randn(dims.num_kv_heads, *identity.shape)
            self.register_buffer(name, identity + noise)  # [G, F, columns]

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        added = self.count - source.count  # longer waves, which the source has no rows for
        if added < 0 or (source.base, source.dims.head_dim) != (self.base, self.dims.head_dim):
            return None
        return F.pad(value, (0, 0, 0, added)) if added else value

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        angles = compute_angles(pos, self.wave_vectors(float64_like(pos)))  # [1|B, 1, N, F]
        cosine = angles.cos() @ self.cosine.to(angles.dtype)
        sine = angles.sin() @ self.sine.to(angles.dtype)
        return (torch.stack([cosine, sine], dim=-1),)  # [1|B, G, N, columns, 2]

    def wave_vectors(self, like: Tensor) -> Tensor:
        return rope_frequencies(self.base, self.dims.head_dim, like, self.count)[None, None]

    def pair_waves(self, call: AttentionCall) -> None:
        # every pair turns by a sum of all waves
        return None

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        # Interleave the halves, so that channels t and t + K/2 form a pair.
        pairs = x.unflatten(-1, (2, -1)).mT.flatten(-2)
        return rotate_pairs(pairs, *tables).unflatten(-1, (-1, 2)).mT.flatten(-2)
