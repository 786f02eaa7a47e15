"""Texts, as a language model expects them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from lightning.fabric.utilities import move_data_to_device

from zoo.data.given import Given
from zoo.tasks.predict import Predict


class Measured:
    """The loss of each text in nats for each token, its perplexity, and bits per character or byte."""

    def __init__(self, task: Predict) -> None:
        self.task = task

    def say(self, batches: Iterable[Given]) -> Iterator[dict[str, Any]]:
        """{path, tokens, loss, perplexity, accuracy, bits_per_...} of each text; `tokens` are those that were asked."""
        for (path,), windows in groupby(batches, key=lambda given: given.paths):
            self.task.on_test_epoch_start()  # each text is a test of its own
            for number, given in enumerate(windows):
                self.task.test_step(move_data_to_device(given.batch, self.task.device), number)
            counts = self.task.test_tally.compute()
            measures = {**counts.measures(), **counts.bits(self.task.unit)}
            found = {name: float(value) for name, value in measures.items()}
            yield {"path": str(path), "tokens": int(counts.asked.sum()), **found}

    def lines(self, one: dict[str, Any], width: int, first: bool) -> list[str]:
        """The path, then its numbers below their names."""
        path, tokens, *measures = one.values()
        titles = [title.replace("_per_", "/") for title in one]
        row = [path.ljust(width), f"{tokens:>9}", *(f"{number:.4f}" for number in measures)]
        sizes = [max(width, 4), 9, *(max(len(title), 9) for title in titles[2:])]
        rows = [[titles[0].ljust(sizes[0]), *titles[1:]], row] if first else [row]
        return ["  ".join(cell.rjust(size) for cell, size in zip(each, sizes, strict=True)) for each in rows]
