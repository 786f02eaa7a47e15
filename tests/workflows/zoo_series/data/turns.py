"""Points that turn around the origin: where are they next?"""

from typing import Unpack

import numpy as np
import torch
from zoo_series.spec import SeriesSpec

from zoo.data.synthetic.base import SyntheticOptions, SyntheticTask, split_keys
from zoo.options import Count
from zoo.registry import register


@register
class Turns(SyntheticTask):
    """Series [length, 2] of a point that turns by one angle at each step, from 0.2 to 1.2 radians."""

    def __init__(
        self, seed: int, *, length: Count = 8, **options: Unpack[SyntheticOptions]
    ) -> None:
        std = 0.5**0.5
        spec = SeriesSpec(2, length, target_means=(0.0, 0.0), target_stds=(std, std))
        super().__init__(seed, spec, **options)

    def draw_batch(self, seed, keys):
        series = []
        for key in split_keys(keys):
            rng = np.random.default_rng([*seed, *key])
            start, angle = rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 1.2)
            places = start + angle * np.arange(self.spec.length + 1)
            series.append(np.stack([np.cos(places), np.sin(places)], axis=-1))
        whole = torch.from_numpy(np.stack(series)).float()
        return whole[:, :-1], whole[:, -1]

    def fit_baselines(self):
        return lambda tested: {}
