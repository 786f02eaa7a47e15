"""Frequencies of rotary encodings, and rules that scale them for texts longer than in training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor

from zoo.attention import Dims, Encoding
from zoo.errors import OptionError
from zoo.registry import Between, nearest


def check_head_dim(encoding: Encoding) -> None:
    """Raise OptionError if the channels cannot be paired and divided between the axes."""
    dims = encoding.dims
    divisor = 4 if dims.axes == 2 else 2
    if dims.head_dim % divisor or dims.head_dim < 2 * dims.axes:
        needed = f"a head dim divisible by {divisor} and at least {2 * dims.axes}"
        problem = f"rotating pairs of channels on {dims.axes} axes needs {needed}"
        raise OptionError("name", f"{encoding.name}: {problem}, not {dims.head_dim}")


def adapt_axes(value: Tensor, source: Dims, target: Dims) -> Tensor | None:
    """Adapt a parameter [P, ...] between images and clips.

    Rows and columns keep their values. The time axis starts at 0, so that a clip is encoded as its
    frames are until training changes that. Returns None if one of them is a text.
    """
    if source.axes == target.axes:
        return value
    if 1 in (source.axes, target.axes):
        return None
    if source.axes > target.axes:
        return value[1:]
    return torch.cat([torch.zeros_like(value[:1]), value])


def axis_frequencies(
    dims: Dims, base: float, like: Tensor, pairs: int | None = None
) -> list[Tensor]:
    """Divide the pairs of channels into P nearly equal groups, one for each axis.

    Args:
        dims: Sizes of the encoding.
        base: Base of the frequencies.
        like: Tensor whose dtype and device are used.
        pairs: Number of pairs, K/2 by default.

    Returns:
        Frequencies base^(-2Pk/K) of each group; k counts within the group.
    """
    groups = torch.arange(pairs or dims.head_dim // 2, device=like.device).tensor_split(dims.axes)
    exponents = [-2 * dims.axes / dims.head_dim * (k - k[0]).to(like.dtype) for k in groups]
    return [base**exponent for exponent in exponents]


ScalingRule = Literal["linear", "ntk", "yarn", "llama3"]
RULES: tuple[str, ...] = get_args(ScalingRule)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Scales the frequencies of RoPE so that it can be used on longer texts.

    linear divides all frequencies (arXiv:2306.15595); ntk raises the base; yarn divides low
    frequencies only and sharpens scores (arXiv:2309.00071); llama3 divides low frequencies only
    (arXiv:2407.21783).

    Attributes:
        rule: Name of the rule.
        factor: How many times longer texts are than in training.
        original: Length in training, by default that of the model.
    """

    rule: ScalingRule
    factor: Annotated[float, Between(1)]
    original: Annotated[int, Between(1)] | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise OptionError("rule", f"no rule {self.rule!r}; {nearest(str(self.rule), RULES)}")
        if not self.factor >= 1:
            raise OptionError("factor", f"factor {self.factor} is less than 1")

    def training_length(self, dims: Dims) -> int:
        """Return the length in training; 0 if the rule does not need it and it is unknown."""
        return self.original or (dims.tokens if self.rule in ("yarn", "llama3") else 0)


def scale_frequencies(
    scaling: Scaling, base: float, width: int, steps: Tensor, length: int
) -> tuple[Tensor, float]:
    """Scale the frequencies of RoPE.

    Args:
        scaling: The rule and its factor.
        base: Base of the frequencies.
        width: Number of rotated channels K'.
        steps: Numbers of the pairs [K'/2].
        length: Length in training.

    Returns:
        Frequencies [K'/2], and a factor for cos and sin.
    """
    frequencies, factor = base ** (-2 * steps / width), scaling.factor
    if scaling.rule == "linear":
        return frequencies / factor, 1.0
    if scaling.rule == "ntk":
        return (base * factor ** (width / max(width - 2, 1))) ** (-2 * steps / width), 1.0
    if scaling.rule == "llama3":
        kept = ((length * frequencies / (2 * math.pi) - 1) / 3).clamp(0, 1)
        return (1 - kept) * frequencies / factor + kept * frequencies, 1.0

    def find_pair(rotations: float) -> float:
        """Find the pair that makes so many rotations within the length of training."""
        log_base = max(2 * math.log(base), 1e-9)  # with base 1 all frequencies are equal
        return width * math.log(length / (2 * math.pi * rotations)) / log_base

    low, high = (
        min(max(edge, 0), width - 1)
        for edge in (math.floor(find_pair(32)), math.ceil(find_pair(1)))
    )
    ramp = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies * (1 - ramp) + ramp * frequencies / factor, 0.1 * math.log(factor) + 1
