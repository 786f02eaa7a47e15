"""Selective copying: symbols in order, without the blanks (Gu and Dao 2023, arXiv:2312.00752)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from zoo.data.corpus.tokenizer import Characters
from zoo.data.spec import TextSpec
from zoo.data.synthetic.base import Example, SyntheticTask, Workers, append_answer
from zoo.options import Between, Count
from zoo.registry import register

LETTERS = 16
CHARACTERS = Characters("abcdefghijklmnop_|")
BLANK, MARKER = LETTERS, LETTERS + 1


@register
class SelectiveCopy(SyntheticTask):
    """`symbols` letters, each any of 16, scattered among `blanks`, then a marker and the letters.

    The targets are the letters in order. Guessing gets 1 in 16 right, and hardly ever a whole
    answer. `train`, `val` and `test` are numbers of sequences; those of training are drawn anew in
    every epoch. Fewer or more blanks than in training make sequences denser or sparser.
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
        spec = TextSpec(blanks + 2 * symbols, CHARACTERS, targets="answers")
        super().__init__(seed, spec, batch_size, (train, val, test), workers)
        self.symbols, self.blanks = symbols, blanks

    def draw_example(self, rng: np.random.Generator) -> Example:
        size = self.symbols + self.blanks
        symbols = rng.integers(LETTERS, size=self.symbols)
        indices = np.sort(rng.choice(size, self.symbols, replace=False))
        question = np.full(size + 1, BLANK)
        question[indices] = symbols
        question[-1] = MARKER
        return append_answer(question, symbols)
