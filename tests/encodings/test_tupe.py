"""TUPE: scores (q_i.k_j + query(norm(t_i)).key(norm(t_j))) / sqrt(2K), t = table[p]."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from calls import (
    MASKS,
    QUERIES,
    TOKENS,
    assert_close,
    check_attention,
    check_documents,
    check_reference_catches,
    compute_scores,
    make_call,
    make_encoding,
)
from extrapolate import check_last_token, make_extended
from grids import compute_biases
from literal.call import score_with_bias
from literal.t5 import t5
from literal.tupe import tupe
from parameters import (
    HEADS,
    LENGTH,
    WIDTH,
    adapt_parameters,
    check_normal,
    list_facts,
    list_shapes,
    make_initial,
)
from torch.nn import functional as F

import zoo
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.tupe import TUPE

POS = torch.arange(9).double()[:, None]


@MASKS
@QUERIES
def test_formula(queries, causal):
    pos = torch.arange(TOKENS).double() + 4
    encoding, call = make_encoding("tupe"), make_call(queries=queries, causal=causal, pos=pos)
    check_attention(encoding, call, tupe(encoding, call), causal)


@MASKS
@QUERIES
def test_formula_with_tokens_without_a_position(queries, causal):
    placed = torch.tensor([False, True, True, True, False, True, True])
    pos = torch.tensor([0.0, 0, 1, 2, 3, 3, 4])
    encoding, call = make_encoding("tupe"), make_call(queries=queries, causal=causal, pos=pos)
    expected = tupe(encoding, call, placed)
    assert_close(compute_scores(encoding, call, causal, has_position=placed), expected)


@MASKS
def test_formula_with_relative_biases(causal):
    chain = make_encoding(["tupe", "t5"])
    call = make_call(causal=causal, pos=torch.arange(TOKENS).double())
    bias = score_with_bias(replace(call, q=0 * call.q), t5(chain.t5, causal))
    check_attention(chain, call, tupe(chain.tupe, call) + bias, causal)


def test_formula_in_packed_documents():
    check_documents("tupe", tupe)


def test_facts():
    assert list_facts("tupe") == {"zero_gradient": ("key.bias",), "handles_special_tokens": True}


def test_parameters():
    assert list_shapes(make_initial("tupe")) == {
        "table": (LENGTH, WIDTH),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "query.weight": (WIDTH, WIDTH),
        "query.bias": (WIDTH,),
        "key.weight": (WIDTH, WIDTH),
        "key.bias": (WIDTH,),
        "reset": (2, HEADS),
    }


def test_initial_values():
    encoding = make_initial("tupe")
    for weight in (encoding.table, encoding.query.weight, encoding.key.weight):
        check_normal(weight, 0.02)
    for zero in (encoding.norm.bias, encoding.query.bias, encoding.key.bias, encoding.reset):
        assert (zero == 0).all()
    assert (encoding.norm.weight == 1).all()
    assert encoding.norm.eps == 1e-5


def test_scores_are_divided_by_the_root_of_twice_the_head_and_rows_are_normalised():
    encoding = make_encoding("tupe", 2)
    q, k = torch.randn(2, 1, 2, 9, 8).double().unbind()
    bare = zoo.functional.scores(encoding, 0 * q, k, POS)
    assert_close(zoo.functional.scores(encoding, q, k, POS) - bare, q @ k.mT / math.sqrt(2 * 8))
    encoding.table *= 100
    assert_close(zoo.functional.scores(encoding, 0 * q, k, POS), bare, 1e-3)


def test_a_class_token_is_reset():
    encoding, placed = make_encoding("tupe", 2), torch.arange(9) > 0
    biases = compute_biases(encoding, POS, has_position=placed)
    assert_close(biases[:, 0], encoding.reset[0, :, None].expand(2, 9))
    assert_close(biases[:, 1:, 0], encoding.reset[1, :, None].expand(2, 8))


# other lengths


def test_a_text_of_another_length_has_the_rows_that_both_have():
    trained, longer, shorter = (
        zoo.encoding("tupe", Dims(24, 2, length=length, depth=2)) for length in (6, 8, 4)
    )
    initial = longer.table.detach().clone()
    assert adapt_parameters(trained, longer) == adapt_parameters(trained, shorter) == []
    assert torch.equal(longer.table, torch.cat([trained.table, initial[6:]]))
    assert torch.equal(shorter.table, trained.table[:4])


def test_a_longer_text_resamples_the_table():
    plain = zoo.encoding("tupe", Dims(6, 1, length=5)).double()
    there = make_extended("tupe", Dims(6, 1, length=5), "resample", (2.0,)).double()
    there.load_state_dict(plain.state_dict())
    image = plain.table.detach().T[None, :, :, None]  # [1, D, length, 1]
    resized = F.interpolate(image, size=(10, 1), mode="bicubic", align_corners=False)[0, :, :, 0].T
    with torch.no_grad():
        table = plain.norm(resized)
        expected = {"position_query": plain.query(table), "position_key": plain.key(table)}
        pos = torch.arange(10.0)[:, None].double()
        entries = there.embed(Tokens.at(torch.zeros(1, 10, 6).double(), pos)).per_token
    for name, value in expected.items():
        torch.testing.assert_close(entries[name][0].flatten(1), value)


def test_the_last_token_of_a_stretched_table_is_in_it():
    check_last_token("tupe")


class NarrowScale(TUPE):
    """Scores divided by sqrt(K), as if nothing had been added."""

    def modify(self, call):
        return super().modify(call.replace(scale=call.scale * 2**0.5))


@pytest.mark.parametrize("causal", [True, False])
def test_planted_fault(causal):
    check_reference_catches(NarrowScale, tupe, causal)
