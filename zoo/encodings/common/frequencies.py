"""Rules that stretch the waves of RoPE for texts longer than those of training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor

from zoo.attention import Dims
from zoo.errors import OptionError
from zoo.registry import Between, nearest


def check_pairs(dims: Dims) -> None:
    """Refuse head sizes whose pairs of channels cannot be dealt out to the axes."""
    divisor = 4 if dims.axes == 2 else 2
    if dims.head_dim % divisor or dims.head_dim < 2 * dims.axes:
        needed = f"divisible by {divisor} and at least {2 * dims.axes}"
        raise OptionError(
            "name",
            f"turning pairs of channels on {dims.axes} axes needs a head size {needed}, not {dims.head_dim}",
        )


def adapt_axes(value: Tensor, there: Dims, here: Dims) -> Tensor | None:
    """A parameter [P, ...] of one set of axes for another: a clip's rows and columns are those of an image.

    What is new, its frames, is 0: a token turns by its place in the frame alone, as before, until training changes it.
    None where one of them is a text.
    """
    if there.axes == here.axes:
        return value
    if 1 in (there.axes, here.axes):
        return None
    return torch.cat([torch.zeros_like(value[:1]), value]) if there.axes < here.axes else value[1:]


def axis_frequencies(
    dims: Dims, base: float, like: Tensor, pairs: int | None = None
) -> list[Tensor]:
    """The K/2 pairs, or fewer, dealt out to the P axes in nearly equal parts, as magnitudes base^(-2Pk/K).

    k is counted in each part.
    """
    parts = torch.arange(pairs or dims.head_dim // 2, device=like.device).tensor_split(dims.axes)
    return [
        base ** (-2 * dims.axes / dims.head_dim * (part - part[0]).to(like.dtype)) for part in parts
    ]


def compute_angles(pos: Tensor, waves: Tensor) -> Tensor:
    """Angles of wave vectors [P, G, pairs], each turning by sum_a p_a waves[a], at [1|B, N, P]: [1|B, G, N, pairs]."""
    parts = [pos[:, None, :, a, None] * waves[a, :, None] for a in range(len(waves))]
    return sum(parts[1:], parts[0])


ScalingRule = Literal["linear", "ntk", "yarn", "llama3"]
RULES: tuple[str, ...] = get_args(ScalingRule)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Stretches waves by `factor`. `original` is the length of training, by default that of the model.

    linear: all alike (arXiv:2306.15595); ntk: by a larger base; yarn: long waves only, and scores sharpened
    (arXiv:2309.00071); llama3: long waves only (arXiv:2407.21783).
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
        """The length of training. Raises OptionError when nobody said it, and the rule needs it."""
        return self.original or (dims.tokens if self.rule in ("yarn", "llama3") else 0)


def scale_frequencies(
    scaling: Scaling, base: float, width: int, steps: Tensor, length: int
) -> tuple[Tensor, float]:
    """Frequencies [K'/2] for pairs numbered by `steps`, and what multiplies cos and sin."""
    waves, factor = base ** (-2 * steps / width), scaling.factor
    if scaling.rule == "linear":
        return waves / factor, 1.0
    if scaling.rule == "ntk":
        return (base * factor ** (width / max(width - 2, 1))) ** (-2 * steps / width), 1.0
    if scaling.rule == "llama3":
        kept = ((length * waves / (2 * math.pi) - 1) / 3).clamp(0, 1)
        return (1 - kept) * waves / factor + kept * waves, 1.0

    def pair(turns: float) -> float:  # the pair that turns so often within the length of training
        ladder = max(
            2 * math.log(base), 1e-9
        )  # of base 1 all pairs turn alike, on one side of any edge
        return width * math.log(length / (2 * math.pi * turns)) / ladder

    low, high = (
        min(max(edge, 0), width - 1) for edge in (math.floor(pair(32)), math.ceil(pair(1)))
    )
    stretched = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
    return waves * (1 - stretched) + stretched * waves / factor, 0.1 * math.log(factor) + 1
