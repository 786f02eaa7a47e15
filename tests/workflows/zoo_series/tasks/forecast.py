"""The next vector of a series."""

from typing import Literal

from torch import nn
from zoo_series.spec import SeriesSpec

from zoo.registry import register
from zoo.tasks.base import Metrics, Optimizer
from zoo.tasks.regression import Regression


@register
class Forecast(Regression):
    """Regression of the vector that follows a series."""

    def __init__(
        self,
        model: nn.Module,
        optim: Optimizer,
        spec: SeriesSpec,
        *,
        monitor: Literal["loss", "mae"] = "loss",
        metrics: Metrics = (),
    ) -> None:
        super().__init__(model, optim, spec, monitor=monitor, metrics=metrics)
