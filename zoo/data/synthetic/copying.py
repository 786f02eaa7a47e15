"""Copying, reversing and sorting letters (Kazemnejad et al. 2023, arXiv:2305.19466)."""

from __future__ import annotations

from typing import Literal, Unpack

import numpy as np

from zoo.data.corpus.tokenizer import Characters
from zoo.data.spec import TextSpec
from zoo.data.synthetic.base import (
    Example,
    SyntheticOptions,
    SyntheticTask,
    append_answer,
    refuse_least,
)
from zoo.options import Count
from zoo.registry import register

LETTERS = 26
CHARACTERS = Characters("abcdefghijklmnopqrstuvwxyz=.")
MARKER, END = LETTERS, LETTERS + 1

Order = Literal["same", "reversed", "sorted"]


@register
class Copying(SyntheticTask):
    """Letters, an equals sign, and the same letters in the same order, `reversed` or `sorted`.

    The number of letters is uniform from `least` to `symbols`. The targets are the copy and the
    full stop after it. Guessing gets 1 in 26 letters right if they are not sorted, and almost never
    a full answer. `train`, `val` and `test` are numbers of sequences; training sequences are drawn
    anew in each epoch.
    """

    pads = True

    def __init__(
        self,
        seed: int,
        *,
        order: Order = "same",
        symbols: Count = 20,
        least: Count = 1,
        **options: Unpack[SyntheticOptions],
    ) -> None:
        refuse_least(least, symbols, "symbols")
        spec = TextSpec(2 * symbols + 1, CHARACTERS, targets="answers")
        super().__init__(seed, spec, **options)
        self.order, self.least, self.symbols = order, least, symbols

    def draw_example(self, rng: np.random.Generator) -> Example:
        letters = rng.integers(LETTERS, size=rng.integers(self.least, self.symbols + 1))
        copy = {"same": letters, "reversed": letters[::-1], "sorted": np.sort(letters)}[self.order]
        return append_answer(np.append(letters, MARKER), np.append(copy, END))
