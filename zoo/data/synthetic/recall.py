"""Associative recall of many keys (Arora et al. 2023, arXiv:2312.04927), bound anew again and again (arXiv:2410.17980)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from zoo.data.corpus.tokenizer import Words
from zoo.data.corpus.windows import UNASKED
from zoo.data.generated.sequences import Example, Sequences
from zoo.data.generated.source import Generated, Workers
from zoo.data.spec import TextSpec
from zoo.errors import OptionError
from zoo.registry import Between, Count, register


@register
class Recall(Generated):
    """Streams of `length` tokens: a key, a value, a key, a value. Asked, after a key that was bound before, is the value
    that it was bound to last; the value that then follows binds it anew.

    Each stream has `pairs` keys out of the `keys` that there are, and any of those each time; values are any of `values`.
    A guess gets 1 in `values` right. `train`, `val` and `test` are numbers of streams; those of training are drawn anew in
    every epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Annotated[int, Between(4)] = 256,
        pairs: Count = 32,
        keys: Count = 64,
        values: Annotated[int, Between(2)] = 64,
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 1_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        if length % 2:
            raise OptionError(
                "length", f"{length} tokens are no pairs of key and value; write {length + 1}"
            )
        if pairs > keys:
            raise OptionError(
                "pairs", f"{pairs} keys of a stream are more than the {keys} that there are"
            )
        if length // 2 <= pairs:
            raise OptionError(
                "pairs",
                f"no key of {length // 2} need come again out of {pairs}; write less than {length // 2}",
            )
        self.length, self.streams = length, Streams(length // 2, pairs, keys, values)
        words = Words(
            (*(f"k{number}" for number in range(keys)), *(f"v{number}" for number in range(values)))
        )
        self.samples = TextSpec(length, words, asks="some")

    def drawn(self, size: int, seed: tuple[int, int]) -> Sequences:
        return Sequences(self.streams, size, seed)


@dataclass(frozen=True)
class Streams:
    steps: int
    pairs: int
    keys: int
    values: int

    def __call__(self, draw: np.random.Generator) -> Example:
        own = draw.choice(self.keys, self.pairs, replace=False)
        keys = draw.choice(own, self.steps)
        values = self.keys + draw.integers(self.values, size=self.steps)
        bound: dict[int, int] = {}
        targets = np.full((self.steps, 2), UNASKED)
        for step, (key, value) in enumerate(zip(keys.tolist(), values.tolist(), strict=True)):
            targets[step, 0] = bound.get(key, UNASKED)
            bound[key] = value
        return Example(np.stack([keys, values], axis=1).ravel(), targets.ravel())
