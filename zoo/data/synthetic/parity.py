"""Parity of bits (Anil et al. 2022, arXiv:2207.04901; Kazemnejad et al. 2023, arXiv:2305.19466)."""

from __future__ import annotations

from typing import Unpack

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

CHARACTERS = Characters("01=")
MARKER = 2


@register
class Parity(SyntheticTask):
    """Sequences of `least` to `bits` bits and an equals sign.

    The number of bits is drawn uniformly. The target is the token after the sign: 1 if an odd
    number of bits is 1, otherwise 0. Guessing is right in half of all sequences. `train`, `val` and
    `test` are numbers of sequences; training sequences are drawn anew in each epoch.
    """

    pads = True

    def __init__(
        self, seed: int, *, bits: Count = 20, least: Count = 1, **options: Unpack[SyntheticOptions]
    ) -> None:
        refuse_least(least, bits, "bits")
        spec = TextSpec(bits + 1, CHARACTERS, targets="some")
        super().__init__(seed, spec, **options)
        self.least, self.bits = least, bits

    def draw_example(self, rng: np.random.Generator) -> Example:
        bits = rng.integers(2, size=rng.integers(self.least, self.bits + 1))
        return append_answer(np.append(bits, MARKER), np.array([bits.sum() % 2]))
