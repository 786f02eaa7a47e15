"""Series at irregular time stamps: which of two events came first, or the period of a wave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from zoo.data.baselines import Baselines, score_points
from zoo.data.batches import PointSample
from zoo.data.padding import pad_points
from zoo.data.sampler import Key
from zoo.data.spec import PointBatch, PointSpec
from zoo.data.synthetic.base import SyntheticOptions, SyntheticTask, refuse_least, split_keys
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.registry import register

Positive = Annotated[float, Between(1e-9)]
EVENTS = ("a", "b")


@register
class IrregularSeries(SyntheticTask):
    """Sets of `least` to `points` measurements at times drawn uniformly from 0 to `duration`.

    Points come in random order, so that only their times tell it. `question` first: a point has a
    random value and two marks; one point is event a, one is event b, and the class is the event
    that came first. `question` period: values are a sum of waves of period T and its harmonics T/2,
    T/3, ..., with random phases and amplitudes up to 1/k, that of the first being 1, plus noise of
    standard deviation `noise`; T, drawn uniformly from `shortest` to `longest`, is to be predicted.
    `train`, `val` and `test` are numbers of series; those of training are drawn anew in each epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        question: Literal["first", "period"] = "first",
        points: Count = 24,
        least: Count = 8,
        duration: Positive = 10.0,
        waves: Count = 2,
        shortest: Positive = 2.0,
        longest: Positive = 6.0,
        noise: Annotated[float, Between(0, 1e6)] = 0.1,
        **options: Unpack[SyntheticOptions],
    ) -> None:
        refuse_least(least, points, "points")
        self.is_order = question == "first"
        if self.is_order and least < len(EVENTS):
            raise OptionError("least", f"{least} points cannot have {len(EVENTS)} events; write 2")
        if not self.is_order and shortest >= longest:
            message = f"{shortest:g} is not less than longest, {longest:g}"
            raise OptionError("shortest", message)
        if self.is_order:
            spec = PointSpec(3, 1, points, len(EVENTS), names=EVENTS)
        else:
            # The moments of the uniform distribution.
            spread = (longest - shortest) / math.sqrt(12)
            middle = (shortest + longest) / 2
            spec = PointSpec(1, 1, points, target_means=(middle,), target_stds=(spread,))
        super().__init__(seed, spec, **options)
        self.spec: PointSpec = spec
        self.least, self.points, self.duration = least, points, duration
        self.waves, self.periods, self.noise = waves, (shortest, longest), noise

    def draw_batch(self, seed: tuple[int, int], keys: Sequence[Key]) -> PointBatch:
        samples = []
        # One generator per sample, so that a sample does not depend on its batch.
        for key in split_keys(keys):
            rng = np.random.default_rng([*seed, *key])
            times = rng.uniform(0, self.duration, rng.integers(self.least, self.points + 1))
            draw = self._draw_events if self.is_order else self._draw_wave
            samples.append(draw(rng, times))
        return pad_points(samples)

    def _draw_events(self, rng: np.random.Generator, times: NDArray[np.float64]) -> PointSample:
        """Make the first two points, which are in random order, the events."""
        x = np.zeros((len(times), 3))
        x[:, 0] = rng.standard_normal(len(times))
        x[0, 1] = x[1, 2] = 1.0
        return PointSample(x, times[:, None], int(times[1] < times[0]))

    def _draw_wave(self, rng: np.random.Generator, times: NDArray[np.float64]) -> PointSample:
        """Add up the harmonics of a period."""
        period = rng.uniform(*self.periods)
        orders = np.arange(1, self.waves + 1)
        sizes = np.where(orders == 1, 1.0, rng.uniform(0, 1, self.waves) / orders)
        angles = 2 * np.pi * (times[:, None] * orders / period + rng.uniform(size=self.waves))
        values = np.sin(angles) @ sizes + self.noise * rng.standard_normal(len(times))
        return PointSample(values[:, None], times[:, None], np.array([period]))

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        train = self._build_samples("train")
        return lambda tested: score_points(train, tested._build_samples("test"), self.spec)
