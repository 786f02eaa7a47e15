"""Rules that scale the frequencies of RoPE for longer texts and larger grids than in training.

linear (position interpolation), ntk, yarn, llama3, dynamic, longrope, proportional and clipped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, Self, get_args

import torch
from torch import Tensor

from zoo.attention import Dims, Encoding
from zoo.encodings.common.frequencies import TURN, has_float64, number_pairs
from zoo.errors import OptionError
from zoo.options import Between
from zoo.suggestions import join_words, nearest


def check_scaled_coordinates(encoding: Encoding, scaling: GridScaling) -> None:
    """Check that a rule that counts patches sees them counted.

    Raises:
        OptionError: The coordinates of the encoding are no indices of patches.
    """
    if scaling.rule != "yarn" or encoding.coordinates == "index":
        return
    message = f"yarn counts patches, which coordinates {encoding.coordinates} do not"
    hint = "choose coordinates: index, or another rule"
    raise OptionError("scaling.rule", f"{message}; {hint}")


def refuse_scaled_points(encoding: Encoding) -> None:
    """Refuse a rule for longer texts or larger grids where tokens are points.

    Raises:
        OptionError: They are.
    """
    if encoding.dims.points:
        message = "scaling adapts to more tokens than in training, which points do not count"
        raise OptionError("scaling", f"{message}; leave it out")


ScalingRule = Literal[
    "linear", "ntk", "yarn", "llama3", "dynamic", "longrope", "proportional", "clipped"
]
RULES: tuple[str, ...] = get_args(ScalingRule)
GridRule = Literal["linear", "ntk", "yarn"]

YARN_OPTIONS = (
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)
RULE_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor", "original"),
    "ntk": ("factor", "original"),
    "yarn": ("factor", "original", *YARN_OPTIONS),
    "llama3": ("factor", "original", "low_freq_factor", "high_freq_factor"),
    "dynamic": ("factor", "original", "length"),
    "longrope": ("factor", "original", "length", "short_factor", "long_factor", "attention_factor"),
    "proportional": ("factor", "fraction"),
    "clipped": ("count",),
}
"""The options of each rule."""
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "longrope": ("short_factor", "long_factor"),
    "proportional": ("fraction",),
    "clipped": (),
}
"""What a rule cannot do without; others need a factor."""
NEEDS_ORIGINAL = ("yarn", "llama3", "dynamic", "longrope")
FIXED_LENGTH = ("dynamic", "longrope")
"""The rules whose frequencies depend on the length of the full text."""

Factor = Annotated[float, Between(1)]
Length = Annotated[int, Between(1)]
Positive = Annotated[float, Between(1e-9)]
NotNegative = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True, repr=False)
class AxisScaling:
    """The options of the rules that scale texts and, axis by axis, grids."""

    rule: str
    """Name of the rule."""
    factor: float | tuple[float, ...] | None
    """Size relative to that of training."""
    original: int | tuple[int, ...] | None = None
    """Training size; that of the model by default."""
    beta_fast: Positive | None = None
    """yarn: pairs that rotate this often within the training size, or more, keep their frequency;
    32 by default."""
    beta_slow: Positive | None = None
    """yarn: rotations within the training size up to which a pair is divided by the factor; 1 by
    default."""
    truncate: bool | None = None
    """yarn: whether the pairs with so many rotations are rounded to integers; true by default."""
    attention_factor: NotNegative | None = None
    """yarn, longrope: factor of cos and sin. By default 0.1 ln(factor) + 1, or for longrope
    sqrt(1 + ln(factor) / ln(L))."""
    mscale: NotNegative | None = None
    """yarn: with mscale_all_dim, cos and sin are multiplied by (0.1 mscale ln(factor) + 1) /
    (0.1 mscale_all_dim ln(factor) + 1)."""
    mscale_all_dim: NotNegative | None = None
    """yarn: see mscale."""

    def __repr__(self) -> str:
        """Name the options that were given."""
        options = {key: value for key, value in vars(self).items() if value is not None}
        return f"{{{', '.join(f'{key}: {value}' for key, value in options.items())}}}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Scaling(AxisScaling):
    """A rule that scales the frequencies of RoPE for longer texts than in training.

    linear divides all frequencies (arXiv:2306.15595); ntk raises the base, and dynamic raises it by
    the length of the text; yarn divides only low frequencies and sharpens scores
    (arXiv:2309.00071); llama3 divides only low frequencies (arXiv:2407.21783); longrope divides
    each frequency by a number of its own (arXiv:2402.13753); proportional rotates only the fastest
    pairs (arXiv:2410.06205); clipped lets the slowest frequencies fall to 0 along half a cosine
    (arXiv:2602.05258).
    """

    rule: ScalingRule
    """Name of the rule."""
    factor: Factor | None = None
    """Length of texts relative to the training length L. proportional: divisor of all frequencies,
    1 by default. longrope: the longest length of the model divided by L by default."""
    original: Length | None = None
    """Training length L in tokens; that of the model by default."""
    length: Length | None = None
    """dynamic, longrope: length n of the full text, past which positions are refused; L by
    default."""
    low_freq_factor: Positive | None = None
    """llama3: rotations within L up to which a pair is divided; 1 by default."""
    high_freq_factor: Positive | None = None
    """llama3: pairs that rotate this often within L, or more, keep their frequency; 4 by
    default."""
    short_factor: tuple[Positive, ...] | None = None
    """longrope: divisors of the frequencies, one per pair, if n is at most L."""
    long_factor: tuple[Positive, ...] | None = None
    """longrope: divisors of the frequencies, one per pair, if n is more than L."""
    fraction: Annotated[float, Between(0, 1)] | None = None
    """proportional: fraction of the pairs that rotate, the fastest first."""
    count: Annotated[int, Between(0)] | None = None
    """clipped: number c of frequencies that fall, the slowest. They are multiplied by
    (1 + cos t) / 2, with t from 0 to pi in equal steps. round(20 K' / 128) by default; the
    published code has 20 for any K'."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise OptionError("rule", f"no rule {self.rule!r}; {nearest(str(self.rule), RULES)}")
        allowed = RULE_OPTIONS[self.rule]
        chosen = [
            option.name
            for option in fields(self)
            if option.name != "rule" and getattr(self, option.name) is not None
        ]
        for key in chosen:
            if key not in allowed:
                rules = [rule for rule, options in RULE_OPTIONS.items() if key in options]
                owners = (
                    f"only {rules[0]} has one"
                    if len(rules) == 1
                    else f"{join_words(rules, most=4)} do"
                )
                raise OptionError(key, f"{self.rule} has no {key}; {owners}")
        for key in REQUIRED.get(self.rule, ("factor",)):
            if key not in chosen:
                noun = "a finite number" if key in ("factor", "fraction") else "a list of numbers"
                raise OptionError(key, f"missing; expected {noun}, which {self.rule} needs")
        # not `< 1`, which NaN would pass
        if self.factor is not None and not self.factor >= 1:
            raise OptionError("factor", f"factor {self.factor} is less than 1")
        if not self.slow <= self.fast:
            message = f"beta_fast {self.fast:g} is less than beta_slow {self.slow:g}"
            raise OptionError("beta_fast", message)
        if not self.low < self.high:
            message = f"low_freq_factor {self.low:g} is not less than high_freq_factor"
            raise OptionError("low_freq_factor", f"{message} {self.high:g}")

    def with_factor(self, factor: float) -> Self:
        """Return the rule with another factor."""
        return replace(self, factor=factor)

    @property
    def fast(self) -> float:
        """Rotations within L from which yarn keeps a pair."""
        return 32.0 if self.beta_fast is None else self.beta_fast

    @property
    def slow(self) -> float:
        """Rotations within L up to which yarn divides a pair by the factor."""
        return 1.0 if self.beta_slow is None else self.beta_slow

    @property
    def low(self) -> float:
        """Rotations within L up to which llama3 divides a pair."""
        return 1.0 if self.low_freq_factor is None else self.low_freq_factor

    @property
    def high(self) -> float:
        """Rotations within L from which llama3 keeps a pair."""
        return 4.0 if self.high_freq_factor is None else self.high_freq_factor

    def resolve(self, size: int | None) -> ResolvedScaling:
        """Return the rule with the values that depend on a model.

        Args:
            size: Training length of the model in tokens; None if it is unknown.

        Raises:
            OptionError: The rule needs the training length, which is not known.
        """
        factor = 1.0 if self.factor is None else self.factor
        if self.rule not in NEEDS_ORIGINAL:
            return ResolvedScaling(self, factor)
        original = self.original or size
        if original is None:
            message = f"{self.rule} needs the training size: Dims(length=...), or an original"
            raise OptionError("scaling.original", message)
        length = (self.length or original) if self.rule in FIXED_LENGTH else None
        if self.factor is None:
            factor = max(size or 1, length or 1, original) / original
        return ResolvedScaling(self, factor, original, length)


@dataclass(frozen=True)
class ResolvedScaling:
    """A rule with the values that depend on a model.

    Attributes:
        options: The rule and its options.
        factor: Length of texts relative to the training length.
        original: Training length L in tokens; 0 if the rule ignores it.
        length: Length n of the full text; None if the rule ignores it.
    """

    options: Scaling
    factor: float
    original: int = 0
    length: int | None = None

    @property
    def sharpening(self) -> float:
        """Factor of cos and sin."""
        options, factor = self.options, max(self.factor, 1)
        if options.rule not in ("yarn", "longrope"):
            return 1.0
        if options.attention_factor is not None:
            return options.attention_factor
        if options.rule == "longrope":
            return math.sqrt(1 + math.log(factor) / math.log(max(self.original, 2)))
        growth = 0.1 * math.log(factor)
        if options.mscale is None or options.mscale_all_dim is None:
            return growth + 1
        return (growth * options.mscale + 1) / (growth * options.mscale_all_dim + 1)

    @property
    def stretch(self) -> float:
        """Factor by which ntk and dynamic divide the slowest frequency."""
        if self.options.rule == "ntk" or self.length is None:
            return self.factor
        return self.factor * max(self.length / self.original, 1) - (self.factor - 1)

    @property
    def divisors(self) -> tuple[float, ...]:
        """Divisors [K'/2] of longrope."""
        is_long = self.length is not None and self.length > self.original
        chosen = self.options.long_factor if is_long else self.options.short_factor
        return chosen or ()


@dataclass(frozen=True, kw_only=True, repr=False)
class GridScaling(AxisScaling):
    """A rule that scales the frequencies of each axis for larger grids than in training.

    Each axis is scaled as RoPE with K' = K/P channels is, by its own factor and training size.
    """

    rule: GridRule
    """Name of the rule."""
    factor: Factor | tuple[Factor, ...]
    """Size relative to that of training, one number or one for each axis."""
    original: Length | tuple[Length, ...] | None = None
    """Training size in patches, one number or one for each axis; that of the model by default."""
    attention_factor: NotNegative | None = None
    """yarn: factor of cos and sin; 0.1 ln(factor) + 1 by default."""

    def __post_init__(self) -> None:
        if self.rule not in get_args(GridRule):
            suggestion = nearest(str(self.rule), get_args(GridRule))
            raise OptionError("rule", f"no rule {self.rule!r} for grids; {suggestion}")
        # An axis has the checks of a text.
        for factor in self.factor if isinstance(self.factor, Sequence) else [self.factor]:
            self._make_axis(factor, None)

    def with_factor(self, factor: float) -> Self:
        """Return the rule with another factor of the axes that grow."""
        if not isinstance(self.factor, Sequence):
            return replace(self, factor=factor)
        return replace(
            self, factor=tuple(factor if axis_factor > 1 else 1.0 for axis_factor in self.factor)
        )

    def split(self, dims: Dims) -> tuple[ResolvedScaling, ...]:
        """Return the resolved rule of each axis.

        Raises:
            OptionError: There is not one factor or size for each axis.
        """
        factors = self._spread("factor", self.factor, dims.axes)
        sizes: Sequence[Any] = dims.sizes if dims.length is not None else [None] * dims.axes
        if self.original is not None:
            sizes = self._spread("original", self.original, dims.axes)
        pairs = zip(factors, sizes, strict=True)
        return tuple(self._make_axis(factor, size).resolve(None) for factor, size in pairs)

    def _make_axis(self, factor: float, original: int | None) -> Scaling:
        yarn = {key: getattr(self, key) for key in YARN_OPTIONS}
        return Scaling(rule=self.rule, factor=factor, original=original, **yarn)

    def _spread(self, key: str, value: Any, axes: int) -> Sequence[Any]:
        values = value if isinstance(value, Sequence) else (value,) * axes
        if len(values) != axes:
            message = f"{len(values)} numbers for {axes} axes"
            raise OptionError(f"scaling.{key}", f"{key} has {message}; give one, or {axes}")
        return values


def refuse_vanishing(rules: Sequence[ResolvedScaling]) -> None:
    """Refuse a factor 0 of cos and sin where values turn: its tables have lost the angles.

    Raises:
        OptionError: A rule has it.
    """
    if any(rule.sharpening == 0 for rule in rules):
        message = "values cannot turn by cos and sin that attention_factor 0 makes 0"
        raise OptionError("turn_values", f"{message}; leave turn_values out")


def extend_grid(
    dims: Dims, factors: Sequence[float], rules: Sequence[GridRule]
) -> dict[str, Mapping[str, Any]]:
    """Return rules for larger grids by name, as the option `scaling` of an encoding.

    Args:
        dims: Sizes of the encoding.
        factors: Size relative to that of training, along each axis. An axis that is not longer is
            left alone.
        rules: The rules.
    """
    longer = tuple(max(1.0, factor) for factor in factors)
    return {
        rule: {"scaling": GridScaling(rule=rule, factor=longer, original=dims.sizes)}
        for rule in rules
    }


def scale_frequencies(
    scaling: ResolvedScaling, base: float, width: float, like: Tensor, pairs: int | None = None
) -> Tensor:
    """Scale the frequencies of RoPE.

    Args:
        scaling: The rule.
        base: Base of the frequencies.
        width: Number of rotated channels K'.
        like: Tensor whose dtype and device are used.
        pairs: Number of frequencies, the fastest first; K'/2 by default.

    Returns:
        Frequencies [pairs] in radians per token.
    """
    steps = number_pairs(width, like, pairs)
    return _stretch_waves(scaling, base ** (-2 * steps / width), steps, base, width)


def _stretch_waves(
    scaling: ResolvedScaling, waves: Tensor, steps: Tensor, base: float, width: float
) -> Tensor:
    """Scale frequencies [.., pairs] at places t of the spectrum, which may lie between pairs."""
    options, factor = scaling.options, scaling.factor
    if options.rule == "linear":
        return waves / factor
    if options.rule == "longrope":
        # A copy of so few numbers is part of the call: the host need not wait for the device.
        divisors = torch.tensor(scaling.divisors, dtype=waves.dtype, device="cpu")
        return waves / divisors.to(waves.device, non_blocking=True)
    if options.rule == "proportional":
        rotated = math.floor((options.fraction or 0) * width / 2)
        return torch.where(steps < rotated, waves / factor, 0)
    if options.rule == "clipped":
        return waves * _taper(waves, count_clipped(options, width))
    # The new base divides the slowest frequency by `stretch` and keeps the fastest.
    if options.rule in ("ntk", "dynamic"):
        # With K' = 2 the only pair is the fastest.
        return waves * scaling.stretch ** (-2 * steps / (width - 2 if width > 2 else 1))

    # llama3 and yarn keep pairs that rotate often within the training length, divide those that
    # rotate seldom, and interpolate the others.
    if options.rule == "llama3":
        rotations = scaling.original * waves / TURN
        unscaled = ((rotations - options.low) / (options.high - options.low)).clamp(0, 1)
    else:
        low, high = _find_edges(scaling, base, width)
        # Edges that meet are a step.
        unscaled = 1 - ((steps - low) / (high - low if low != high else 0.001)).clamp(0, 1)
    return unscaled * waves + (1 - unscaled) * waves / factor


def count_clipped(options: Scaling, width: float) -> int:
    """Return how many of the K'/2 frequencies the rule clipped lowers, for K' = `width`."""
    return round(20 * width / 128) if options.count is None else options.count


def _taper(waves: Tensor, count: int) -> Tensor:
    """Return factors [pairs] of frequencies, of which the last `count` fall along half a cosine."""
    # Equal steps with both ends: the first of the frequencies keeps its value, the last is 0.
    angles = torch.linspace(0, math.pi, count, device=waves.device, dtype=waves.dtype)
    untapered = waves.new_ones(len(waves) - count)
    return torch.cat([untapered, (1 + angles.cos()) / 2])


def stretch_wave_vectors(
    scaling: Sequence[ResolvedScaling], waves: Tensor, base: float, width: float
) -> Tensor:
    """Scale the components of wave vectors, each as a frequency of RoPE along its axis.

    A component that RoPE has is scaled as RoPE scales it, and one between as between. One beyond
    the spectrum is scaled as at most one pair beyond.

    Args:
        scaling: The rule of each axis: linear, ntk or yarn.
        waves: Wave vectors [P, .., pairs].
        base: Base of the frequencies of RoPE.
        width: Number of rotated channels K' of an axis.
    """
    exact = waves.double() if has_float64(waves.device) else waves
    # A component of 0 is slower than all pairs, and has a gradient.
    sizes = exact.abs().clamp(min=torch.finfo(exact.dtype).tiny)
    steps = -width / 2 * sizes.log() / max(math.log(base), 1e-9)
    steps = steps.clamp(-1, math.ceil(width / 2))
    scaled = [
        _stretch_waves(rule, component, places, base, width)
        for rule, component, places in zip(scaling, exact, steps, strict=True)
    ]
    return torch.stack(scaled)


def _find_edges(scaling: ResolvedScaling, base: float, width: float) -> tuple[float, float]:
    """Return the pairs at which the ramp of yarn starts and ends (section 3.2 of its paper)."""

    def find_pair(rotations: float) -> float:
        """Return the index of the pair with this number of rotations in the training length."""
        log_base = max(2 * math.log(base), 1e-9)  # with base 1 all frequencies are equal
        return width * math.log(scaling.original / (TURN * rotations)) / log_base

    options = scaling.options
    low, high = find_pair(options.fast), find_pair(options.slow)
    if options.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    # Without these bounds, a training length of less than one rotation would keep all pairs.
    return min(max(low, 0), width - 1), min(max(high, 0), width - 1)
