"""Names, shapes, facts and initial values of PaTH."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens

WIDTH, HEADS, RANK = 64, 4, 32


def made(kv_heads=None, **options):
    return zoo.encoding("path", Dims(WIDTH, HEADS, kv_heads=kv_heads), **options)


def shapes(encoding):
    return {name: tuple(parameter.shape) for name, parameter in encoding.named_parameters()}


@pytest.mark.parametrize(("kv_heads", "own"), [(None, 4), (2, 2), (1, 1)])
def test_there_is_one_path_per_key_head(kv_heads, own):
    assert shapes(made(kv_heads)) == {
        "direction.0.weight": (RANK, WIDTH),
        "direction.1.weight": (own * 16, RANK),
        "strength.weight": (own, WIDTH),
        "strength.bias": (own,),
        "filter": (3, own * 16),
    }


def test_a_convolution_of_one_token_is_none():
    assert "filter" not in shapes(made(convolution=1))
    assert shapes(made(rank=5, convolution=4))["filter"] == (4, WIDTH)
    assert shapes(made(rank=5))["direction.0.weight"] == (5, WIDTH)


def test_it_goes_by_the_order_of_tokens_alone():
    cls = zoo.encoding_class("path")
    assert (
        cls.shared,
        cls.shift_invariant,
        cls.causal_only,
        cls.handles_special_tokens,
        cls.axes,
    ) == (False, True, True, True, (1,))


def test_all_strengths_are_about_one_at_first():
    encoding, tokens = made(), Tokens.at(torch.randn(1, 50, WIDTH), torch.zeros(50, 1))
    assert (encoding.strength.bias == 0).all()
    for weight in (
        encoding.strength.weight,
        encoding.direction[0].weight,
        encoding.direction[1].weight,
    ):
        assert abs(weight.std().item() / 0.02 - 1) < 0.25
    assert (encoding.prepare(tokens).per_token["path_strength"] - 1).abs().max() < 0.5


def test_the_filter_starts_as_pytorch_makes_it():
    torch.manual_seed(0)
    values = made(convolution=4).filter.detach()
    assert 0.45 < values.abs().max() <= 0.5
    assert values.mean().abs() < 5 * 0.5 / (3 * values.numel()) ** 0.5
