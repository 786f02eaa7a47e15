"""Segmentation: a class for each pixel, with cross-entropy, mean IoU and pixel accuracy."""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from zoo.attention.tokens import upcast
from zoo.data.mean_iou import MeanIoU, compute_class_ious
from zoo.data.spec import IGNORE_INDEX, SegmentationSpec
from zoo.errors import DataError, OptionError
from zoo.registry import register
from zoo.tasks.base import Metrics, Optimizer, Task
from zoo.tasks.metrics import build_metrics, check_pairs, propagate_infinity


@register
class Segmentation(Task):
    """A task that trains a model [B, C, H, W] -> [B, classes, H, W] on (images, masks).

    Masks are class numbers [B, H, W]; pixels of class -100 or `ignore_index` count neither in the
    loss nor in metrics. It logs train/loss and, for val and test, loss (without class weights),
    accuracy of pixels, miou and the chosen metrics. miou is the mean over classes of the
    intersection over union of all pixels of the split; classes that occur neither in masks nor in
    predictions are left out. After a test, `class_ious` holds the values by class, and `confusion`
    the number of pixels by class (rows) and prediction (columns).

    Args:
        model: The model.
        optim: Creates the optimizer.
        spec: The facts of the data.
        ignore_index: A class or another number in masks to ignore, in addition to -100, such as 0
            for a background or 255.
        class_weights: The weight of each class in the training loss. None: all weigh the same.
        monitor: Select the best checkpoint by val/miou or val/loss.
        metrics: Additional metrics.
    """

    weighs_targets = True

    class_ious: list[float | None] | None = None
    """The intersection over union of each class in the last test; None for classes that do not
    occur."""

    class_weights: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        optim: Optimizer,
        spec: SegmentationSpec,
        *,
        ignore_index: int = IGNORE_INDEX,
        class_weights: tuple[float, ...] | None = None,
        monitor: Literal["miou", "loss"] = "miou",
        metrics: Metrics = (),
    ) -> None:
        super().__init__(model, optim, spec)
        check_pairs(spec.classes)
        self.monitor, self.mode = f"val/{monitor}", "max" if monitor == "miou" else "min"
        self.ignore_index, self.targets_per_sample = ignore_index, math.prod(spec.grid)
        weights = None if class_weights is None else _check_weights(class_weights, spec.classes)
        self.register_buffer("class_weights", weights, persistent=False)
        self.val_metrics, self.test_metrics = (_make_metrics(spec.classes) for _ in range(2))
        for collection in (self.val_metrics, self.test_metrics):
            collection.add_metrics(build_metrics(metrics, spec, [*collection]))
        self._confusion = MulticlassConfusionMatrix(
            spec.classes, ignore_index=IGNORE_INDEX, validate_args=False
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute logits [B, classes, H, W]."""
        return self.model(*inputs)

    def inputs(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the inputs of a batch: all but the masks."""
        return tuple(batch[:-1])

    def targets(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Return the masks of a batch, int64 [B, H, W]; -100 for pixels without a target."""
        masks = batch[-1].long()
        return masks.masked_fill(masks == self.ignore_index, IGNORE_INDEX)

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        """Compute the training loss, the mean over all pixels with a target."""
        logits, targets = self(*self.inputs(batch)), self.targets(batch)
        weights = self.class_weights
        total = F.cross_entropy(
            upcast(logits), targets, weights, ignore_index=IGNORE_INDEX, reduction="sum"
        )
        has_target = targets != IGNORE_INDEX
        # without indices that depend on values, for which the host would wait
        pixel_weights = (
            has_target if weights is None else has_target * weights[targets.clamp(min=0)]
        )
        num_targets = pixel_weights.sum().to(total.dtype)
        loss = total / torch.where(num_targets == 0, 1, num_targets)
        loss = propagate_infinity(loss, logits)
        self.record_loss(loss, len(targets), num_targets)
        return loss

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        """Update the validation metrics."""
        self._update("val", self.val_metrics, batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Raise DataError if no pixel was measured, over all processes."""
        loss = cast(MeanMetric, self.val_metrics["loss"])
        _check_measured(self.average_over_processes(loss.weight), "val")

    def on_test_epoch_start(self) -> None:
        """Clear the counts, which a test that was stopped may have left."""
        self._confusion.reset()

    def test_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        """Update the test metrics."""
        classes, targets = self._update("test", self.test_metrics, batch, batch_idx)
        self._confusion.update(classes, targets)

    def on_test_epoch_end(self) -> None:
        """Store the confusion matrix and the values of all classes, over all processes."""
        counts = self._confusion.compute()
        _check_measured(counts.sum(), "test")
        self.confusion = counts.tolist()
        self.class_ious = compute_class_ious(counts)

    def _update(
        self, split: str, metrics: MetricCollection, batch: tuple[Tensor, ...], batch_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Update the metrics of a split; return the predicted classes and targets [B, H, W]."""
        logits, targets = self(*self.inputs(batch)), self.targets(batch)
        losses = F.cross_entropy(
            logits.float(), targets, ignore_index=IGNORE_INDEX, reduction="none"
        )
        metrics["loss"].update(losses, targets != IGNORE_INDEX)
        if split == "test":
            self.keep_sample_losses(losses.sum((1, 2)), (targets != IGNORE_INDEX).sum((1, 2)))
        classes = logits.argmax(1)
        for name, metric in metrics.items():
            if name != "loss":
                metric.update(classes, targets)
        # once is enough: Lightning then computes them after the last batch
        if batch_idx == 0:
            values = {f"{split}/{name}": metric for name, metric in metrics.items()}
            self.log_dict(values, batch_size=len(targets))
        return classes, targets


def _check_measured(count: Tensor, split: str) -> None:
    """Raise DataError if no pixel of a split has a class, so that its metrics mean nothing."""
    if not count:
        hint = "look at its masks, and at task.ignore_index and the options of data"
        raise DataError(f"no pixel of {split} that was read has a class; {hint}")


def _check_weights(weights: tuple[float, ...], classes: int) -> Tensor:
    """Return the weights of classes. Raises OptionError where they are not one for each."""
    if len(weights) != classes:
        message = f"{len(weights)} weights for {classes} classes; give one for each"
        raise OptionError("class_weights", message)
    # in the precision of the loss, in which 1e39 is infinite and 1e-50 is 0
    used = torch.tensor(weights)
    if not used.sum().isfinite() or (used < 0).any() or not used.any():
        message = "a weight is negative or infinite in float32, or all are 0"
        raise OptionError("class_weights", f"{message}; give numbers from 0")
    return used


def _make_metrics(classes: int) -> MetricCollection:
    return MetricCollection(
        {
            "loss": MeanMetric(),
            "accuracy": MulticlassAccuracy(
                classes, average="micro", ignore_index=IGNORE_INDEX, validate_args=False
            ),
            "miou": MeanIoU(classes),
        }
    )
