"""The temperature of Llama 4: the factors of queries, and where they apply."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.temperature import Temperature, read_temperature
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

DIMS = zoo.Dims(16, 2)
OPTIONS = {"floor": 3, "scale": 0.4}
N = 9


def compute_literally(p, floor, scale, offset=0):
    return 1 + scale * math.log(1 + (p + offset) // floor)


@pytest.mark.parametrize("offset", [0, 1])
def test_factors(offset):
    given = read_temperature({**OPTIONS, "offset": offset})
    tokens = Tokens.at(torch.zeros(1, N, 0).double(), torch.arange(float(N))[:, None])
    expected = [compute_literally(p, 3, 0.4, offset) for p in range(N)]
    torch.testing.assert_close(given.factors(tokens)[0, 0, :, 0], torch.tensor(expected).double())


def test_positions_that_training_moves_before_0_have_the_factor_1():
    tokens = Tokens.at(torch.zeros(1, 3, 0), torch.tensor([[-100.0], [-0.5], [3.0]]))
    factors = Temperature(floor=3, scale=0.4).factors(tokens)[0, 0, :, 0]
    torch.testing.assert_close(factors, torch.tensor([1, 1, compute_literally(3, 3, 0.4)]))


def test_defaults_are_those_of_llama_4():
    assert read_temperature({}) == Temperature(floor=8192, scale=0.1, offset=0)


def test_tokens_without_a_position_keep_their_queries():
    pos = torch.full((4, 1), 100.0)
    tokens = Tokens.at(torch.zeros(1, 4, 0), pos, torch.tensor([False, True, True, False]))
    factors = Temperature(floor=3).factors(tokens)[0, 0, :, 0]
    assert factors[[0, 3]].tolist() == [1, 1]
    assert (factors[1:3] > 1).all()


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "shaw"])
def test_queries_are_multiplied_and_biases_of_positions_are_not(name):
    encoding = zoo.encoding(name, DIMS).double()
    q, k = torch.randn(2, 2, 2, N, 8, dtype=torch.float64).unbind()
    pos = torch.arange(N).double()[:, None]
    factors = torch.tensor([compute_literally(p, 3, 0.4) for p in range(N)]).double()[:, None]
    found = zoo.functional.scores(encoding, q, k, pos, temperature=OPTIONS)
    expected = zoo.functional.scores(encoding, q * factors, k, pos)
    torch.testing.assert_close(found, expected)
    whole = zoo.functional.weights(encoding, q, k, pos, temperature=OPTIONS)
    torch.testing.assert_close(whole, expected.softmax(-1))


def test_positions_restart_in_each_document_and_continue_after_a_cache():
    layer = zoo.Attention(DIMS, "none", causal=True, temperature=OPTIONS).double()
    x = torch.randn(1, N, 16).double()
    document = torch.tensor([-1, -1, 0, 0, 0, 0, 1, 1, 1])
    packed = layer(x, document=document)
    torch.testing.assert_close(packed[:, 2:6], layer(x[:, 2:6]))
    torch.testing.assert_close(packed[:, 6:], layer(x[:, 6:]))
    cache, whole = KeyValueCache(), layer(x)
    parts = [layer(x[:, i : i + 1], context=cache) for i in range(N)]
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert not torch.allclose(whole, zoo.Attention(DIMS, "none", causal=True).double()(x))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"floor": 0}, "temperature.floor: must be at least 1"),
        ({"scale": -1}, "temperature.scale: must be at least 0"),
        ({"floors": 3}, "temperature.floors: unknown key"),
        (3, "temperature: expected a mapping"),
    ],
)
def test_a_wrong_option_is_named(given, message):
    with pytest.raises(OptionError, match=message):
        zoo.Attention(DIMS, "none", temperature=given)


def test_a_grid_has_no_temperature():
    with pytest.raises(OptionError, match="positions on 2 axes have no order"):
        zoo.Attention(zoo.Dims(16, 2, axes=2), "none", temperature=OPTIONS)
