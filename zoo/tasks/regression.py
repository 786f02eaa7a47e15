"""Regression with the squared error of standardized targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanAbsoluteError, MeanMetric, MeanSquaredError, MetricCollection, R2Score

from zoo.data.spec import PointBatch, PointSpec
from zoo.errors import OptionError
from zoo.registry import register
from zoo.tasks.base import Metrics, Optimizer, Task
from zoo.tasks.metrics import build_metrics, propagate_infinity


@register
class Regression(Task):
    """A task that trains a model to predict numbers [B, T].

    The model predicts standardized targets, (target - mean) / std with the mean and the standard
    deviation of each target in the training data, which a checkpoint stores. The loss is the mean
    squared error of these, so that predicting the mean of the training data has a loss of about 1.
    It logs train/loss and, for val and test, loss, and in the units of the data rmse and mae, and
    r2, each over all targets: 1 is perfect, and predicting the mean of the targets has an r2 of 0.

    Args:
        model: The model.
        optim: Creates the optimizer.
        spec: The facts of the data.
        monitor: Select the best checkpoint by val/loss or val/mae.
        metrics: Additional metrics.
    """

    means: Tensor
    stds: Tensor

    def __init__(
        self,
        model: nn.Module,
        optim: Optimizer,
        spec: PointSpec,
        *,
        monitor: Literal["loss", "mae"] = "loss",
        metrics: Metrics = (),
    ) -> None:
        super().__init__(model, optim, spec)
        if (classes := spec.class_count) is not None:
            message = f"the targets are {classes} classes, not numbers"
            raise OptionError("name", f"{message}; choose classification")
        self.monitor = f"val/{monitor}"
        for name, values in (("means", spec.target_means), ("stds", spec.target_stds)):
            self.register_buffer(name, torch.tensor(values), persistent=False)
        self.val_metrics, self.test_metrics = _make_metrics(), _make_metrics()
        for collection in (self.val_metrics, self.test_metrics):
            collection.add_metrics(build_metrics(metrics, spec, [*collection]))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Predict in the units of the data, [B, T]."""
        return self.model(*inputs).float() * self.stds + self.means

    def inputs(self, batch: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return the inputs of a batch."""
        return tuple(batch[:-1])

    def training_step(self, batch: PointBatch, batch_idx: int) -> Tensor:
        """Compute the training loss."""
        outputs = self.model(*self.inputs(batch))
        loss = F.mse_loss(outputs, self._standardize(batch[-1]).to(outputs.dtype))
        loss = propagate_infinity(loss, outputs)
        self.record_loss(loss, len(outputs))
        return loss

    def validation_step(self, batch: PointBatch, batch_idx: int) -> None:
        """Update the validation metrics."""
        self._update("val", self.val_metrics, batch, batch_idx)

    def test_step(self, batch: PointBatch, batch_idx: int) -> None:
        """Update the test metrics."""
        self._update("test", self.test_metrics, batch, batch_idx)

    def _standardize(self, target: Tensor) -> Tensor:
        return (target - self.means) / self.stds

    def _update(
        self, split: str, metrics: MetricCollection, batch: PointBatch, batch_idx: int
    ) -> None:
        """Update the metrics of a split."""
        target = batch[-1]
        predicted = self(*self.inputs(batch))
        errors = self._standardize(predicted) - self._standardize(target)
        losses = errors.square().mean(1)
        metrics["loss"].update(losses)
        if split == "test":
            self.keep_sample_losses(losses, torch.ones_like(losses))
        for name, metric in metrics.items():
            if name != "loss":
                # torchmetrics flattens views
                metric.update(predicted, target.float().contiguous())
        # once is enough: Lightning then computes them after the last batch
        if batch_idx == 0:
            values = {f"{split}/{name}": metric for name, metric in metrics.items()}
            self.log_dict(values, batch_size=len(target))


class SafeR2(R2Score):
    """The coefficient of determination; of less than two samples it is not a number."""

    def compute(self) -> Tensor:
        """Compute it over all batches."""
        return super().compute() if self.total >= 2 else torch.tensor(torch.nan)


def _make_metrics() -> MetricCollection:
    return MetricCollection(
        {
            "loss": MeanMetric(),
            "rmse": MeanSquaredError(squared=False),
            "mae": MeanAbsoluteError(),
            "r2": SafeR2(),
        },
        compute_groups=False,
    )
