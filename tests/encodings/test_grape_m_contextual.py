"""Contextual GRAPE: pairs of q_i rotate by exp(log_frequencies[t]) sum_{l < i} sigmoid(pace(x_l) / 16)."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from calls import (
    TOKENS,
    assert_close,
    check_attention,
    check_reference_catches,
    compute_scores,
    make_call,
    make_dims,
    make_encoding,
)
from heads import check_width, compare_content_bias
from literal.grape_m_contextual import grape_m_contextual
from parameters import HEAD, WIDTH, list_facts, list_shapes, make_initial
from torch.nn import functional as F

import zoo
from zoo.encodings.grape_m_contextual import GRAPEMContextual
from zoo.errors import OptionError

CASES = {
    "sigmoid": ({}, grape_m_contextual),
    "softplus": (
        {"activation": "softplus", "initial": 0.5},
        partial(grape_m_contextual, activation="softplus"),
    ),
}


@pytest.mark.parametrize("queries", [TOKENS, 2])
@pytest.mark.parametrize("case", CASES)
def test_formula(case, queries):
    options, reference = CASES[case]
    encoding, call = make_encoding("grape_m_contextual", **options), make_call(queries=queries)
    check_attention(encoding, call, reference(encoding, call))


@torch.no_grad()
def test_formula_at_a_pace_of_one_is_that_of_rope():
    call = make_call(pos=torch.arange(TOKENS).double())
    options = {"activation": "softplus", "initial": 1.0}
    paced = zoo.encoding("grape_m_contextual", make_dims(), **options).double()
    rope = zoo.encoding("rope", make_dims()).double()
    # parameters are rounded to float32
    assert_close(compute_scores(paced, call), compute_scores(rope, call), 1e-6)


def test_facts():
    assert list_facts("grape_m_contextual") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "handles_special_tokens": True,
        "reads_states": True,
    }


def test_parameters():
    assert list_shapes(make_initial("grape_m_contextual", kv_heads=2)) == {
        "log_frequencies": (HEAD // 2,),
        "pace.weight": (1, WIDTH),
        "pace.bias": (1,),
    }


@torch.no_grad()
def test_initial_values():
    published = make_initial("grape_m_contextual")
    assert not published.pace.weight.any()
    assert math.isclose((published.pace.bias / 16).sigmoid().item(), 0.3937, abs_tol=1e-4)
    chosen = make_initial("grape_m_contextual", initial=0.25).pace.bias
    assert math.isclose((chosen / 16).sigmoid().item(), 0.25, rel_tol=1e-5)
    old = make_initial("grape_m_contextual", activation="softplus").pace.bias
    assert math.isclose(F.softplus(old).item(), 1e-3, rel_tol=1e-4)


def test_a_pace_that_a_sigmoid_does_not_reach_is_refused():
    with pytest.raises(OptionError, match=r"initial 1.0 is not below 1"):
        zoo.encoding("grape_m_contextual", make_dims(), initial=1.0)


def test_a_bias_of_content_rotates_as_queries_do():
    compare_content_bias("grape_m_contextual")


def test_heads_that_were_made_wider_are_refused():
    check_width("grape_m_contextual")


class Inclusive(GRAPEMContextual):
    """The pace of the query itself counts, and that of the key does not."""

    inclusive = True


def test_planted_fault():
    check_reference_catches(Inclusive, grape_m_contextual)
