"""Random letters with a marker; the class is the letter at a fixed offset after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from zoo.data.base import FileBatch
from zoo.data.corpus.classification import pad_tokens, read_text_files
from zoo.data.corpus.tokenizer import Characters
from zoo.data.sampler import Key
from zoo.data.spec import DataSpec, TextClassificationSpec
from zoo.data.synthetic.base import LoaderOptions, SyntheticTask, refuse_least, split_keys
from zoo.errors import OptionError
from zoo.options import Count
from zoo.registry import register

LETTERS = "abcdefgh"
SYMBOLS = Characters(LETTERS + "*")
MARKER = len(LETTERS)


@register
class MarkerOffset(SyntheticTask):
    """Texts of `least` to `length` random letters, one of them replaced by a *.

    The class is the letter `offset` positions after the *. It does not follow from the frequencies
    of letters: it needs content and distance together. `train`, `val` and `test` are numbers of
    texts; training texts are drawn anew in each epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Count = 24,
        least: Count = 12,
        offset: Count = 3,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 4_000,
        **options: Unpack[LoaderOptions],
    ) -> None:
        refuse_least(least, length, "letters")
        if offset >= least:
            message = f"{offset} exceeds the end of {least} letters; write {least - 1} or less"
            raise OptionError("offset", message)
        spec = TextClassificationSpec(length, SYMBOLS, len(LETTERS), tuple(LETTERS))
        super().__init__(seed, spec, train=train, val=val, test=test, **options)
        self.least, self.length, self.offset = least, length, offset

    def draw_batch(self, seed: tuple[int, int], keys: Sequence[Key]) -> tuple[Tensor, Tensor]:
        texts, labels = [], []
        for epoch, index in split_keys(keys):
            rng = np.random.default_rng([*seed, epoch, index])
            size = int(rng.integers(self.least, self.length + 1))
            letters = rng.integers(len(LETTERS), size=size)
            # The marker must be at least `offset` letters before the end.
            position = int(rng.integers(size - self.offset))
            letters[position] = MARKER
            texts.append(letters)
            labels.append(int(letters[position + self.offset]))
        return pad_tokens(texts), torch.tensor(labels)

    def read_files(self, paths: Sequence[Path], spec: DataSpec) -> Iterator[FileBatch]:
        return read_text_files(paths, spec, self.length, self.batch_size)
