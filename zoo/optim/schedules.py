"""Schedules of the learning rate: what follows the warmup, as a share of `lr`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from zoo.registry import Between, register


class Schedule:
    """The base class of schedules. Options of a schedule are keyword-only arguments."""

    decay_ratio: float = 0.0
    """Share of all steps that the schedule needs for itself, after warmup."""

    reaches_minimum = True
    """Whether it falls from `lr` to `min_lr_ratio * lr`."""

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step: 1 stands for `lr`, 0 for `min_lr_ratio * lr`.

        Args:
            step: Steps done, at least `start`.
            start: Steps of warmup.
            steps: Steps of training.
        """
        raise NotImplementedError


@register
class Cosine(Schedule):
    """Half a period of a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983)."""

    name = "cosine"

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        return (1 + math.cos(math.pi * _measure_progress(step, start, steps))) / 2


@register
class Linear(Schedule):
    """A straight line down to the end of training."""

    name = "linear"

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        return 1 - _measure_progress(step, start, steps)


@register
class Constant(Schedule):
    """The full learning rate until the end."""

    name = "constant"
    reaches_minimum = False

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        return 1.0


@register
@dataclass(kw_only=True)
class WarmupStableDecay(Schedule):
    """Constant, then a straight line down (Hu et al. 2024, arXiv:2404.06395)."""

    name = "wsd"

    decay_ratio: Annotated[float, Between(1e-6, 1)] = 0.2
    """Share of all steps over which the learning rate falls at the end."""

    def height(self, step: int, start: int, steps: int) -> float:
        """Compute the height of a step."""
        decay = max(round(self.decay_ratio * steps), 1)
        return min(max((steps - step) / decay, 0.0), 1.0)


def _measure_progress(step: int, start: int, steps: int) -> float:
    return min((step - start) / max(steps - start, 1), 1.0)
