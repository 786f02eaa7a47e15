"""Interpolated Kneser-Ney n-gram models, the baseline of language models (Chen & Goodman 1999)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.data.cache import CacheEntry, load_or_make

# tokens of train and of test that are counted, so that it takes seconds
MAX_TRAIN, MAX_TEST = 1_000_000, 200_000


def load_ngram_loss(
    train: NDArray[Any], test: NDArray[Any], vocabulary_size: int, order: int
) -> float:
    """Return what `estimate_ngram_loss` does, kept on disk for the next run on the same tokens."""
    train, test = train[-MAX_TRAIN:].astype(np.int64), test[:MAX_TEST].astype(np.int64)
    content = hashlib.sha256(f"{vocabulary_size} {order} {len(train)} ".encode())
    content.update(train.data)
    content.update(test.data)

    def make() -> CacheEntry:
        loss = estimate_ngram_loss(train, test, vocabulary_size, order)
        return CacheEntry({}, np.array([loss]))

    return float(load_or_make(f"ngram-{content.hexdigest()[:32]}", make).array[0])


def estimate_ngram_loss(
    train: NDArray[Any], test: NDArray[Any], vocabulary_size: int, order: int
) -> float:
    """Return the mean loss in nats per token of test, its first token aside.

    Each order is interpolated with the one below, down to the uniform distribution, with one
    discount per order.

    Args:
        train: Tokens [T]; of more than 1 million the last are counted.
        test: Tokens [T]; of more than 200,000 the first are scored.
        vocabulary_size: Number of tokens, seen or not.
        order: Length of the longest n-grams.
    """
    train, test = train[-MAX_TRAIN:].astype(np.int64), test[:MAX_TEST].astype(np.int64)
    split = len(train)
    tokens = np.concatenate([train, test])
    # the numbers of the n-gram that ends at each token, of each length; 0 stands for the empty one
    grams = [np.zeros(len(tokens), np.int64)]
    for length in range(1, order + 1):
        earlier = np.concatenate([[-1], grams[-1][:-1]])
        earlier[split] = -1
        if length > 1:
            earlier = np.where(earlier < 0, np.arange(len(tokens)) + len(tokens), earlier)
        else:
            earlier = np.zeros(len(tokens), np.int64)
        pairs = earlier * vocabulary_size + tokens
        grams.append(np.unique(pairs, return_inverse=True)[1].reshape(-1))

    chance = np.full(len(test), 1 / vocabulary_size)
    for length in range(1, order + 1):
        chance = _interpolate(grams, split, length, length == order, chance)
    return float(-np.log(chance[1:]).mean())


def _interpolate(
    grams: list[NDArray[np.int64]],
    split: int,
    length: int,
    is_longest: bool,
    lower: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the probability of each token of test by n-grams of one length, given the lower's."""
    own, shorter = grams[length], grams[length - 1]
    size = int(own.max()) + 1
    places = np.arange(length - 1, split)
    if is_longest:
        counts = np.bincount(own[places], minlength=size)
    else:
        # how many different tokens come before each n-gram
        first = np.unique(grams[length + 1][length:split], return_index=True)[1] + length
        counts = np.bincount(own[first], minlength=size)

    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / (once + 2 * twice) if once else 0.5
    contexts = np.concatenate([[0], shorter[:-1]])
    seen, where = np.unique(own[places], return_index=True)
    owners = contexts[places[where]]
    contexts_size = int(shorter.max()) + 1
    totals = np.bincount(owners, counts[seen], contexts_size)
    kinds = np.bincount(owners, counts[seen] > 0, contexts_size)

    context = contexts[split:]
    # the first tokens of test have no whole context, but for the empty one
    total = np.where(np.arange(len(context)) >= length - 1, totals[context], 0)
    kept = np.maximum(counts[own[split:]] - discount, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mixed = (kept + discount * kinds[context] * lower) / total
    return np.where(total > 0, mixed, lower)
