"""Addition of long numbers, least digit first (Lee et al. 2023, arXiv:2307.03381)."""

from __future__ import annotations

from typing import Annotated, Unpack

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
from zoo.options import Between, Count
from zoo.registry import register

# Python does not parse longer integers by default.
Digits = Annotated[int, Between(1, 4_299)]
CHARACTERS = Characters("0123456789+=.")


@register
class Addition(SyntheticTask):
    """Sums `a+b=c.` of numbers with `least` to `digits` digits, all written least digit first.

    The targets are the digits of c and the full stop after them. The numbers of digits of a and b
    are drawn uniformly and independently. Guessing gets a tenth of the digits right and almost
    never a full sum. `train`, `val` and `test` are numbers of sums; training sums are drawn anew in
    each epoch.
    """

    pads = True

    def __init__(
        self,
        seed: int,
        *,
        digits: Digits = 20,
        least: Count = 1,
        **options: Unpack[SyntheticOptions],
    ) -> None:
        refuse_least(least, digits, "digits")
        spec = TextSpec(3 * digits + 3, CHARACTERS, targets="answers")
        super().__init__(seed, spec, **options)
        self.least, self.digits = least, digits

    def draw_example(self, rng: np.random.Generator) -> Example:
        a, b = self._draw_number(rng), self._draw_number(rng)
        total = str(int(a[::-1]) + int(b[::-1]))[::-1]
        question = CHARACTERS.encode_array(f"{a}+{b}=")
        return append_answer(question, CHARACTERS.encode_array(f"{total}."))

    def _draw_number(self, rng: np.random.Generator) -> str:
        """Draw a number in reversed digits, without leading zeros."""
        digits = rng.integers(10, size=rng.integers(self.least, self.digits + 1))
        if len(digits) > 1:
            digits[-1] = rng.integers(1, 10)
        return "".join(map(str, digits))
