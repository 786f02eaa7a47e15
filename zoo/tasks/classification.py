"""Classification: cross-entropy, accuracy, top-5."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from zoo.data.spec import ImageSpec, TextClassificationSpec
from zoo.registry import Between, register
from zoo.tasks.base import Optimizer, Task


@register
class Classification(Task):
    """Trains a model [B, ...] -> [B, classes] on (inputs, labels), with labels smoothed by `smoothing` in training.

    Labels are numbers [B], or in training also shares [B, classes] of mixed images.

    Logs train/loss, and for val and test: loss (of hard labels), accuracy, top5. `best` is the checkpoint with the best
    val/accuracy or val/loss, as `monitor` says; on a small validation set the loss tells more.
    """

    def __init__(
        self,
        model: nn.Module,
        optim: Optimizer,
        samples: ImageSpec | TextClassificationSpec,
        *,
        label_smoothing: Annotated[float, Between(0, 0.99)] = 0.0,
        monitor: Literal["accuracy", "loss"] = "accuracy",
    ) -> None:
        super().__init__()
        self.monitor, self.mode = f"val/{monitor}", "max" if monitor == "accuracy" else "min"
        self.model, self.optim, self.samples, self.smoothing = (
            model,
            optim,
            samples,
            label_smoothing,
        )
        self.val_metrics, self.test_metrics = (
            self._metrics(samples.classes),
            self._metrics(samples.classes),
        )

    @staticmethod
    def _metrics(classes: int) -> MetricCollection:
        return MetricCollection(
            {
                "loss": MeanMetric(),
                "accuracy": MulticlassAccuracy(classes, average="micro"),
                "top5": MulticlassAccuracy(classes, average="micro", top_k=min(5, classes)),
            }
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)

    def inputs(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return batch[:1]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        logits = self(inputs)
        targets = labels.to(logits.dtype) if labels.is_floating_point() else labels
        loss = F.cross_entropy(logits, targets, label_smoothing=self.smoothing)
        self.log("train/loss", loss, batch_size=len(labels), sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._measure("val", self.val_metrics, batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._measure("test", self.test_metrics, batch)

    def _measure(self, part: str, metrics: MetricCollection, batch: tuple[Tensor, Tensor]) -> None:
        labels = batch[1]
        logits = self(*self.inputs(batch))
        metrics["loss"].update(F.cross_entropy(logits.float(), labels, reduction="none"))
        metrics["accuracy"].update(logits, labels)
        metrics["top5"].update(logits, labels)
        self.log_dict(
            {f"{part}/{name}": metric for name, metric in metrics.items()}, batch_size=len(labels)
        )

    def configure_optimizers(self) -> Any:
        return self.optim.configure(self.model, int(self.trainer.estimated_stepping_batches))
