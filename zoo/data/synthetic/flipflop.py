"""Flip-flop language modelling (Liu et al. 2023, arXiv:2306.00946): remember one bit, whatever lies in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from zoo.data.corpus.tokenizer import Characters
from zoo.data.generated.source import Generated, Workers
from zoo.data.spec import TextSpec, Windows
from zoo.errors import OptionError
from zoo.registry import Between, Count, register

SYMBOLS = Characters("wri01")
WRITE, READ, IGNORE, ZERO = range(4)  # the bit 1 comes after ZERO


@register
class Flipflop(Generated):
    """Sequences of `length` tokens: pairs of an operation and a bit. Asked is the bit after each read.

    The first operation is w (write), the last r (read); in between i (ignore) with the probability `ignore`, w and r with
    half of the rest each. Bits after w and i are random, that after r is the last that was written. `train`, `val` and
    `test` are numbers of sequences; those of training are drawn anew in every epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Annotated[int, Between(4)] = 64,
        ignore: Annotated[float, Between(0, 1)] = 0.8,
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 4_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        if length % 2:
            raise OptionError(
                "length", f"{length} tokens are no pairs of operation and bit; write {length + 1}"
            )
        self.length, self.ignore = length, ignore
        self.samples = TextSpec(length, SYMBOLS, asks="some")

    def drawn(self, size: int, seed: tuple[int, int]) -> Dataset[Windows]:
        return Sequences(size, self.length // 2, self.ignore, seed)


class Sequences(Dataset[Windows]):
    """Sequences of `pairs`, fetched by batches of (epoch, index), or of indices, and drawn from `seed` and those."""

    def __init__(self, size: int, pairs: int, ignore: float, seed: tuple[int, int]) -> None:
        self.size, self.pairs, self.ignore, self.seed = size, pairs, ignore, seed

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, keys: Sequence[int | tuple[int, int]]) -> Windows:
        draws = self._draws([(0, key) if isinstance(key, int) else key for key in keys])
        operations = np.where(draws[:, 0] < (1 + self.ignore) / 2, WRITE, READ)  # [B, pairs]
        operations[draws[:, 0] < self.ignore] = IGNORE
        operations[:, 0], operations[:, -1] = WRITE, READ
        bits = ZERO + (draws[:, 1] < 0.5)
        written = np.maximum.accumulate(
            np.where(operations == WRITE, np.arange(self.pairs), 0), axis=1
        )
        reads = operations == READ
        bits = np.where(reads, np.take_along_axis(bits, written, axis=1), bits)
        tokens = np.stack([operations, bits], axis=2).reshape(len(keys), -1)  # [B, N]
        targets = np.stack([np.where(reads, bits, -100), np.full_like(bits, -100)], axis=2).reshape(
            len(keys), -1
        )
        return Windows(torch.from_numpy(tokens), torch.from_numpy(targets))

    def _draws(self, keys: Sequence[tuple[int, int]]) -> NDArray[Any]:
        """Uniform numbers [B, 2, pairs]: each sequence has its own stretch of the stream of its epoch.

        Going to a place in a stream costs far less than seeding a generator for each sequence.
        """
        draws = np.empty((len(keys), 2, self.pairs))
        for epoch in {epoch for epoch, _ in keys}:
            stream, at = np.random.PCG64([*self.seed, epoch]), 0
            generator = np.random.Generator(stream)
            for row, index in (
                (row, index) for row, (own, index) in enumerate(keys) if own == epoch
            ):
                stream.advance(index * draws[row].size - at)  # back, where it is negative
                generator.random(out=draws[row])
                at = (index + 1) * draws[row].size
        return draws
