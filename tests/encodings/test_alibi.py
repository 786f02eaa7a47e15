"""ALiBi: scores - m_h |p_i - p_j|, m_h = 2^(-8h/H), steeper in some heads than in others."""

from __future__ import annotations

import pytest
import torch
from calls import (
    MASKS,
    QUERIES,
    assert_close,
    check_attention,
    check_cached_decoding,
    check_documents,
    check_reference_catches,
    compute_scores,
    draw_positions,
    make_call,
    make_dims,
    make_encoding,
)
from grids import GRIDS, check_class_token, compute_biases
from literal.alibi import alibi, alibi_on_grid, euclidean, manhattan
from literal.call import score_with_bias
from panels import list_panels
from parameters import list_facts, list_shapes, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.alibi import ALiBi


def score_literally(encoding, call):
    return score_with_bias(call, alibi(encoding))


@MASKS
@QUERIES
def test_formula(queries, causal):
    encoding, call = make_encoding("alibi"), make_call(queries=queries, causal=causal)
    check_attention(encoding, call, score_literally(encoding, call), causal)


@MASKS
def test_formula_at_real_positions(causal):
    encoding, call = make_encoding("alibi"), make_call(causal=causal, pos=draw_positions(real=True))
    check_attention(encoding, call, score_literally(encoding, call), causal)


@MASKS
@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12])
def test_formula_for_any_number_of_heads(heads, causal):
    encoding, call = make_encoding("alibi", heads), make_call(heads, causal=causal)
    check_attention(encoding, call, score_literally(encoding, call), causal)


def test_formula_in_packed_documents():
    check_documents("alibi", score_literally)


def test_facts():
    assert list_facts("alibi") == {"shift_invariant": True, "axes": (1, 2, 3)}


@pytest.mark.parametrize(
    ("axes", "options"), [(1, {}), (2, {}), (3, {"distance": "euclidean"})], ids=str
)
def test_parameters(axes, options):
    assert list_shapes(make_initial("alibi", axes, **options)) == {}


# slopes


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_slopes_are_the_published_ones(heads, exponents):
    zero = torch.zeros(1, heads, 2, 4, dtype=torch.float64)
    bias = zoo.functional.scores(
        make_encoding("alibi", heads, 4), zero, zero, torch.tensor([[3.0], [4.0]])
    )
    assert_close(bias[0, :, 1, 0], -(2 ** -torch.tensor(exponents, dtype=torch.float64)))


def test_slopes_depend_on_the_number_of_heads():
    pos = torch.arange(9).double()[:, None]
    for count in (2, 4, 8):
        zero = torch.zeros(1, count, 9, 8, dtype=torch.float64)
        encoding = zoo.encoding("alibi", Dims(8 * count, count)).double()
        bias = zoo.functional.scores(encoding, zero, zero, pos)[0, :, 1, 0]
        slopes = torch.tensor([2.0 ** (-8 * h / count) for h in range(1, count + 1)]).double()
        assert_close(bias, -slopes)


def test_panel_shows_the_slopes():
    assert list_panels("alibi")["Slopes"].values == {"head 1": 2**-4, "head 2": 2**-8}


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("alibi")


# on grids


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("distance", [manhattan, euclidean], ids=["manhattan", "euclidean"])
def test_formula_on_grids(distance, axes):
    encoding = zoo.encoding("alibi", Dims(16, 4, axes), distance=distance.__name__).double()
    expected = alibi_on_grid(4, GRIDS[axes], distance)
    assert_close(compute_biases(encoding, GRIDS[axes]), expected)
    hidden = torch.ones(12, 12).triu(1).bool()
    causal = compute_biases(encoding, GRIDS[axes], causal=True)
    assert_close(causal, expected.masked_fill(hidden, float("-inf")))


def test_distance_is_manhattan_by_default_and_both_are_one_along_a_text():
    plain, straight = (
        zoo.encoding("alibi", Dims(16, 4, 2), **o).double() for o in ({}, {"distance": "euclidean"})
    )
    assert_close(compute_biases(plain, GRIDS[2]), alibi_on_grid(4, GRIDS[2]))
    assert not torch.allclose(compute_biases(straight, GRIDS[2]), compute_biases(plain, GRIDS[2]))
    for causal in (True, False):
        encoding, call = make_encoding("alibi", distance="euclidean"), make_call(causal=causal)
        check_attention(encoding, call, score_literally(make_encoding("alibi"), call), causal)


def test_a_class_token_has_no_bias_on_a_grid():
    check_class_token("alibi")


# planted faults


class OneLadder(ALiBi):
    """Slopes 2^(-8h/H) whatever H is."""

    def modify(self, call):
        slopes = 2 ** (-8 * torch.arange(1, self.dims.heads + 1) / self.dims.heads).double()
        return call.add_bias(lambda b, h, i, j: -slopes[h] * call.distance(b, i, j))


class Towards(ALiBi):
    """The sign of distance mistaken: far keys come first."""

    def modify(self, call):
        return call.add_bias(
            lambda b, h, i, j: -ALiBi.modify(self, call.replace(causal=False)).biases[0](b, h, i, j)
        )


@pytest.mark.parametrize(("fault", "heads"), [(OneLadder, 12), (Towards, 4)])
def test_planted_fault(fault, heads):
    check_reference_catches(fault, score_literally, heads=heads)


def test_planted_fault_is_none_for_a_power_of_two():
    call, encoding = make_call(8), OneLadder(make_dims(8)).double()
    assert_close(compute_scores(encoding, call), score_literally(encoding, call))
