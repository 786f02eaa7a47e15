"""Parity (Anil et al. 2022, arXiv:2207.04901; Kazemnejad et al. 2023, arXiv:2305.19466): is the number of ones odd?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zoo.data.corpus.tokenizer import Characters
from zoo.data.generated.sequences import Example, Sequences, answered
from zoo.data.generated.source import Generated, Workers, ordered
from zoo.data.spec import TextSpec
from zoo.registry import Count, register

CHARACTERS = Characters("01=")
MARKER = 2


@register
class Parity(Generated):
    """`least` to `bits` bits, each number of them as likely as any other, and an equals sign. Asked is the token after it:
    1 where an odd number of the bits is 1, else 0. A guess is right in half of all sequences.

    `train`, `val` and `test` are numbers of sequences; those of training are drawn anew in every epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        bits: Count = 20,
        least: Count = 1,
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 1_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        ordered(least, bits, "bits")
        self.rows = Rows(least, bits)
        self.samples = TextSpec(bits + 1, CHARACTERS, asks="some")

    def drawn(self, size: int, seed: tuple[int, int]) -> Sequences:
        return Sequences(self.rows, size, seed, padded=True)


@dataclass(frozen=True)
class Rows:
    least: int
    most: int

    def __call__(self, draw: np.random.Generator) -> Example:
        bits = draw.integers(2, size=draw.integers(self.least, self.most + 1))
        return answered(np.append(bits, MARKER), np.array([bits.sum() % 2]))
