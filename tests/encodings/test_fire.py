"""FIRE: scores + f(psi(|p_i - p_j|) / psi(max(p_i, tau)))_h, psi(x) = log(|c x| + 1)."""

from __future__ import annotations

import math

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
    draw_positions,
    make_call,
    make_encoding,
    move_parameters,
)
from grids import GRIDS, compute_biases
from literal.call import score_with_bias
from literal.fire import fire, fire_on_grid
from parameters import is_uniform, list_facts, list_network_shapes, list_shapes, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.common import visible_keys
from zoo.encodings.fire import FIRE

THRESHOLDS = pytest.mark.parametrize("threshold", [6.0, 512.0])
POS = torch.arange(9).double()[:, None]


@MASKS
@QUERIES
@THRESHOLDS
def test_formula(threshold, queries, causal):
    encoding = make_encoding("fire", threshold=threshold)
    call = make_call(queries=queries, causal=causal)
    check_attention(encoding, call, score_with_bias(call, fire(encoding, threshold)), causal)


@MASKS
@THRESHOLDS
def test_formula_at_real_positions(threshold, causal):
    encoding = make_encoding("fire", threshold=threshold)
    call = make_call(causal=causal, pos=draw_positions(real=True))
    check_attention(encoding, call, score_with_bias(call, fire(encoding, threshold)), causal)


def test_formula_in_packed_documents():
    check_documents("fire", lambda one, call: score_with_bias(call, fire(one)))


def test_facts():
    assert list_facts("fire") == {
        "shared": False,
        "axes": (1, 2, 3),
        "zero_gradient": ("net.2.bias",),
    }
    invariant = [make_initial("fire", axes=axes).shift_invariant for axes in (1, 2, 3)]
    assert invariant == [False, True, True]
    assert make_initial("fire", shared=True).shared is True


@pytest.mark.parametrize("hidden", [32, 8])
def test_parameters(hidden):
    shapes = list_shapes(make_initial("fire", hidden=hidden))
    assert shapes == {"c": (), "threshold_scale": (), **list_network_shapes(1, hidden)}
    assert list_shapes(make_initial("fire")) == list_shapes(make_initial("fire", hidden=32))


def test_initial_values():
    assert [make_initial("fire", axes=axes).threshold for axes in (1, 2, 3)] == [512, 16, 16]
    assert math.isclose(make_initial("fire").c.item(), 0.1, rel_tol=1e-6)
    assert math.isclose(make_initial("fire", initial_c=2.0).c.item(), 2.0, rel_tol=1e-6)
    assert make_initial("fire").threshold_scale.item() == 1


@pytest.mark.parametrize(
    ("parameter", "inputs"), [("net.0.weight", 1), ("net.0.bias", 1), ("net.2.weight", 256)]
)
def test_initial_values_of_the_network_are_those_of_pytorch(parameter, inputs):
    values = make_initial("fire", hidden=256).get_parameter(parameter).detach()
    edge = 1 / math.sqrt(inputs)
    assert is_uniform(values + edge, 2 * edge)


def test_heads_have_an_output_each_and_the_threshold_is_learned():
    encoding = make_encoding("fire", threshold=4.0)
    biases = compute_biases(encoding, POS, causal=True).tril()
    assert (biases[0] - biases[1]).abs().max() > 1e-6
    encoding.threshold_scale *= 2
    changed = compute_biases(encoding, POS, causal=True).tril()
    assert (changed - biases).abs().max() > 1e-6


def test_bias_is_no_function_of_distance_alone():
    biases = compute_biases(make_encoding("fire", threshold=1.0), POS, causal=True)[0]
    assert (biases[4, 3] - biases[8, 7]).abs() > 1e-6


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("fire")


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("threshold", [1.5, 16.0])
def test_formula_on_grids(threshold, axes):
    encoding = move_parameters(zoo.encoding("fire", Dims(16, 2, axes), threshold=threshold))
    pos, everything = GRIDS[axes], torch.ones(12, 12).bool()
    expected = fire_on_grid(encoding, pos, everything, threshold)
    assert_close(compute_biases(encoding, pos), expected)


def test_formula_of_what_a_query_sees_on_a_grid():
    """Later tokens, another document, padding and tokens without a position are not the farthest."""
    encoding = move_parameters(zoo.encoding("fire", Dims(16, 2, 2), threshold=0.5))
    pos = GRIDS[2]
    causal = torch.ones(12, 12).tril().bool()
    assert_close(
        compute_biases(encoding, pos, causal=True), fire_on_grid(encoding, pos, causal, 0.5)
    )
    placed = torch.arange(12) != 11  # the corner, from which most others are farthest
    expected = fire_on_grid(encoding, pos, placed.expand(12, 12), 0.5)
    found = compute_biases(encoding, pos, has_position=placed)
    assert_close(found[:, :11, :11], expected[:, :11, :11])
    assert not found[:, 11].any()


def test_rows_in_parts_are_the_rows_of_one_pass(monkeypatch):
    encoding = move_parameters(zoo.encoding("fire", Dims(16, 2, 2), threshold=0.5))
    whole = compute_biases(encoding, GRIDS[2])
    monkeypatch.setattr(visible_keys, "CHUNK_PAIRS", 30)
    assert torch.equal(compute_biases(encoding, GRIDS[2]), whole)


class Unbounded(FIRE):
    """The threshold forgotten: early queries divide by their own position."""

    def _tau(self):
        return 0 * super()._tau()


def test_planted_fault():
    check_reference_catches(
        Unbounded,
        lambda one, call: score_with_bias(call, fire(one, 6.0)),
        causal=False,
        options={"threshold": 6.0},
    )
