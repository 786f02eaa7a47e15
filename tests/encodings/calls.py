"""Calls by which an encoding is compared to a literal transcription of its formula: random, in float64, and small."""

from __future__ import annotations

import pytest
import torch
from literal import biases as literal
from literal.biases import Call

import zoo
from zoo.attention.encoding import Dims

REFERENCE = 1e-9
TOKENS, BATCH, LENGTH = 7, 2, 16
SEEN = pytest.mark.parametrize("causal", [True, False])
QUERIES = pytest.mark.parametrize("queries", [TOKENS, 3, 1])


def dims(heads=4, head=8, layer=0, depth=None):
    return Dims(heads * head, heads, length=LENGTH, layer=layer, depth=depth)


def moved(encoding, step=0.5):
    """In float64, with every parameter somewhere else than it starts, and no gradients."""
    encoding = encoding.double().requires_grad_(False)
    for parameter in encoding.parameters():
        parameter += step * torch.randn_like(parameter)
    return encoding


def made(name, heads=4, head=8, **options):
    return moved(zoo.encoding(name, dims(heads, head), **options))


def spots(real=False, tokens=TOKENS):
    """Increasing positions [tokens], whole unless `real`."""
    steps = torch.randint(1, 4, (tokens,)).double()
    return (steps * torch.rand(tokens).double() if real else steps).cumsum(0) - 1


def called(heads=4, head=8, queries=TOKENS, causal=True, pos=None):
    q, k, v = torch.randn(3, BATCH, heads, TOKENS, head, dtype=torch.float64)
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    visible = (visible.tril() if causal else visible)[-queries:]
    x = torch.randn(BATCH, TOKENS, heads * head, dtype=torch.float64)
    return Call(q[:, :, -queries:], k, v, spots(tokens=TOKENS) if pos is None else pos, visible, x)


def near(actual, expected, tolerance=REFERENCE):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def scores(encoding, call, causal=True, **more):
    return zoo.scores(encoding, call.q, call.k, call.pos[:, None], x=call.x, causal=causal, **more)


def weights(encoding, call, causal=True):
    return zoo.weights(encoding, call.q, call.k, call.pos[:, None], x=call.x, causal=causal)


def attended(encoding, call, causal=True):
    return zoo.attend(encoding, call.q, call.k, call.v, call.pos[:, None], x=call.x, causal=causal)


def agree(encoding, call, expected, causal=True):
    """Scores, weights and output."""
    near(scores(encoding, call, causal), expected)
    near(weights(encoding, call, causal), literal.softmax(expected))
    near(attended(encoding, call, causal), literal.softmax(expected) @ call.v)
