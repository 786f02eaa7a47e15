"""FoPE: (x1, x2) -> (x1 C - x2 S, x2 C + x1 S), C and S frozen sums of the waves that fit training."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from calls import (
    MASKS,
    QUERIES,
    assert_close,
    check_attention,
    check_reference_catches,
    draw_positions,
    make_call,
    move_parameters,
)
from heads import check_shared_key_heads
from literal.call import score_products
from literal.fope import fope
from parameters import HEAD, HEADS, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.fope import FoPE
from zoo.errors import OptionError


def score_literally(encoding, call):
    heads = (
        fope(encoding, x, call.pos[-x.shape[2] :], encoding.dims.tokens) for x in (call.q, call.k)
    )
    q, k = heads
    return score_products(replace(call, q=q, k=k))


@MASKS
@QUERIES
@pytest.mark.parametrize(("length", "head"), [(2000, 16), (1_000_000, 16), (20, 24), (2000, 4)])
def test_formula(length, head, queries, causal):
    encoding = move_parameters(zoo.encoding("fope", Dims(2 * head, 2, length=length)))
    pos = 20 * draw_positions(real=True)
    call = make_call(2, head, queries=queries, causal=causal, pos=pos)
    check_attention(encoding, call, score_literally(encoding, call), causal)


def test_formula_without_noise_is_rope_without_the_longest_waves():
    # w >= 0.196: of eight waves two
    encoding = move_parameters(zoo.encoding("fope", Dims(32, 2, length=32), gain=0.0))
    assert encoding.sine.shape == (2, 2, 2)
    call = make_call(2, 16)
    waves = torch.tensor([1, 10000 ** (-2 / 16), 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    turns = torch.polar(torch.ones(7, 8).double(), call.pos[:, None] * waves)
    q, k = (torch.complex(*x.chunk(2, dim=-1)) * turns for x in (call.q, call.k))
    expected = (q @ k.mH).real / 4
    check_attention(encoding, call, expected.masked_fill(~call.visible, float("-inf")))


def test_facts():
    assert list_facts("fope") == {"shared": False}


# w_t = 10000^(-t/8) >= 2 pi / length
@pytest.mark.parametrize(
    ("length", "waves", "columns"), [(40, 2, 2), (2000, 6, 4), (10**6, 8, 4), (3, 1, 1)]
)
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_parameters_are_a_frozen_matrix_for_each_key_head(length, waves, columns, kv_heads):
    encoding = zoo.encoding("fope", Dims(HEADS * HEAD, HEADS, length=length, kv_heads=kv_heads))
    shapes = {name: tuple(value.shape) for name, value in encoding.state_dict().items()}
    assert shapes == dict.fromkeys(("sine", "cosine"), (kv_heads or HEADS, waves, columns))
    assert list_shapes(encoding) == list_shapes(make_initial("fope")) == {}


def test_initial_values_of_a_column_are_one_wave_and_noise():
    many = Dims(512 * HEAD, 512, length=2000)
    chosen = torch.zeros(6, 4)
    chosen[[0, 1, 3, 4], [0, 1, 2, 3]] = 1  # spread evenly over six waves
    quiet, loud = zoo.encoding("fope", many, gain=0.0), zoo.encoding("fope", many)
    for name in ("sine", "cosine"):
        assert torch.equal(getattr(quiet, name), chosen.expand(512, 6, 4))
        noise = getattr(loud, name) - chosen
        assert abs(noise.std() / (0.3 * math.sqrt(2 / 10)) - 1) < 5 / math.sqrt(2 * noise.numel())
        assert noise.mean().abs() < 5 * noise.std() / math.sqrt(noise.numel())
    assert not torch.equal(loud.sine, loud.cosine)


def test_the_length_of_training_is_needed():
    with pytest.raises(OptionError, match="length"):
        zoo.encoding("fope", Dims(32, 2))


def test_a_token_without_a_position_is_left_alone():
    encoding = zoo.encoding("fope", Dims(32, 2, length=99)).double()
    q, placed = torch.randn(1, 2, 3, 16).double(), torch.tensor([False, True, True])
    tokens = Tokens.at(torch.zeros(1, 3, 32).double(), torch.zeros(3, 1), placed)
    transformed = Chain.of(encoding).transform_query(q, tokens)
    assert_close(transformed[:, :, 0], q[:, :, 0])
    assert not torch.allclose(transformed[:, :, 1], q[:, :, 1])  # though it stands at 0


def test_query_heads_are_transformed_as_the_key_head_that_they_share():
    encoding, q, tokens, transformed = check_shared_key_heads("fope")
    assert_close(transformed[:, 1::2], encoding.transform_key(q[:, 1::2], tokens))


# other lengths


def test_a_longer_text_computes_the_same():
    short, long = (
        zoo.encoding("fope", Dims(64, 2, length=length)).double() for length in (1000, 10**6)
    )
    for name, value in short.state_dict().items():
        assert short.adapt_parameter(name, value, short) is value
        getattr(long, name).copy_(long.adapt_parameter(name, value, short))
    (q, k), pos = torch.randn(2, 1, 2, 5, 32).double(), torch.arange(5.0)[:, None]
    assert_close(zoo.functional.scores(long, q, k, pos), zoo.functional.scores(short, q, k, pos))


def test_waves_that_it_does_not_have_are_not_adapted():
    longer, shorter = (zoo.encoding("fope", Dims(64, 1, length=length)) for length in (4096, 512))
    assert shorter.adapt_parameter("cosine", longer.cosine, longer) is None
    waves, columns = longer.cosine.shape[1], shorter.cosine.shape[2]
    assert longer.adapt_parameter("cosine", shorter.cosine, shorter).shape == (1, waves, columns)
    other = zoo.encoding("fope", Dims(64, 1, length=4096), base=5000.0)
    assert other.adapt_parameter("sine", longer.sine, longer) is None


class Sines(FoPE):
    """Pairs past the columns have sine 1, as the published code has it."""

    def rotate(self, x, *tables):
        clipped = x.shape[-1] // 2 - tables[0].shape[-2]
        ones = torch.ones(*tables[0].shape[:-2], clipped, 2, dtype=x.dtype)
        return super().rotate(x, torch.cat([tables[0], ones], dim=-2))


class Interleaved(FoPE):
    """Pairs of neighbouring channels, as RoPE's."""

    def rotate(self, x, *tables):
        halves = x.unflatten(-1, (-1, 2)).mT.flatten(-2)
        return super().rotate(halves, *tables).unflatten(-1, (2, -1)).mT.flatten(-2)


@pytest.mark.parametrize("fault", [Sines, Interleaved])
def test_planted_fault(fault):
    check_reference_catches(fault, score_literally, head=16)
