"""KERPLE: scores - p_h log(1 + a_h |p_i - p_j|), or scores - a_h |p_i - p_j|^p_h, all learned."""

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
from grids import GRIDS, check_class_token, compute_biases, evaluate_distances
from literal.call import score_with_bias
from literal.kerple import kerple_log, kerple_power
from panels import list_panels
from parameters import HEADS, is_uniform, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.kerple import KERPLE

KINDS = pytest.mark.parametrize(
    ("kind", "bias"), [("log", kerple_log), ("power", kerple_power)], ids=["log", "power"]
)


@MASKS
@QUERIES
@KINDS
def test_formula(kind, bias, queries, causal):
    encoding = make_encoding("kerple", kind=kind)
    call = make_call(queries=queries, causal=causal)
    check_attention(encoding, call, score_with_bias(call, bias(encoding)), causal)


@MASKS
@KINDS
def test_formula_at_real_positions(kind, bias, causal):
    encoding = make_encoding("kerple", kind=kind)
    call = make_call(causal=causal, pos=draw_positions(real=True))
    check_attention(encoding, call, score_with_bias(call, bias(encoding)), causal)


def test_formula_in_packed_documents():
    check_documents("kerple", lambda one, call: score_with_bias(call, kerple_log(one)))


def test_facts():
    assert list_facts("kerple") == {"shift_invariant": True, "axes": (1, 2, 3)}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["log_rate", "log_scale"]),
        ({"kind": "log"}, ["log_rate", "log_scale"]),
        ({"kind": "power"}, ["exponent", "log_rate"]),
    ],
    ids=str,
)
def test_parameters(options, names):
    assert list_shapes(make_initial("kerple", **options)) == dict.fromkeys(names, (HEADS,))


@torch.no_grad()
def test_initial_values():
    """p is uniform in (0, 2), and a in (0, 1)."""
    many = Dims(512, 512)
    log, power = (zoo.encoding("kerple", many, kind=kind) for kind in ("log", "power"))
    assert is_uniform(log.log_scale.exp(), 2)
    assert is_uniform(log.log_rate.exp(), 1)
    assert is_uniform(2 * power.exponent.sigmoid(), 2)
    assert is_uniform(power.log_rate.exp(), 1)


def test_panel_shows_the_rates():
    panels = list_panels(
        "kerple", change=lambda one: one.log_rate.copy_(torch.tensor([0.0, math.log(3)]))
    )
    assert panels["Rates"].values == pytest.approx({"head 1": 1, "head 2": 3})


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("kerple")


@pytest.mark.parametrize("axes", [2, 3])
@KINDS
def test_formula_on_grids(kind, bias, axes):
    encoding = move_parameters(zoo.encoding("kerple", Dims(16, 2, axes), kind=kind))
    expected = evaluate_distances(bias(encoding), 2, GRIDS[axes])
    assert_close(compute_biases(encoding, GRIDS[axes]), expected)
    hidden = torch.ones(12, 12).triu(1).bool()
    causal = compute_biases(encoding, GRIDS[axes], causal=True)
    assert_close(causal, expected.masked_fill(hidden, float("-inf")))


def test_a_class_token_has_no_bias_on_a_grid():
    check_class_token("kerple")


class RateOutside(KERPLE):
    """a log(1 + p d): the scale and the rate have changed places."""

    def _rate_and_shape(self):
        return tuple(reversed(super()._rate_and_shape()))


@KINDS
def test_planted_fault(kind, bias):
    check_reference_catches(
        RateOutside, lambda one, call: score_with_bias(call, bias(one)), options={"kind": kind}
    )
