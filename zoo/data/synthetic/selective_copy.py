"""Selective copy (Gu and Dao 2023, arXiv:2312.00752): symbols in their order, without the blanks that lie between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from zoo.data.corpus.tokenizer import Characters
from zoo.data.generated.sequences import Example, Sequences, answered
from zoo.data.generated.source import Generated, Workers
from zoo.data.spec import TextSpec
from zoo.registry import Between, Count, register

LETTERS = 16
CHARACTERS = Characters("abcdefghijklmnop_|")
BLANK, MARKER = LETTERS, LETTERS + 1


@register
class SelectiveCopy(Generated):
    """As many `symbols` as said, each any of 16 letters, lie anywhere among `blanks`; after a marker they are asked in
    order. A guess gets 1 in 16 right, and hardly ever a whole answer.

    `train`, `val` and `test` are numbers of sequences; those of training are drawn anew in every epoch. Arrangements with
    fewer or more blanks than in training are denser or sparser.
    """

    def __init__(
        self,
        seed: int,
        *,
        symbols: Count = 128,
        blanks: Annotated[int, Between(0)] = 128,
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 1_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        self.scattered = Scattered(symbols, blanks)
        self.samples = TextSpec(blanks + 2 * symbols, CHARACTERS, asks="answers")

    def drawn(self, size: int, seed: tuple[int, int]) -> Sequences:
        return Sequences(self.scattered, size, seed)


@dataclass(frozen=True)
class Scattered:
    symbols: int
    blanks: int

    def __call__(self, draw: np.random.Generator) -> Example:
        symbols = draw.integers(LETTERS, size=self.symbols)
        question = np.full(self.symbols + self.blanks + 1, BLANK)
        question[np.sort(draw.choice(self.symbols + self.blanks, self.symbols, replace=False))] = (
            symbols
        )
        question[-1] = MARKER
        return answered(question, symbols)
