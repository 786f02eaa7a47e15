"""Random letters with a mark among them: which letter stands so many places after it. No download."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.base import Given
from zoo.data.corpus.classification import given, padded
from zoo.data.corpus.tokenizer import Characters
from zoo.data.generated.source import Generated, Workers
from zoo.data.spec import Samples, TextClassificationSpec
from zoo.errors import OptionError
from zoo.registry import Count, register

LETTERS = "abcdefgh"
SYMBOLS = Characters(LETTERS + "*")
MARK = len(LETTERS)


@register
class Marked(Generated):
    """Texts of `least` to `length` random letters, one of which a * takes the place of. The class is the letter that stands
    `reach` places after it, which is no function of how often each occurs: it takes content and distance together.

    `train`, `val` and `test` are numbers of texts; those of training are drawn anew in every epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Count = 24,
        least: Count = 12,
        reach: Count = 3,
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 4_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        if least > length:
            raise OptionError(
                "least", f"{least} letters are more than the {length} of the longest text"
            )
        if reach >= least:
            raise OptionError(
                "reach",
                f"no letter stands {reach} places after another of {least}; {least - 1} is the most",
            )
        self.bounds, self.length = (least, length, reach), length
        self.samples = TextClassificationSpec(length, SYMBOLS, len(LETTERS), tuple(LETTERS))

    def drawn(self, size: int, seed: tuple[int, int]) -> Dataset[tuple[Tensor, Tensor]]:
        return Letters(size, self.bounds, seed)

    def read(self, paths: Sequence[Path], samples: Samples) -> Iterator[Given]:
        return given(paths, samples, self.length, self.batch_size)


class Letters(Dataset[tuple[Tensor, Tensor]]):
    """Texts drawn from `seed` and (epoch, index), or index, fetched by batches of those."""

    def __init__(self, size: int, bounds: tuple[int, int, int], seed: tuple[int, int]) -> None:
        self.size, self.bounds, self.seed = size, bounds, seed

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> tuple[Tensor, Tensor]:
        pairs = [(0, key) if isinstance(key, int) else key for key in keys]
        texts, labels = zip(
            *(self._drawn(np.random.default_rng([*self.seed, *pair])) for pair in pairs),
            strict=True,
        )
        return padded(texts), torch.tensor(labels)

    def _drawn(self, draw: np.random.Generator) -> tuple[NDArray[np.int64], int]:
        least, most, reach = self.bounds
        text = draw.integers(len(LETTERS), size=int(draw.integers(least, most + 1)))
        place = int(draw.integers(len(text) - reach))
        text[place] = MARK
        return text, int(text[place + reach])
