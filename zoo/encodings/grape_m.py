"""Rotations by learned generators of low rank (multiplicative GRAPE; Zhang et al. 2025, arXiv:2512.07805)."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import Dims, upcast
from zoo.encodings.common.frequencies import axis_frequencies, check_pairs, compute_angles
from zoo.encodings.common.rotation import Rotary, rotate_pairs, rotation_tables
from zoo.encodings.common.skew import skew_part, spectrum
from zoo.encodings.common.spectral_rotation import rotate_by_spectrum, spectral_tables
from zoo.errors import OptionError
from zoo.registry import Between, register


@register
class GRAPEM(Rotary):
    """q and k turn by exp(p sum_s (a_s b_s^T - b_s a_s^T)), planes of pairs with learned frequencies or learned planes

    By default what the published code trains: pairs (2t, 2t+1) turn by p exp(log_frequencies[t]), for all heads alike, at
    first as RoPE. With `planes` the paper's mixture: that many for each head, a_s = first[s] and b_s = second[s], which need
    not commute. No published code trains it; here they start orthogonal, with frequencies base^(-s/planes).
    """

    shared = False
    axes_reason = (
        "its authors turn by a place in a text; rope_mixed, string and the comropes take grids"
    )

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        planes: Annotated[int, Between(1)] | None = None,
    ) -> None:
        super().__init__(dims)
        check_pairs(dims)
        self.planes = planes
        if planes is None:
            self.log_frequencies = nn.Parameter(
                axis_frequencies(dims, base, torch.zeros(()))[0].log()
            )  # [K/2]
            return
        if 2 * planes > dims.head_dim:
            raise OptionError(
                "planes", f"{planes} planes do not fit into the head size {dims.head_dim}"
            )
        lengths = base ** (
            -0.5 * torch.arange(planes) / planes
        )  # two sides of a square whose area is the frequency
        frames = torch.linalg.qr(torch.randn(dims.num_kv_heads, dims.head_dim, 2 * planes))[
            0
        ].mT.unflatten(1, (2, planes))
        self.first, self.second = map(
            nn.Parameter, (frames * lengths[:, None]).unbind(1)
        )  # [G, planes, K]

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        if self.planes is None:
            return rotation_tables(compute_angles(pos, self.wave_vectors(pos)))  # [1|B, 1, N, K/2]
        return spectral_tables(
            self._generator(), pos[:, None].expand(-1, self.dims.num_kv_heads, -1, -1)
        )

    def wave_vectors(self, like: Tensor) -> Tensor:
        if self.planes is None:
            return upcast(self.log_frequencies).exp()[None, None]
        return spectrum(self._generator())[0].flatten(1)[None]  # [1, G, K/2]

    def _generator(self) -> Tensor:
        """[G, 1, K, K]"""
        return skew_part(upcast(self.first).mT @ upcast(self.second))[:, None]

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        return rotate_pairs(x, *tables) if self.planes is None else rotate_by_spectrum(x, *tables)
