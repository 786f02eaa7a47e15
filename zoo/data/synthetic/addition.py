"""Addition of long numbers, the least digit first (Lee et al. 2023, arXiv:2307.03381): what comes after `a+b=`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from zoo.data.corpus.tokenizer import Characters
from zoo.data.generated.sequences import Example, Sequences, answered
from zoo.data.generated.source import Generated, Workers, ordered
from zoo.data.spec import TextSpec
from zoo.registry import Between, Count, register

Digits = Annotated[int, Between(1, 4_299)]  # Python reads no longer numbers
CHARACTERS = Characters("0123456789+=.")


@register
class Addition(Generated):
    """Sums `a+b=c.` of numbers of `least` to `digits` digits, all three written from the least digit on. Asked are the
    digits of c and the full stop that ends it.

    Every number of digits is as likely as any other, for a and b apart. A guess gets a tenth of the digits right, and
    hardly ever a whole sum. `train`, `val` and `test` are numbers of sums; those of training are drawn anew in every epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        digits: Digits = 20,
        least: Count = 1,
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 1_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        ordered(least, digits, "digits")
        self.sums = Sums(least, digits)
        self.samples = TextSpec(3 * digits + 3, CHARACTERS, asks="answers")

    def drawn(self, size: int, seed: tuple[int, int]) -> Sequences:
        return Sequences(self.sums, size, seed, padded=True)


@dataclass(frozen=True)
class Sums:
    least: int
    most: int

    def __call__(self, draw: np.random.Generator) -> Example:
        one, two = self._number(draw), self._number(draw)
        question, answer = f"{one}+{two}=", str(int(one[::-1]) + int(two[::-1]))[::-1]
        return answered(CHARACTERS.numbers(question), CHARACTERS.numbers(f"{answer}."))

    def _number(self, draw: np.random.Generator) -> str:
        """Any number of so many digits, reversed: the last one is 0 in the number 0 alone."""
        digits = draw.integers(10, size=draw.integers(self.least, self.most + 1))
        if len(digits) > 1:
            digits[-1] = draw.integers(1, 10)
        return "".join(map(str, digits))
