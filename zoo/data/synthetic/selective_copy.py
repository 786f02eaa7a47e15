"""Selective copying: symbols in order, without the blanks (Gu and Dao 2023, arXiv:2312.00752)."""

from __future__ import annotations

from typing import Annotated, Unpack

import numpy as np

from zoo.data.corpus.tokenizer import Characters
from zoo.data.spec import TextSpec
from zoo.data.synthetic.base import Example, SyntheticOptions, SyntheticTask, append_answer
from zoo.options import Between, Count
from zoo.registry import register

LETTERS = 16
CHARACTERS = Characters("abcdefghijklmnop_|")
BLANK, MARKER = LETTERS, LETTERS + 1


@register
class SelectiveCopy(SyntheticTask):
    """Random letters among blanks, then a marker and the letters without the blanks.

    There are `symbols` letters, drawn from 16, at random places among `blanks` blanks. The targets
    are the letters in order. Guessing gets 1 in 16 right, and almost never a full answer. `train`,
    `val` and `test` are numbers of sequences; training sequences are drawn anew in each epoch. In a
    test, fewer or more blanks than in training make sequences denser or sparser.
    """

    def __init__(
        self,
        seed: int,
        *,
        symbols: Count = 128,
        blanks: Annotated[int, Between(0)] = 128,
        **options: Unpack[SyntheticOptions],
    ) -> None:
        spec = TextSpec(blanks + 2 * symbols, CHARACTERS, targets="answers")
        super().__init__(seed, spec, **options)
        self.symbols, self.blanks = symbols, blanks

    def draw_example(self, rng: np.random.Generator) -> Example:
        size = self.symbols + self.blanks
        symbols = rng.integers(LETTERS, size=self.symbols)
        # Sorted places keep the order of the letters.
        indices = np.sort(rng.choice(size, self.symbols, replace=False))
        question = np.full(size + 1, BLANK)
        question[indices] = symbols
        question[-1] = MARKER
        return append_answer(question, symbols)
