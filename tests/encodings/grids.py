"""Biases of encodings on small grids of images and clips."""

from __future__ import annotations

import math

import torch
from calls import assert_close, move_parameters

import zoo
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims

GRIDS = {2: grid((3, 4), torch.zeros(0)).double(), 3: grid((2, 3, 2), torch.zeros(0)).double()}


def compute_biases(encoding, pos, causal=False, **more):
    """Return the biases [H, N, N] at coordinates [N, P]: scores of queries and keys that are zero."""
    dims = encoding.dims
    zero = torch.zeros(1, dims.heads, len(pos), dims.head_dim, dtype=torch.float64)
    return zoo.functional.scores(encoding, zero, zero, pos, causal=causal, **more)[0]


def evaluate_distances(bias, heads, pos):
    """Evaluate a bias of a text at straight-line distances of coordinates [N, P], [H, N, N]."""
    zero = pos.new_zeros(())
    return torch.stack(
        [
            torch.stack(
                [
                    torch.stack(
                        [bias(h, pos.new_tensor(math.dist(p, r)), zero) for r in pos.tolist()]
                    )
                    for p in pos.tolist()
                ]
            )
            for h in range(heads)
        ]
    )


def check_class_token(name):
    """Assert that the first token, without a position, has no bias, and the others keep theirs."""
    encoding, placed = move_parameters(zoo.encoding(name, Dims(16, 4, 2))), torch.arange(12) > 0
    biases = compute_biases(encoding, GRIDS[2], has_position=placed)
    assert not biases[:, 0].any()
    assert not biases[:, :, 0].any()
    assert_close(biases[:, 1:, 1:], compute_biases(encoding, GRIDS[2])[:, 1:, 1:])
