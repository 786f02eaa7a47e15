"""The bigram baseline against counting in plain Python."""

import math
from collections import Counter
from itertools import pairwise

import pytest

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
    assert data.compute_bigram_loss() == pytest.approx(expected)


def test_pairs_across_documents_do_not_count(write):
    files = [write("ab" * 40, "1.txt"), write("ba" * 20, "2.txt")]
    data = Text(0, files=files, length=2, documents=True)
    left, right = data.list_bigrams("train")
    assert len(left) == 96 - 2
    assert (left != right).all()
