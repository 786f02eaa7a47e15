"""Two marks among random letters: which comes first, and whether they are near. No download."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.corpora.passages import given, padded
from zoo.data.corpora.vocabulary import Characters
from zoo.data.given import Given
from zoo.data.order import Loader
from zoo.data.source import Source
from zoo.errors import Invalid
from zoo.registry import Between, register
from zoo.samples import Passages, Samples

SYMBOLS = Characters("<>abcdefgh")
OPENS, CLOSES, LETTERS = 0, 1, 2  # the numbers of < and >, and the first of the letters
NAMES = ("< first, near", "< first, far", "> first, near", "> first, far")
PARTS = ("train", "val", "test")

Count = Annotated[int, Between(1)]


@register
class Marks(Source):
    """Texts of `least` to `length` letters with one < and one > among them, in four classes that are equally likely.

    The class is which of the two comes first, and whether it is by at most `reach` places: what is no function of the places
    of tokens is right once in four times. `train`, `val` and `test` are numbers of texts; those of training are drawn anew
    in every epoch.
    """

    def __init__(
        self, seed: int, *, length: Count = 64, least: Count = 16, reach: Count = 8, batch_size: Count = 64,
        train: Count = 16_000, val: Count = 1_000, test: Count = 4_000, workers: Annotated[int, Between(0)] = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if least > length:
            raise Invalid("least", f"{least} letters are more than the {length} of the longest text")
        if reach > least - 2:
            raise Invalid("reach", f"{reach} leaves no place farther away in {least} letters; {least - 2} is the most")
        self.seed, self.batch_size, self.workers = seed, batch_size, workers
        self.sizes = {"train": train, "val": val, "test": test}
        self.bounds, self.length = (least, length, reach), length
        self.samples = Passages(length, SYMBOLS, len(NAMES), NAMES)

    def loader(self, part: str) -> Loader:
        texts = Marked(self.sizes[part], self.bounds, (self.seed, PARTS.index(part)))
        return Loader(texts, self.batch_size, self.seed, self.workers, self.share, training=part == "train")

    def count(self, part: str) -> int:
        return self.sizes[part]

    def read(self, paths: Sequence[Path], samples: Samples) -> Iterator[Given]:
        return given(paths, samples, self.length, self.batch_size)


class Marked(Dataset[tuple[Tensor, Tensor]]):
    """Texts drawn from `seed` and (epoch, index), or index, fetched by batches of those."""

    def __init__(self, size: int, bounds: tuple[int, int, int], seed: tuple[int, int]) -> None:
        self.size, self.bounds, self.seed = size, bounds, seed

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> tuple[Tensor, Tensor]:
        pairs = [(0, key) if isinstance(key, int) else key for key in keys]
        texts, labels = zip(*(self._drawn(np.random.default_rng([*self.seed, *pair])) for pair in pairs), strict=True)
        return padded(texts), torch.tensor(labels)

    def _drawn(self, draw: np.random.Generator) -> tuple[NDArray[np.int64], int]:
        least, most, reach = self.bounds
        count, label = int(draw.integers(least, most + 1)), int(draw.integers(len(NAMES)))
        near = label % 2 == 0
        distance = int(draw.integers(1, reach + 1) if near else draw.integers(reach + 1, count))
        first = int(draw.integers(count - distance))
        text = draw.integers(LETTERS, len(SYMBOLS), count)
        text[[first, first + distance]] = (OPENS, CLOSES) if label < 2 else (CLOSES, OPENS)
        return text, label
