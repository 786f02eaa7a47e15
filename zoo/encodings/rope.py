"""Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from zoo.attention import Dims, is_transformed
from zoo.attention.coordinates import get_known_range
from zoo.encodings.common.frequencies import (
    TURN,
    choose_wavelengths,
    compute_angles,
    float64_like,
    refuse_with_wavelengths,
    rope_frequencies,
)
from zoo.encodings.common.rotation import Rotary, cos_sin
from zoo.encodings.common.scaling import (
    FIXED_LENGTH,
    Scaling,
    ScalingRule,
    count_clipped,
    refuse_scaled_points,
    refuse_vanishing,
    scale_frequencies,
)
from zoo.errors import OptionError
from zoo.options import Between
from zoo.registry import register

PLAIN_RULES: tuple[ScalingRule, ...] = ("linear", "ntk", "yarn", "llama3")
"""The rules that need nothing but a factor and the training length."""


BASE = 10000.0


@register
class RoPE(Rotary):
    """pairs (2t, 2t+1) of q and k rotate by p w_t, w_t = base^(-2t/K'), K' = rotary_fraction K

    With `t_min` and `t_max`, w_t = 2 pi / T_t, where wavelengths T_t grow geometrically from the
    one to the other, in units of the coordinates, such as seconds. Channels past K' stay unchanged.
    `scaling` adapts the frequencies to longer texts than in
    training. Its rules dynamic and longrope depend on the length of the full text, which is fixed:
    positions past it are refused.

    Args:
        base: The frequencies are base^(-2t/K').
        rotary_fraction: Share of the channels that rotate.
        t_min: Shortest wavelength, in the units of the coordinates; with t_max, in place of base.
        t_max: Longest wavelength.
        scaling: Rule for texts longer than in training.
        turn_values: Whether values turn too, and outputs back: o_i = R_i^-1 sum_j w_ij R_j v_j.
    """

    part = "rotation"
    point_axes: tuple[int, ...] = (1,)
    axes_reason = "rope_axial and rope_mixed are its forms for grids"

    def __init__(
        self,
        dims: Dims,
        *,
        base: Annotated[float, Between(1)] = BASE,
        rotary_fraction: Annotated[float, Between(0, 1)] = 1.0,
        t_min: Annotated[float, Between(1e-9)] | None = None,
        t_max: Annotated[float, Between(1e-9)] | None = None,
        scaling: Scaling | None = None,
        turn_values: bool = False,
    ) -> None:
        super().__init__(dims)
        self.turn_values = turn_values
        if scaling is not None:
            refuse_scaled_points(self)
        self.wavelengths = choose_wavelengths(t_min, t_max, 1)
        if self.wavelengths:
            refuse_with_wavelengths(self, base=base != BASE, scaling=scaling is not None)
        width = round(rotary_fraction * dims.head_dim, 6)
        if width < 2 or width % 2:
            reason = f"{rotary_fraction} of the head dim {dims.head_dim}"
            message = f"{reason} is not an even number of channels"
            raise OptionError("rotary_fraction", message)
        self.base, self.width, self.scaling = base, int(width), scaling
        self.resolved = None
        if scaling is not None:
            self._check_pairs(scaling)
            self.resolved = scaling.resolve(None if dims.length is None else max(dims.sizes))
            self.text_length = self.resolved.length
            # A factor of cos and sin multiplies every query and key, at position 0 too.
            self.identity_at_zero = self.resolved.sharpening == 1
            if turn_values:
                refuse_vanishing([self.resolved])

    def _check_pairs(self, scaling: Scaling) -> None:
        for key in ("short_factor", "long_factor"):
            divisors = getattr(scaling, key)
            if divisors is not None and len(divisors) != self.width // 2:
                message = f"{key} has {len(divisors)} numbers for {self.width // 2} pairs"
                raise OptionError(f"scaling.{key}", f"{message} of channels")
        if scaling.rule == "clipped" and count_clipped(scaling, self.width) > self.width // 2:
            message = f"count {scaling.count} is more than the {self.width // 2} pairs"
            raise OptionError("scaling.count", f"{message} of channels that rotate")

    def check_options(self) -> None:
        if self.text_length is not None and self.coordinates != "index":
            reason = "scaling counts the tokens of texts, which coordinates"
            hint = "choose coordinates: index"
            message = f"{reason} {self.coordinates} do not; {hint}"
            raise OptionError("scaling.rule", message)

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        if self.scaling is not None:
            # dynamic and longrope are made for any length once it is known.
            if self.scaling.rule not in FIXED_LENGTH:
                return {}
            longer = replace(self.scaling, length=round(factors[0] * self.dims.tokens))
            return {longer.rule: {"scaling": longer}}
        if self.wavelengths:
            return {}

        tokens, factor = self.dims.tokens, factors[0]
        rules = [
            *(Scaling(rule=rule, factor=factor, original=tokens) for rule in PLAIN_RULES),
            Scaling(rule="dynamic", factor=factor, original=tokens, length=round(factor * tokens)),
            Scaling(rule="proportional", fraction=self._turning_fraction(tokens)),
            Scaling(rule="clipped"),
        ]
        return {scaling.rule: {"scaling": scaling} for scaling in rules}

    def _turning_fraction(self, tokens: int) -> float:
        """Return the fraction of pairs that rotate at least once within a number of tokens."""
        # By numbers and not by tensors, since a model may be on the meta device.
        frequencies = [self.base ** (-2 * t / self.width) for t in range(self.width // 2)]
        count = sum(tokens * frequency >= TURN for frequency in frequencies)
        # In the middle between two numbers of pairs, so that no rounding changes the number.
        return min(1.0, (2 * count + 1) / self.width)

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        waves = self.wave_vectors(float64_like(pos))
        table = cos_sin(compute_angles(pos, waves))  # [1|B, 1, N, K'/2, 2]
        if self.text_length is not None:
            table = self._end_table(table, pos, self.text_length)
        if self.resolved is not None and not self.identity_at_zero:
            table = self.resolved.sharpening * table
        return (table,)

    def turn(self, x: Tensor, *tables: Tensor, back: bool = False) -> Tensor:
        if self.resolved is not None and self.resolved.sharpening != 1:
            tables = tuple(table / self.resolved.sharpening for table in tables)
        return super().turn(x, *tables, back=back)

    def wave_vectors(self, like: Tensor) -> Tensor:
        return self._scaled_frequencies(like)[None, None]

    def _scaled_frequencies(self, like: Tensor) -> Tensor:
        """Return frequencies [K'/2]."""
        if self.wavelengths:
            return self.wavelengths[0].make_frequencies(self.width // 2, like)
        if self.resolved is None:
            return rope_frequencies(self.base, self.width, like)
        return scale_frequencies(self.resolved, self.base, self.width, like)

    def _end_table(self, table: Tensor, pos: Tensor, limit: int) -> Tensor:
        """Refuse positions past the length that the frequencies are made for.

        Raises:
            OptionError: There is such a position, and values can be read.
        """
        # A graph cannot raise; what it computes past the length is not a number.
        if torch.compiler.is_compiling() or is_transformed(pos):
            inside = (pos.amax(-1) <= limit - 1)[:, None, :, None, None]  # [1|B, 1, N, 1, 1]
            return torch.where(inside, table, math.nan)
        limits = get_known_range(pos)
        if pos.is_meta or not pos.numel() or (limits is not None and limits[1] <= limit - 1):
            return table
        if (farthest := float(pos.max())) > limit - 1:
            assert self.scaling is not None
            failure = f"position {farthest:g} is past length {limit}, for which the frequencies of"
            reason = "a cached key is final, so they cannot change while the text grows"
            hint = "set scaling.length to the length of the full text"
            message = f"{self.name}: {failure} {self.scaling.rule} are made: {reason}; {hint}"
            raise OptionError("scaling.length", message)
        return table
