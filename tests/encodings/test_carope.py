"""CARoPE: pairs (2t, 2t+1) of q_i rotate by sum_{l <= i} f_l^t, f = 1 / (softplus(frequency(x)) + 1)."""

from __future__ import annotations

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
from faults import check_fault_is_caught, name_parameter
from heads import check_width, compare_content_bias
from literal.carope import carope
from parameters import WIDTH, list_facts, list_shapes, make_initial

import zoo
from zoo.encodings.carope import CARoPE
from zoo.encodings.common.rotation import cos_sin, rotate_pairs
from zoo.laws import causality


@pytest.mark.parametrize("queries", [TOKENS, 2])
def test_formula(queries):
    encoding, call = make_encoding("carope"), make_call(queries=queries)
    check_attention(encoding, call, carope(encoding, call))


def test_facts():
    assert list_facts("carope") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "handles_special_tokens": True,
        "reads_states": True,
    }


def test_parameters():
    shapes = {"frequency.weight": (2, WIDTH), "frequency.bias": (2,)}
    assert list_shapes(make_initial("carope", kv_heads=2)) == shapes


def test_initial_values_are_those_of_rope():
    call = make_call(pos=torch.arange(TOKENS).double())
    one, other = (zoo.encoding(name, make_dims()).double() for name in ("carope", "rope"))
    assert not one.frequency.weight.any()
    # parameters are rounded to float32
    assert_close(compute_scores(one, call), compute_scores(other, call), 1e-6)


def test_a_bias_of_content_rotates_as_queries_do():
    compare_content_bias("carope")


def test_heads_that_were_made_wider_are_refused():
    check_width("carope")


class RotatedBeforeTheCache(CARoPE):
    """Sums over the tokens of one pass only."""

    def add_up(self, x, tokens):
        return rotate_pairs(x, cos_sin(self.token_angles(tokens).cumsum(1).transpose(1, 2)))

    def transform_query(self, q, tokens):
        return self.add_up(q, tokens)

    def transform_key(self, k, tokens):
        return self.add_up(k, tokens)

    def modify(self, call):
        return call


class FirstRows(CARoPE):
    """Queries that are taken for the first tokens of all."""

    def modify(self, call):
        rows = cos_sin(self.token_angles(call.keys).cumsum(1).transpose(1, 2))
        return super().modify(call).replace(q=rotate_pairs(call.q, rows[:, :, : call.q.shape[2]]))


@pytest.mark.parametrize(
    ("law", "fault"),
    [
        (causality.decoding_equals_one_pass, RotatedBeforeTheCache),
        (causality.full_memory_equals_one_pass, RotatedBeforeTheCache),
        (causality.decoding_equals_one_pass, FirstRows),
    ],
    ids=name_parameter,
)
def test_planted_fault(law, fault):
    check_fault_is_caught(law, fault)


class CountedFromOne(CARoPE):
    """Powers from the first on."""

    def token_angles(self, tokens):
        return super().token_angles(tokens) * tokens.per_token["log_frequency"][..., None].exp()


def test_planted_fault_of_powers():
    check_reference_catches(CountedFromOne, carope)
