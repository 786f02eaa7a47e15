"""Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from torch import Tensor

from zoo.attention import Dims
from zoo.encodings.common.frequencies import (
    Scaling,
    ScalingRule,
    compute_angles,
    float64_like,
    rope_frequencies,
    scale_frequencies,
)
from zoo.encodings.common.rotation import Rotary, cos_sin
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register


@register
class RoPE(Rotary):
    """pairs (2t, 2t+1) of q and k rotate by p w_t, w_t = base^(-2t/K'), K' = rotary_fraction K

    Channels past K' stay unchanged. `scaling` adapts the frequencies to longer texts than in
    training.
    """

    axes_reason = "rope_axial and rope_mixed are its forms for grids"

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = 10000.0,
        rotary_fraction: Annotated[float, Between(0, 1)] = 1.0,
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__(dims)
        width = round(rotary_fraction * dims.head_dim, 6)
        if width < 2 or width % 2:
            problem = f"{rotary_fraction} of the head dim {dims.head_dim}"
            message = f"rope: {problem} is not an even number of channels"
            raise OptionError("rotary_fraction", message)
        self.base, self.width, self.scaling = base, int(width), scaling
        if scaling is not None:
            self.length = scaling.training_length(dims)
            # yarn multiplies every query and key by a factor, at position 0 too.
            self.identity_at_zero = scaling.rule != "yarn"

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        if self.scaling is not None:
            return {}
        rules: dict[str, Mapping[str, Any]] = {}
        for rule in get_args(ScalingRule):
            scaling = Scaling(rule=rule, factor=factors[0], original=self.dims.tokens)
            rules[rule] = {"scaling": scaling}
        return rules

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        frequencies, factor = self._scaled_frequencies(float64_like(pos))
        table = cos_sin(compute_angles(pos, frequencies[None, None]))  # [1|B, 1, N, K'/2, 2]
        return (table if factor == 1 else factor * table,)

    def wave_vectors(self, like: Tensor) -> Tensor:
        return self._scaled_frequencies(like)[0][None, None]

    def _scaled_frequencies(self, like: Tensor) -> tuple[Tensor, float]:
        """Return frequencies [K'/2], and a factor for cos and sin."""
        if self.scaling is None:
            return rope_frequencies(self.base, self.width, like), 1.0
        return scale_frequencies(self.scaling, self.base, self.width, like, self.length)
