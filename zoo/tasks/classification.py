"""Classification with cross-entropy, accuracy, top-5 accuracy and optional metrics."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from zoo.data.spec import ImageSpec, PointSpec, TextClassificationSpec
from zoo.errors import OptionError
from zoo.options import Between, Choice
from zoo.registry import register
from zoo.tasks.base import Metrics, Optimizer, Task
from zoo.tasks.metrics import build_metrics, check_pairs, propagate_infinity

CHOSEN = (Choice("f1"), Choice("ece"))
TOP = 5
"""Number of likeliest classes among which top5 looks for the right one."""


@register
class Classification(Task):
    """A task that trains a model [B, ...] -> [B, classes] on (inputs, labels), or points.

    Labels are class numbers [B]; in training they may also be probabilities [B, classes] of mixed
    images. It logs train/loss and, for val and test, loss (without label smoothing), accuracy, top5
    (of six or more classes) and the chosen metrics. After a test, `confusion` holds the number of
    samples by label (rows) and prediction (columns).

    Args:
        model: The model.
        optim: Creates the optimizer.
        spec: The facts of the data.
        label_smoothing: Label smoothing in training.
        monitor: Select the best checkpoint by val/accuracy or val/loss. On a small validation set
            the loss is more precise.
        metrics: Additional metrics; f1 is the mean over classes, ece the expected calibration
            error.
    """

    def __init__(
        self,
        model: nn.Module,
        optim: Optimizer,
        spec: ImageSpec | TextClassificationSpec | PointSpec,
        *,
        label_smoothing: Annotated[float, Between(0, 0.99)] = 0.0,
        monitor: Literal["accuracy", "loss"] = "accuracy",
        metrics: Metrics = CHOSEN,
    ) -> None:
        super().__init__(model, optim, spec)
        classes = spec.classes
        if classes is None:
            raise OptionError("name", "the targets are numbers, not classes; choose regression")
        check_pairs(classes)
        self.monitor, self.mode = f"val/{monitor}", "max" if monitor == "accuracy" else "min"
        self.label_smoothing = label_smoothing
        self.val_metrics = _make_metrics(classes)
        self.test_metrics = _make_metrics(classes)
        for collection in (self.val_metrics, self.test_metrics):
            collection.add_metrics(build_metrics(metrics, spec, [*collection]))
        self._confusion = MulticlassConfusionMatrix(classes, validate_args=False)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute logits [B, classes]."""
        return self.model(*inputs)

    def inputs(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the inputs of a batch: all but the labels."""
        return tuple(batch[:-1])

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        """Compute the training loss."""
        labels = batch[-1]
        logits = self(*self.inputs(batch))
        # Mixed labels come in float32, which may differ from the dtype of the logits.
        targets = labels.to(logits.dtype) if labels.is_floating_point() else labels
        loss = F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)
        loss = propagate_infinity(loss, logits)
        self.record_loss(loss, len(labels))
        return loss

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        """Update the validation metrics."""
        self._update("val", self.val_metrics, batch, batch_idx)

    def on_test_epoch_start(self) -> None:
        """Clear the counts, which a test that was stopped may have left."""
        self._confusion.reset()

    def test_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        """Update the test metrics."""
        logits = self._update("test", self.test_metrics, batch, batch_idx)
        self._confusion.update(logits, batch[-1])

    def on_test_epoch_end(self) -> None:
        """Store the confusion matrix over all processes."""
        self.confusion = self._confusion.compute().tolist()

    def _update(
        self, split: str, metrics: MetricCollection, batch: tuple[Tensor, ...], batch_idx: int
    ) -> Tensor:
        """Update the metrics of a split, and return the logits of the batch."""
        labels = batch[-1]
        logits = self(*self.inputs(batch))
        losses = F.cross_entropy(logits.float(), labels, reduction="none")
        metrics["loss"].update(losses)
        if split == "test":
            self.keep_sample_losses(losses, torch.ones_like(losses))
        for name, metric in metrics.items():
            if name != "loss":
                metric.update(logits, labels)
        # once is enough: Lightning then computes them after the last batch
        if batch_idx == 0:
            values = {f"{split}/{name}": metric for name, metric in metrics.items()}
            self.log_dict(values, batch_size=len(labels))
        return logits


def _make_metrics(classes: int) -> MetricCollection:
    metrics: dict[str, Metric | MetricCollection] = {
        "loss": MeanMetric(),
        "accuracy": MulticlassAccuracy(classes, average="micro"),
    }
    # of so few classes, the right one is always among the likeliest
    if classes > TOP:
        metrics["top5"] = MulticlassAccuracy(classes, average="micro", top_k=TOP)
    return MetricCollection(metrics)
