"""Rotations by low-rank generators (multiplicative GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import Dims
from zoo.encodings.common.frequencies import (
    axis_frequencies,
    check_head_dim,
    compute_angles,
    float64_like,
)
from zoo.encodings.common.rotation import Rotary, rotate_pairs, rotation_tables
from zoo.encodings.common.spectral_rotation import (
    rotate_back_by_spectrum,
    rotate_by_spectrum,
    skew_part,
    spectral_tables,
    spectrum,
)
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

LOG_SCALE = 16  # scale of the parameter, as in the published code


@register
class GRAPEM(Rotary):
    """q and k rotate by exp(p sum_s (a_s b_s^T - b_s a_s^T)), with learned frequencies or planes

    The default is what the published code trains: pairs (2t, 2t+1) rotate by
    p exp(log_frequencies[t] / 16), the same for all heads, initially as RoPE. The parameter is 16
    times the logarithm, as published, so that Adam, whose steps have a fixed size, moves
    frequencies 16 times more slowly. `planes` selects the paper's mixture with that number of
    planes per head, a_s = first[s] and b_s = second[s], which need not commute. No published code
    trains it; here the planes start orthogonal, with frequencies base^(-s/planes).

    Args:
        base: The frequencies at the start are base^(-2t/K).
        planes: Number of learned planes of each head; without it, the fixed pairs of channels.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "rotation"
    shared = False
    axes_reason = (
        "its authors rotate by positions in a sequence; "
        "rope_mixed, string and comrope_ld accept grids"
    )

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        planes: Annotated[int, Between(1)] | None = None,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        check_head_dim(self)
        self.planes = planes
        if planes is None:
            frequencies = axis_frequencies(dims, base, torch.zeros(()))[0]
            self.log_frequencies = nn.Parameter(LOG_SCALE * frequencies.log())  # [K/2]
            return
        if 2 * planes > dims.head_dim:
            message = f"{planes} planes do not fit into the head dim {dims.head_dim}"
            raise OptionError("planes", message)
        # The frequency of an orthogonal plane is |a| |b|, so both vectors have its square root.
        lengths = base ** (-0.5 * torch.arange(planes) / planes)
        random = torch.randn(dims.num_kv_heads, dims.head_dim, 2 * planes)
        frames = torch.linalg.qr(random)[0].mT.unflatten(1, (2, planes))
        first, second = (frames * lengths[:, None]).unbind(1)  # [G, planes, K]
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        if self.planes is None:
            return rotation_tables(compute_angles(pos, self.wave_vectors(float64_like(pos))))
        return spectral_tables(self._generator(), pos, pos.new_ones(1, 1, 1))

    def wave_vectors(self, like: Tensor) -> Tensor:
        if self.planes is None:
            return (self.log_frequencies.to(like) / LOG_SCALE).exp()[None, None]  # [1, 1, K/2]
        return spectrum(self._generator())[0].to(like).flatten(1)[None]  # [1, G, K/2]

    def _generator(self) -> Tensor:
        """Return the sum of all planes, [G, 1, K, K]."""
        first, second = (frame.to(float64_like(frame)) for frame in (self.first, self.second))
        return skew_part(first.mT @ second)[:, None]

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        return rotate_pairs(x, *tables) if self.planes is None else rotate_by_spectrum(x, *tables)

    def turn(self, x: Tensor, *tables: Tensor, back: bool = False) -> Tensor:
        if self.planes is None:
            return super().turn(x, *tables, back=back)
        return (rotate_back_by_spectrum if back else rotate_by_spectrum)(x, *tables)
