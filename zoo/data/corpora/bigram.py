"""The bigram baseline of a text: how far counting pairs of tokens goes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.data.corpora.reading import Reading


def bigram_loss(reading: Reading) -> float:
    """Mean loss in nats per token of test, under p(b | a) = (count(a, b) + 1) / (count(a) + V) counted on train."""
    size = len(reading.corpus.encoded.vocabulary)
    left, right = reading.pairs("train")
    pairs, counts = np.unique(_joined(left, right, size), return_counts=True)
    firsts = np.bincount(left, minlength=size)
    left, right = reading.pairs("test")
    asked = _joined(left, right, size)
    at = np.searchsorted(pairs, asked).clip(max=len(pairs) - 1)
    seen = np.where(pairs[at] == asked, counts[at], 0)
    return float(-np.log((seen + 1) / (firsts[left] + size)).mean())


def _joined(left: NDArray[Any], right: NDArray[Any], size: int) -> NDArray[Any]:
    """One number per pair: a table of all pairs would not fit for large vocabularies."""
    return left.astype(np.int64) * size + right
