"""Copying, reversing and sorting (Kazemnejad et al. 2023, arXiv:2305.19466): letters, then the same again in some order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from zoo.data.corpus.tokenizer import Characters
from zoo.data.generated.sequences import Example, Sequences, answered
from zoo.data.generated.source import Generated, Workers, ordered
from zoo.data.spec import TextSpec
from zoo.registry import Count, register

LETTERS = 26
CHARACTERS = Characters("abcdefghijklmnopqrstuvwxyz=.")
MARKER, END = LETTERS, LETTERS + 1

Order = Literal["same", "reversed", "sorted"]


@register
class Copying(Generated):
    """`least` to `symbols` letters, each any of 26 and as many as any other number, an equals sign, and then the same
    letters in the same order, `reversed` or `sorted`. Asked are those and the full stop that ends them.

    A guess gets 1 in 26 letters right where they are not sorted, and hardly ever a whole answer. `train`, `val` and `test`
    are numbers of sequences; those of training are drawn anew in every epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        order: Order = "same",
        symbols: Count = 20,
        least: Count = 1,
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 1_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        ordered(least, symbols, "symbols")
        self.copies = Copies(order, least, symbols)
        self.samples = TextSpec(2 * symbols + 1, CHARACTERS, asks="answers")

    def drawn(self, size: int, seed: tuple[int, int]) -> Sequences:
        return Sequences(self.copies, size, seed, padded=True)


@dataclass(frozen=True)
class Copies:
    order: Order
    least: int
    most: int

    def __call__(self, draw: np.random.Generator) -> Example:
        letters = draw.integers(LETTERS, size=draw.integers(self.least, self.most + 1))
        copy = {"same": letters, "reversed": letters[::-1], "sorted": np.sort(letters)}[self.order]
        return answered(np.append(letters, MARKER), np.append(copy, END))
