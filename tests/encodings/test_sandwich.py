"""Sandwich: scores + H/(8h) (sum_{k=1}^{width/2} cos((p_i - p_j) / 10000^(2k/width)) - width/2)."""

from __future__ import annotations

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
    make_encoding,
)
from literal.call import score_with_bias
from literal.sandwich import sandwich
from parameters import list_facts, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.sandwich import Sandwich
from zoo.errors import OptionError


@MASKS
@QUERIES
@pytest.mark.parametrize("width", [128, 6])
def test_formula(width, queries, causal):
    call = make_call(queries=queries, causal=causal, pos=draw_positions(real=True))
    expected = score_with_bias(call, sandwich(4, width))
    check_attention(make_encoding("sandwich", width=width), call, expected, causal)


def test_formula_far_from_the_start():
    zero, far = torch.zeros(1, 2, 3, 4), 200_000 + torch.arange(3.0)[:, None]
    encoding = zoo.encoding("sandwich", Dims(8, 2))
    near = zoo.functional.scores(encoding, zero, zero, far - 200_000)
    assert_close(zoo.functional.scores(encoding, zero, zero, far), near, 1e-4)


def test_facts():
    assert list_facts("sandwich") == {"shift_invariant": True}


def test_parameters():
    assert make_initial("sandwich").state_dict() == {}


def test_an_odd_width_is_refused():
    with pytest.raises(OptionError, match="width 7 is not even"):
        make_encoding("sandwich", width=7)


class WholeWidth(Sandwich):
    """The constant forgotten: nothing to a softmax, but the scores are not those of the formula."""

    def modify(self, call):
        modified = super().modify(call)
        return modified.replace(low_rank_biases=modified.low_rank_biases[:1])


def test_planted_fault():
    check_reference_catches(
        WholeWidth, lambda encoding, call: score_with_bias(call, sandwich(4)), head=16
    )
