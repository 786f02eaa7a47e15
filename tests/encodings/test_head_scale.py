"""HeadScale: scores * scale_h, with the biases of the encodings before it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calls import (
    QUERIES,
    assert_close,
    check_attention,
    compute_scores,
    compute_weights,
    make_call,
    make_dims,
    make_encoding,
    move_parameters,
)
from literal.call import score_with_bias
from literal.functions import softmax
from literal.head_scale import head_scale
from literal.kerple import kerple_log
from parameters import HEADS, check_everything_learns, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.chain import Chain
from zoo.encodings.head_scale import HeadScale
from zoo.errors import OptionError


def score_literally(chain, call):
    """Scale the scores of the links before `head_scale`."""
    links = dict(chain.named_children())
    scale = links.pop("head_scale")
    before = compute_scores(Chain(chain.dims, links), call)
    return head_scale(scale, before).masked_fill(~call.visible, float("-inf"))


@QUERIES
@pytest.mark.parametrize(
    "before", [[], ["alibi"], ["kerple"], ["t5"], ["shaw"], ["tupe"]], ids=" ".join
)
def test_formula(before, queries):
    chain, call = make_encoding([*before, "head_scale"]), make_call(queries=queries)
    expected = score_literally(chain, call)
    assert_close(compute_scores(chain, call), expected)
    assert_close(compute_weights(chain, call), softmax(expected))


def test_formula_leaves_later_biases_alone():
    encoding, call = make_encoding(["head_scale", "kerple"]), make_call()
    scaled = replace(call, q=call.q * encoding.head_scale.scale[:, None, None])
    check_attention(encoding, call, score_with_bias(scaled, kerple_log(encoding.kerple)))


def test_facts():
    assert list_facts("head_scale") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "handles_special_tokens": True,
    }


def test_parameters():
    assert list_shapes(make_initial("head_scale")) == {"scale": (HEADS,)}


def test_initial_values():
    encoding = make_initial("head_scale")
    assert (encoding.scale == 1).all()
    check_everything_learns(encoding)
    assert encoding.scale.grad.all()


def test_an_encoding_that_transforms_rows_cannot_come_before():
    encoding, call = make_encoding(["alibi", "dape", "head_scale"]), make_call()
    with pytest.raises(OptionError, match="head_scale cannot follow an encoding that transforms"):
        compute_scores(encoding, call)


def test_a_class_token_has_the_temperature_too():
    encoding, call = make_encoding("head_scale"), make_call()
    placed = torch.arange(len(call.pos)) > 0
    assert_close(
        compute_scores(encoding, call, has_position=placed), compute_scores(encoding, call)
    )


class Still(HeadScale):
    """The biases before it keep their size."""

    def modify(self, call):
        modified = super().modify(call)
        return modified.replace(biases=call.biases, low_rank_biases=call.low_rank_biases)


@pytest.mark.parametrize("before", ["alibi", "kerple"])
def test_planted_fault(before):
    dims, call = make_dims(), make_call()
    for cls in (HeadScale, Still):
        links = {before: zoo.encoding(before, dims), "head_scale": cls(dims)}
        chain = move_parameters(Chain(dims, links))
        expected = score_literally(chain, call)
        if cls is Still:
            with pytest.raises(AssertionError, match="not close"):
                assert_close(compute_scores(chain, call), expected)
        else:
            assert_close(compute_scores(chain, call), expected)
