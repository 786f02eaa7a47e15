"""The n-gram baselines: the bigram against counting in plain Python, longer ones by laws."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from zoo.data.baselines import estimate_ngram_loss
from zoo.data.corpus import source
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


def mark_starts(documents):
    """Whether a document starts at each token of the documents in their order."""
    return np.concatenate([[True] + [False] * (len(one) - 1) for one in documents])


def test_grams_within_documents_do_not_depend_on_their_order():
    rng = np.random.default_rng(2)
    train, test = ([rng.integers(0, 4, rng.integers(2, 40)) for _ in range(30)] for _ in range(2))

    def score(train, test, apart=True):
        starts = (mark_starts(train), mark_starts(test)) if apart else None
        return estimate_ngram_loss(np.concatenate(train), np.concatenate(test), 4, 5, starts)

    assert score(train[::-1], test[::-1]) == pytest.approx(score(train, test), rel=1e-12)
    assert score(train[::-1], test[::-1], apart=False) != pytest.approx(
        score(train, test, apart=False), rel=1e-6
    )
    # one document is a text, but for the one n-gram of each length that nothing precedes
    whole = [[np.concatenate(one)] for one in (train, test)]
    assert score(*whole) == pytest.approx(score(*whole, apart=False), rel=1e-2)


def test_grams_and_bigrams_predict_the_same_tokens_of_documents(write):
    """Each letter of a document follows from the one before, and the first from nothing."""
    starts = np.random.default_rng(3).integers(0, 3, 100)
    files = [
        write("abcabcabcabc"[start : start + 8], f"{number}.txt")
        for number, start in enumerate(starts)
    ]
    losses = [
        Text(0, files=files, length=2, documents=apart).compute_baselines()["test/loss"]
        for apart in (True, False)
    ]
    assert losses[0]["5-gram"] < 0.1 < losses[1]["5-gram"]
    assert losses[0]["bigram"] < losses[1]["bigram"]


def test_a_baseline_on_a_part_of_the_test_tokens_says_so(text, monkeypatch):
    data = text("the rest of the zoo. is it the best of zoos? " * 20)
    assert {*data.compute_baselines()["test/loss"]} == {"bigram", "5-gram"}
    monkeypatch.setattr(source, "MAX_TEST", 10)
    assert {*data.compute_baselines()["test/loss"]} == {"bigram", "5-gram on the first 10 tokens"}
