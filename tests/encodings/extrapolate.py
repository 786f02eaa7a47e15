"""Encodings for sizes past those of training, by a rule that they declare."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError


def make_extended(name, dims, rule, factors):
    """Make an encoding by a rule, of the options that it declares."""
    options = zoo.encoding(name, dims).extrapolations(factors)[rule]
    return zoo.encoding({"name": name, **options}, dims)


def check_last_token(name):
    """Assert that the last token of a stretched table is in it, and the next one is refused."""
    there = make_extended(name, Dims(4, 1, length=100), "resample", (1.15,))
    x = torch.zeros(1, 115, 4)
    assert zoo.functional.embed(there, x, torch.arange(115.0)[:, None]).shape == x.shape
    with pytest.raises(OptionError, match="past the table of 115 positions"):
        zoo.functional.embed(there, x[:, :1], torch.tensor([[115.0]]))


def check_interpolated_axis(name):
    """Assert that a grid is interpolated along the axis that grew: positions at a third."""
    torch.manual_seed(0)
    dims = Dims(32, 2, 2, (2, 4))
    plain = zoo.encoding(name, dims)
    other = make_extended(name, dims, "linear", (3.0, 1.0))
    other.load_state_dict(plain.state_dict())
    samples = torch.randn(2, 1, 2, 24, 16)
    results = []
    for encoding, index in (
        (other, grid((6, 4), samples)),
        (plain, grid((6, 4), samples) * torch.tensor([1 / 3, 1])),
    ):
        tokens = Tokens.at(torch.zeros(1, 24, 32), index)
        if encoding is other:
            tokens = tokens.replace(grid_size=torch.tensor([[[6.0, 4.0]]]))
        chain = Chain.of(encoding)
        tokens = chain.prepare(chain.embed(tokens))
        results.append(
            [chain.transform_query(samples[0], tokens), chain.transform_key(samples[1], tokens)]
        )
    torch.testing.assert_close(results[0], results[1])
