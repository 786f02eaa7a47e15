"""Mean IoU: the intersection over union of predicted and right pixels, by class and on average.

Classes that occur neither in masks nor in predictions have none and are left out of the mean.
"""

from __future__ import annotations

from torch import Tensor
from torchmetrics.classification import MulticlassJaccardIndex
from torchmetrics.functional.classification import multiclass_jaccard_index

from zoo.data.spec import IGNORE_INDEX


class MeanIoU(MulticlassJaccardIndex):
    """Mean IoU over all pixels of a split; those of class -100 do not count."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes, ignore_index=IGNORE_INDEX, validate_args=False)


def compute_mean_iou(predicted: Tensor, targets: Tensor, classes: int) -> float:
    """Return the mean IoU of predicted classes [N] of pixels, all of which have a target [N]."""
    return float(multiclass_jaccard_index(predicted, targets, classes))


def compute_class_ious(confusion: Tensor) -> list[float | None]:
    """Return the IoU of each class; None for those that do not occur.

    Args:
        confusion: Number of pixels by class (rows) and predicted class (columns).
    """
    common = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - common
    pairs = zip(common.tolist(), union.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]
