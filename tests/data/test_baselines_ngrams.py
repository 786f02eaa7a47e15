"""The n-gram baselines: the bigram against counting in plain Python, longer ones by laws."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from zoo.data.baselines import estimate_ngram_loss
from zoo.data.text import Text


def literal(train, test, size):
    pairs, firsts = Counter(pairwise(train)), Counter(train[:-1])
    losses = [-math.log((pairs[a, b] + 1) / (firsts[a] + size)) for a, b in pairwise(test)]
    return sum(losses) / len(losses)


@pytest.mark.parametrize(
    "options", [{}, {"tokens": "byte"}, {"tokens": "subword", "vocabulary": 270}], ids=str
)
def test_the_bigram_loss_is_that_of_counting(text, options):
    data = text(
        "the rest of the zoo. is it the best of zoos? " * 20 + "no, the zest! " * 20, **options
    )
    parts = data.corpus.tokens.splits
    expected = literal(
        parts["train"].tokens.tolist(), parts["test"].tokens.tolist(), len(data.spec.vocabulary)
    )
    assert data.compute_bigram_loss(data) == pytest.approx(expected)


def test_pairs_across_documents_do_not_count(write):
    files = [write("ab" * 40, "1.txt"), write("ba" * 20, "2.txt")]
    data = Text(0, files=files, length=2, documents=True)
    left, right = data.list_bigrams("train")
    assert len(left) == 96 - 2
    assert (left != right).all()


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_of_the_next_token_sum_to_one(order):
    train = np.random.default_rng(0).integers(0, 3, 300)
    past, total = np.array([0, 1, 2, 1, 0, 2]), 0.0
    before = estimate_ngram_loss(train, past, 4, order) * (len(past) - 1)
    for token in range(4):
        loss = estimate_ngram_loss(train, np.append(past, token), 4, order) * len(past)
        total += math.exp(before - loss)
    assert total == pytest.approx(1)


def test_longer_grams_learn_what_bigrams_cannot():
    # a token is the sum of the two before it, modulo 5, with some noise
    rng, tokens = np.random.default_rng(1), [1, 2]
    for noise in rng.random(8000) < 0.1:
        tokens.append(int(rng.integers(5)) if noise else sum(tokens[-2:]) % 5)
    train, test = np.array(tokens[:7000]), np.array(tokens[7000:])
    two, five = (estimate_ngram_loss(train, test, 5, order) for order in (2, 5))
    truth = -(0.92 * math.log(0.92) + 0.08 * math.log(0.02))
    assert two > 1.5
    assert truth - 0.1 < five < truth + 0.15
