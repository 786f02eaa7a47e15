"""Flip-flop: remember one bit despite distractors (Liu et al. 2023, arXiv:2306.00946)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.data.corpus.tokenizer import Characters
from zoo.data.sampler import Key
from zoo.data.spec import IGNORE_INDEX, TextBatch, TextSpec
from zoo.data.synthetic.base import LoaderOptions, SyntheticTask, split_keys
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.registry import register

SYMBOLS = Characters("wri01")
# Numbers of the symbols; ZERO + 1 is the bit 1.
WRITE, READ, IGNORE, ZERO = range(4)


@register
class Flipflop(SyntheticTask):
    """Sequences of `length` tokens: pairs of an operation and a bit.

    The targets are the bits after reads. The first operation is w (write) and the last is r (read).
    The others are i (ignore) with probability `ignore`, and w or r with equal probability
    otherwise. Bits after w and i are random; the bit after r is the last one written. `train`,
    `val` and `test` are numbers of sequences; training sequences are drawn anew in each epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Annotated[int, Between(4)] = 64,
        ignore: Annotated[float, Between(0, 1)] = 0.8,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 4_000,
        **options: Unpack[LoaderOptions],
    ) -> None:
        if length % 2:
            message = f"{length} is odd, but tokens are pairs of operation and bit"
            raise OptionError("length", f"{message}; write {length + 1}")
        spec = TextSpec(length, SYMBOLS, targets="some")
        super().__init__(seed, spec, train=train, val=val, test=test, **options)
        self.pairs, self.ignore = length // 2, ignore

    def draw_batch(self, seed: tuple[int, int], keys: Sequence[Key]) -> TextBatch:
        draws = self._draw_uniform(seed, split_keys(keys))
        operations = np.where(draws[:, 0] < (1 + self.ignore) / 2, WRITE, READ)  # [B, pairs]
        operations[draws[:, 0] < self.ignore] = IGNORE
        operations[:, 0], operations[:, -1] = WRITE, READ

        # A read repeats the bit of the last write before it.
        bits = ZERO + (draws[:, 1] < 0.5)
        # the first operation is a write, so 0 is right where no other came before
        write_index = np.where(operations == WRITE, np.arange(self.pairs), 0)
        last_write = np.maximum.accumulate(write_index, axis=1)
        reads = operations == READ
        bits = np.where(reads, np.take_along_axis(bits, last_write, axis=1), bits)

        tokens = np.stack([operations, bits], axis=2)  # [B, pairs, 2]
        none = np.full_like(bits, IGNORE_INDEX)
        targets = np.stack([np.where(reads, bits, IGNORE_INDEX), none], axis=2)
        shape = (len(keys), -1)
        return TextBatch(
            torch.from_numpy(tokens.reshape(shape)), torch.from_numpy(targets.reshape(shape))
        )

    def _draw_uniform(self, seed: tuple[int, int], keys: Sequence[tuple[int, int]]) -> NDArray[Any]:
        """Draw uniform numbers [B, 2, pairs] that depend only on (seed, epoch, index)."""
        # Each sequence has a part of the stream of its epoch. Advancing a stream costs far less
        # than seeding a generator for each sequence.
        draws = np.empty((len(keys), 2, self.pairs))
        size = 2 * self.pairs
        for epoch in {epoch for epoch, _ in keys}:
            stream, offset = np.random.PCG64([*seed, epoch]), 0
            generator = np.random.Generator(stream)
            for row, (own_epoch, index) in enumerate(keys):
                if own_epoch == epoch:
                    # A negative distance moves back.
                    stream.advance(index * size - offset)
                    generator.random(out=draws[row])
                    offset = (index + 1) * size
        return draws
