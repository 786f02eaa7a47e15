"""Images or texts, as a classifier names them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from zoo.data.given import Given
from zoo.samples import Images, Passages
from zoo.tasks.classify import Classify


class Classified:
    """The `top` likeliest classes of each file, by their names where the data of training had them."""

    def __init__(self, task: Classify, top: int) -> None:
        assert isinstance(task.samples, Images | Passages)
        self.task, self.top = task, min(top, task.samples.classes)
        self.labels: Sequence[str | int] = task.samples.names or range(task.samples.classes)

    def say(self, batches: Iterable[Given]) -> Iterator[dict[str, Any]]:
        """{path, label, probability, top: [{label, probability}, ...]} of each file."""
        for given in batches:
            logits = self.task(given.batch.to(self.task.device))
            shares, classes = logits.float().softmax(-1).topk(self.top)
            for path, row, numbers in zip(given.paths, shares, classes, strict=True):
                yield {"path": str(path), **(top := self._top(row, numbers))[0], "top": top}

    def _top(self, shares: Tensor, classes: Tensor) -> list[dict[str, Any]]:
        pairs = zip(classes.tolist(), shares.tolist(), strict=True)
        return [{"label": self.labels[number], "probability": share} for number, share in pairs]

    def lines(self, one: dict[str, Any], width: int, first: bool) -> list[str]:
        """The path, then its classes, the likeliest first."""
        told = (f"{each['label']} {each['probability']:.4f}" for each in one["top"])
        return ["  ".join([one["path"].ljust(width), *told])]
