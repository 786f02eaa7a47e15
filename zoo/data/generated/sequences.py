"""Sequences drawn one by one, as windows of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from zoo.data.corpus.windows import UNASKED, Key
from zoo.data.spec import Windows

PADDING = -1  # the document of what is no token


class Example(NamedTuple):
    """One sequence: what is read, and at each token what is asked, -100 for nothing."""

    inputs: NDArray[Any]  # int64 [N]
    targets: NDArray[Any]  # int64 [N]


def answered(question: NDArray[Any], answer: NDArray[Any]) -> Example:
    """A question followed by its answer, of which every token is asked and none before it."""
    inputs = np.concatenate([question, answer[:-1]], dtype=np.int64)
    targets = np.full(len(inputs), UNASKED)
    targets[-len(answer) :] = answer
    return Example(inputs, targets)


class Sequences(Dataset[Windows]):
    """As many as `size` that `make` draws, each with a generator of its own, fetched by batches of keys.

    Those of a training are others in every epoch, unless not `anew`. `padded` ones may differ in length.
    """

    def __init__(
        self,
        make: Callable[[np.random.Generator], Example],
        size: int,
        seed: tuple[int, int],
        *,
        padded: bool = False,
        anew: bool = True,
    ) -> None:
        self.make, self.size, self.seed, self.padded, self.anew = make, size, seed, padded, anew

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, keys: Sequence[Key]) -> Windows:
        pairs = [(0, key) if isinstance(key, int) else key for key in keys]
        examples = [self._example(epoch if self.anew else 0, index) for epoch, index in pairs]
        if self.padded:
            return padded(examples)
        inputs, targets = (
            torch.from_numpy(np.stack(column)) for column in zip(*examples, strict=True)
        )
        return Windows(inputs, targets)

    def _example(self, epoch: int, index: int) -> Example:
        return self.make(np.random.default_rng([*self.seed, epoch, index]))


def padded(examples: Sequence[Example]) -> Windows:
    """Sequences side by side, each with what is no token after it: no model sees that, whichever way it looks."""
    size = len(examples), max(len(example.inputs) for example in examples)
    inputs, targets, documents = (
        np.zeros(size, np.int64),
        np.full(size, UNASKED),
        np.full(size, PADDING),
    )
    for row, example in enumerate(examples):
        inputs[row, : len(example.inputs)], targets[row, : len(example.inputs)] = example
        documents[row, : len(example.inputs)] = 0
    return Windows(*map(torch.from_numpy, (inputs, targets, documents)))
