"""Stick-breaking: from the nearest key on, each takes the share sigmoid(score) of what is left."""

from __future__ import annotations

import math

import pytest
import torch
from calls import (
    QUERIES,
    assert_close,
    attend,
    attend_packed,
    check_future_changes_nothing,
    compute_weights,
    make_call,
    make_dims,
    make_encoding,
    move_parameters,
)
from faults import check_fault_is_caught, name_parameter
from literal.stickbreaking import stickbreaking
from panels import describe_call
from parameters import HEAD, HEADS, check_everything_learns, list_facts, list_shapes, make_initial
from torch.nn import functional as F

import zoo
from zoo.attention import AttentionCall, Encoding
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.layer import Context
from zoo.encodings.stickbreaking import StickBreaking
from zoo.laws import backends, causality

POS = torch.arange(9).double()[:, None]


@QUERIES
@pytest.mark.parametrize("inclusive", [False, True])
def test_formula(inclusive, queries):
    encoding = make_encoding("stickbreaking", inclusive=inclusive)
    call = make_call(queries=queries)
    shares, left = stickbreaking(call, inclusive)
    assert_close(compute_weights(encoding, call), shares)
    remainder = left[..., None] * encoding.remainder[:, None]
    assert_close(attend(encoding, call), shares @ call.v + remainder)


def test_formula_in_packed_documents():
    out, encoding, call, project_output = attend_packed("stickbreaking")
    shares, left = stickbreaking(call)
    remainder = left[..., None] * encoding.remainder[:, None]
    assert_close(out, project_output(shares @ call.v + remainder))


def test_facts():
    assert list_facts("stickbreaking") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "handles_special_tokens": True,
    }


def test_parameters():
    assert list_shapes(make_initial("stickbreaking")) == {"remainder": (HEADS, HEAD)}


def test_initial_values():
    encoding = make_initial("stickbreaking")
    assert (encoding.remainder == 0).all()
    check_everything_learns(encoding)


# sticks


def test_a_stick_is_broken_by_earlier_keys_only_and_leaves_a_remainder():
    encoding = make_encoding("stickbreaking", 2)
    q, k, v = torch.randn(3, 1, 2, 9, 8).double().unbind()
    shares = zoo.functional.weights(encoding, q, k, POS, causal=True)
    assert (shares.triu() == 0).all()
    left = 1 - shares.sum(-1, keepdim=True)
    assert (left > 0).all()
    remainder = left * encoding.remainder[:, None]
    assert_close(zoo.functional.attend(encoding, q, k, v, POS, causal=True), shares @ v + remainder)


def test_a_stick_may_include_the_token_itself():
    q, k = torch.randn(2, 1, 2, 9, 8).double().unbind()
    shares = zoo.functional.weights(
        make_encoding("stickbreaking", 2, inclusive=True), q, k, POS, causal=True
    )
    own = ((q * k).sum(-1) / math.sqrt(8)).sigmoid()
    assert_close(shares.diagonal(dim1=-2, dim2=-1), own)


def test_shares_of_far_keys_are_not_lost_by_rounding():
    """A product of 1 - beta would be zero in float32 where a sum of logarithms is not."""
    side = torch.full((1, 2, 4, 8), math.sqrt(40 / math.sqrt(8)))  # every score is 40
    encoding = zoo.encoding("stickbreaking", Dims(16, 2, length=64, depth=2))
    shares = zoo.functional.weights(encoding, side, side, POS[:4].float(), causal=True)
    assert_close(shares[0, 0, 3, :3].log(), torch.tensor([-80.0, -40, 0]), 1e-3)


def test_future_changes_nothing():
    check_future_changes_nothing("stickbreaking")


@torch.no_grad()
def test_panel_shows_what_even_scores_leave():
    chain = Chain.of(zoo.encoding("stickbreaking", Dims(32, 2, length=16)))
    call = describe_call(chain, torch.randn(1, 8, 32), torch.arange(8.0)[:, None], True, Context())
    (panel,) = chain.panels(call.replace(q=0 * call.q))
    expected = torch.full((2,), (1 - 0.5**8) / 0.5 / 8)
    torch.testing.assert_close(panel.groups["mean"][1], expected)


# planted faults


class TopLeftStick(StickBreaking):
    """Queries that are taken for the first tokens of all."""

    def modify(self, call):
        return (
            super()
            .modify(call.replace(q=call.q, k=call.k[:, :, : call.q.shape[2]]))
            .replace(k=call.k)
        )


class StickTooLong(StickBreaking):
    """The key itself is left out of what its stick has lost."""

    def modify(self, call):
        def weigh(scores, visible, span):
            keys = visible & call.evaluate(lambda b, h, i, j: j < call.key_index(i), span)
            z = scores.masked_fill(~keys, 0)
            passed = F.softplus(z) * keys
            return torch.exp(z - (passed.flip(-1).cumsum(-1).flip(-1) - passed)) * keys

        return super().modify(call).replace(normalize=weigh)


@pytest.mark.parametrize(
    ("law", "fault"),
    [
        (causality.decoding_equals_one_pass, TopLeftStick),
        (backends.weights_are_shares_of_what_is_visible, StickTooLong),
    ],
    ids=name_parameter,
)
def test_planted_fault(law, fault):
    check_fault_is_caught(law, fault)


class OneKeyOn(StickBreaking):
    """A stick that begins at the query itself."""

    def __init__(self, at):
        super().__init__(at, inclusive=True)


def test_planted_fault_of_a_stick_one_key_too_long():
    call = make_call()
    expected = stickbreaking(call)[0]
    sound, fault = (move_parameters(cls(make_dims())) for cls in (StickBreaking, OneKeyOn))
    assert_close(compute_weights(sound, call), expected)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(compute_weights(fault, call), expected)


class Slant(Encoding):
    """A bias that differs between rows only: nothing to a softmax, but not to a stick."""

    name = "slant"

    def modify(self, call: AttentionCall) -> AttentionCall:
        rows = call.queries.pos[:, None]  # [1|B, 1, N, 1]
        return call.add_low_rank_bias(rows, rows.new_ones(1, 1, 1, 1))


def test_a_constant_of_a_row_may_be_dropped_only_under_a_softmax():
    call, slant, stick = make_call(), Slant(make_dims()), make_encoding("stickbreaking")
    assert_close(attend(slant, call), attend(zoo.encoding("none", make_dims()), call))
    both = Chain(make_dims(), {"slant": slant, "stickbreaking": stick})
    with pytest.raises(AssertionError, match="not close"):
        assert_close(attend(both, call), attend(stick, call))
