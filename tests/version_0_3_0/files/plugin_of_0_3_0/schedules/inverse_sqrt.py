"""The inverse square root of the step, as of the first transformer (arXiv:1706.03762)."""

from __future__ import annotations

import math

from zoo.optim.base import Schedule
from zoo.registry import register


@register
class InverseSqrt(Schedule):
    """Falls as 1 / sqrt(step) after warmup, whatever the length of training."""

    reaches_minimum = False

    def height(self, step: int, start: int, steps: int) -> float:
        return math.sqrt(max(start, 1) / max(step, 1))
