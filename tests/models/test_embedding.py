"""Places within documents."""

import torch

from zoo.attention.tokens import document_lengths, document_positions


def test_each_run_counts_from_zero():
    documents = torch.tensor([[-1, -1, 4, 4, 4, 5, 5, -1], [0, 1, 1, 1, 2, 3, 3, 3]])
    assert document_positions(documents).tolist() == [
        # padding has no place of its own
        [0, 0, 0, 1, 2, 0, 1, 0],
        [0, 0, 1, 2, 0, 0, 1, 2],
    ]


def test_lengths_are_those_of_the_own_document():
    assert document_lengths(torch.tensor([[-1, 4, 4, 4, 5, 5]])).tolist() == [[1, 3, 3, 3, 2, 2]]
