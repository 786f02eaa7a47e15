"""Selective RoPE: pairs (2t, 2t+1) of q_i rotate by w_t sum_{l <= i} c_l, c = kernel * out(into(x))."""

from __future__ import annotations

import math

import pytest
import torch
from calls import (
    TOKENS,
    assert_close,
    check_attention,
    check_reference_catches,
    make_call,
    make_encoding,
)
from faults import check_fault_is_caught
from heads import check_width, modify_shared
from literal.selective_rope import selective_rope
from parameters import HEAD, WIDTH, check_spread, list_facts, list_shapes, make_initial

import zoo
from zoo.encodings.selective_rope import SelectiveRoPE
from zoo.errors import OptionError
from zoo.laws import equivariance

CASES = {
    "default": ({}, {}),
    "gate": ({"gate": True}, {}),
    "silu": (
        {"gate": False, "silu": True, "rank": 3, "width": 2, "base": 100.0},
        {"base": 100.0, "silu": True},
    ),
}


@pytest.mark.parametrize("queries", [TOKENS, 2])
@pytest.mark.parametrize("case", CASES)
def test_formula(case, queries):
    options, literal_options = CASES[case]
    encoding, call = make_encoding("selective_rope", **options), make_call(queries=queries)
    check_attention(encoding, call, selective_rope(encoding, call, **literal_options))


def test_formula_of_query_heads_that_share_a_key_head():
    encoding, call, modified = modify_shared("selective_rope")
    scores = modified.q @ modified.k.mT * modified.scale
    visible = scores.masked_fill(~call.visible, float("-inf"))
    assert_close(visible, selective_rope(encoding, call))


def test_facts():
    assert list_facts("selective_rope") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "handles_special_tokens": True,
        "reads_states": True,
    }


@pytest.mark.parametrize("gate", [False, True])
def test_parameters(gate):
    channels = 2 * HEAD // 2
    shapes = {"into.weight": (32, WIDTH), "out.weight": (channels, 32), "kernel": (4, channels)}
    gates = {"gate.weight": (2, WIDTH), "gate.bias": (2,)}
    encoding = make_initial("selective_rope", kv_heads=2, gate=gate)
    assert list_shapes(encoding) == {**shapes, **(gates if gate else {})}
    assert list_shapes(make_initial("selective_rope", kv_heads=2)) == shapes


@torch.no_grad()
def test_initial_values():
    encoding = make_initial("selective_rope", kv_heads=2)
    check_spread(encoding.kernel, 0.5 / math.sqrt(3))
    check_spread(encoding.into.weight, WIDTH**-0.5 / math.sqrt(3))


def test_heads_that_were_made_wider_are_refused():
    check_width("selective_rope")


class StepsAcrossDocuments(SelectiveRoPE):
    """A convolution that does not stop at the border of a document."""

    def token_angles(self, tokens):
        return super().token_angles(tokens.replace(document=None))


def test_planted_fault():
    check_fault_is_caught(equivariance.packed_documents_are_apart, StepsAcrossDocuments)


class Unnormalised(SelectiveRoPE):
    """Shares of heads at their own length."""

    def prepare(self, tokens):
        angles = self.out(self.into(tokens.x))
        return super().prepare(tokens).with_per_token(selected=angles)


def test_planted_fault_of_the_length_of_shares():
    check_reference_catches(Unnormalised, selective_rope)


def test_a_width_that_heads_do_not_divide_is_refused():
    """A model with a head_dim of its own may have any width."""
    with pytest.raises(OptionError, match="3 heads do not divide dim 44"):
        zoo.Attention(zoo.Dims(44, 3, head_dim=12), "selective_rope", causal=True)
    layer = zoo.Attention(zoo.Dims(45, 3, head_dim=12), "selective_rope", causal=True)
    assert layer(torch.randn(1, 5, 45)).isfinite().all()
