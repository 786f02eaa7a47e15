"""Accuracy where the class beside the right one counts as well, for classes that are in order."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor
from torchmetrics import Metric

from zoo.data.spec import ImageSpec
from zoo.options import Between
from zoo.registry import register


@register
class WithinOne(Metric):
    """Any metric of torchmetrics, made with the facts of the data and options.

    The type of `spec` says which data it measures.

    Args:
        spec: The facts of the data.
        distance: Classes that a prediction may be off.
    """

    full_state_update = False
    right: Tensor
    count: Tensor

    def __init__(self, spec: ImageSpec, *, distance: Annotated[int, Between(0)] = 1) -> None:
        super().__init__()
        self.distance = distance
        self.add_state("right", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch of logits [B, classes] and labels [B]."""
        self.right += ((logits.argmax(-1) - labels).abs() <= self.distance).sum()
        self.count += len(labels)

    def compute(self) -> Tensor:
        return self.right / self.count
