"""Shaw: scores q_i.(k_j + key_c) / sqrt(K), output + sum_j w_ij value_c, c the clipped p_j - p_i."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from calls import (
    MASKS,
    QUERIES,
    assert_close,
    attend,
    attend_packed,
    check_attention,
    check_cached_decoding,
    check_reference_catches,
    compute_scores,
    compute_weights,
    make_call,
    make_encoding,
)
from literal.call import score_products
from literal.functions import softmax
from literal.rope import list_frequencies, rotate_heads
from literal.shaw import read_values, shaw
from panels import list_panels
from parameters import HEAD, adapt_parameters, check_normal, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.shaw import Shaw


@MASKS
@QUERIES
@pytest.mark.parametrize("reach", [3, 16])
def test_formula(reach, queries, causal):
    encoding = make_encoding("shaw", max_distance=reach)
    call = make_call(queries=queries, causal=causal)
    expected = shaw(encoding, call, reach)
    shares = softmax(expected)
    assert_close(compute_scores(encoding, call, causal), expected)
    assert_close(compute_weights(encoding, call, causal), shares)
    read = read_values(encoding, call, shares, reach)
    assert_close(attend(encoding, call, causal), shares @ call.v + read)


@MASKS
def test_formula_without_values_changes_scores_only(causal):
    encoding = make_encoding("shaw", max_distance=3, values=False)
    call = make_call(causal=causal)
    assert {name for name, _ in encoding.named_parameters()} == {"key"}
    check_attention(encoding, call, shaw(encoding, call, 3), causal)


def test_formula_in_packed_documents():
    out, encoding, call, project_output = attend_packed("shaw")
    shares = softmax(shaw(encoding, call))
    assert_close(out, project_output(shares @ call.v + read_values(encoding, call, shares)))


def test_formula_after_rope_meets_queries_as_they_were():
    chain = make_encoding(["rope", {"name": "shaw", "max_distance": 3, "values": False}])
    call = make_call()
    q, k = (rotate_heads(one, call.pos, list_frequencies(8)) for one in (call.q, call.k))
    vectors = shaw(chain.shaw, replace(call, k=0 * call.k), 3)
    assert_close(compute_scores(chain, call), score_products(replace(call, q=q, k=k)) + vectors)


def test_facts():
    assert list_facts("shaw") == {"shared": False, "shift_invariant": True}


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {"key": (33, HEAD), "value": (33, HEAD)}),
        ({"max_distance": 5}, {"key": (11, HEAD), "value": (11, HEAD)}),
        ({"values": False}, {"key": (33, HEAD)}),
    ],
    ids=str,
)
def test_parameters(options, shapes):
    assert list_shapes(make_initial("shaw", **options)) == shapes


@pytest.mark.parametrize("table", ["key", "value"])
def test_initial_values(table):
    check_normal(make_initial("shaw").get_parameter(table), 0.02)


def test_a_longer_table_goes_on_with_its_last_rows():
    dims = Dims(24, 2, length=6, depth=2)
    short, long = (zoo.encoding("shaw", dims, max_distance=size) for size in (3, 5))
    torch.nn.init.normal_(short.key)
    assert adapt_parameters(short, long) == []
    q, k = torch.randn(2, 1, 2, 9, 12)
    pos = torch.arange(9.0)[:, None]
    torch.testing.assert_close(
        zoo.functional.scores(long, q, k, pos, causal=True),
        zoo.functional.scores(short, q, k, pos, causal=True),
    )
    back = zoo.encoding("shaw", dims, max_distance=3)
    adapt_parameters(long, back)
    torch.testing.assert_close(back.key, short.key)


# vectors of relation


POS = torch.arange(9).double()[:, None]
ROWS = [0, 0, 1, 2, 3, 4, 5, 6, 6]  # for the fifth of nine tokens, clipped beyond three


def test_each_signed_distance_has_one_vector_and_so_have_both_ends():
    encoding, k = make_encoding("shaw", 2, max_distance=3), torch.randn(1, 2, 9, 8).double()
    assert encoding.key.shape == encoding.value.shape == (7, 8)
    q = torch.ones_like(k)
    plain = zoo.functional.scores(make_encoding("none", 2), q, k, POS)
    row = (zoo.functional.scores(encoding, q, k, POS) - plain)[0, 0, 4] * math.sqrt(8)
    assert_close(row, encoding.key[ROWS].sum(-1))


def test_values_are_read_as_well():
    encoding = make_encoding("shaw", 2, max_distance=3)
    q, k, v = torch.randn(3, 1, 2, 9, 8).double().unbind()
    shares = zoo.functional.weights(encoding, q, k, POS)[0, 1, 4]
    without = zoo.functional.attend(encoding, q, k, 0 * v, POS)[0, 1, 4]
    assert_close(zoo.functional.attend(encoding, q, k, v, POS)[0, 1, 4] - without, shares @ v[0, 1])
    assert_close(without, shares @ encoding.value[ROWS])


def test_panel_shows_the_norm_of_each_offset_from_query_to_key():
    def set_one_back(encoding):
        encoding.key.zero_()[3] = 2.0  # key - query = -1 at a reach of 4

    curve = list_panels("shaw", max_distance=4, change=set_one_back)["Key vectors by offset"]
    assert curve.lines["all heads"][curve.x_values == 1] == 8  # 16 channels of 2
    assert curve.lines["all heads"].sum() == 8


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("shaw")


class Mirrored(Shaw):
    """Rows by p_i - p_j."""

    def modify(self, call):
        queries, keys = (one.replace(pos=-one.pos) for one in (call.queries, call.keys))
        return super().modify(call.replace(queries=queries, keys=keys))


def test_planted_fault():
    check_reference_catches(
        Mirrored, lambda encoding, call: shaw(encoding, call), options={"values": False}
    )
