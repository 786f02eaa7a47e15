"""DAPE: scores A + B + f([A; B]), A = q k^T / sqrt(K), B the biases of the encodings before it."""

from __future__ import annotations

import math
from functools import partial

import pytest
from calls import (
    QUERIES,
    assert_close,
    check_attention,
    check_documents,
    compute_scores,
    make_call,
    make_dims,
    make_encoding,
    move_parameters,
)
from literal.alibi import alibi
from literal.dape import dape
from literal.fire import fire
from literal.kerple import kerple_log, kerple_power
from parameters import HEADS, is_uniform, list_facts, list_network_shapes, list_shapes, make_initial

import zoo
from zoo.attention.chain import Chain
from zoo.encodings.dape import DAPE

BIASES = {
    "alibi": ({"name": "alibi"}, alibi),
    "kerple_log": ({"name": "kerple"}, kerple_log),
    "kerple_power": ({"name": "kerple", "kind": "power"}, kerple_power),
    "fire": ({"name": "fire", "threshold": 6.0}, partial(fire, threshold=6.0)),
    "fire_512": ({"name": "fire"}, fire),
}


@QUERIES
@pytest.mark.parametrize("before", BIASES)
def test_formula(before, queries):
    encoding, bias = BIASES[before]
    chain = make_encoding([encoding, {"name": "dape", "hidden": 5}])
    call = make_call(queries=queries)
    expected = dape(chain.dape, call, bias(getattr(chain, encoding["name"])))
    check_attention(chain, call, expected)


def test_formula_takes_all_biases_before_it_together():
    chain, call = make_encoding(["alibi", "kerple", "dape"]), make_call()
    one, other = alibi(chain.alibi), kerple_log(chain.kerple)
    expected = dape(chain.dape, call, lambda h, i, j: one(h, i, j) + other(h, i, j))
    check_attention(chain, call, expected)


def test_formula_in_packed_documents():
    check_documents(
        ["alibi", "dape"], lambda chain, call: dape(chain.dape, call, alibi(chain.alibi))
    )


def test_facts():
    assert list_facts("dape") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "zero_gradient": ("net.2.bias",),
        "consumes_biases": True,
    }


@pytest.mark.parametrize("before", ["alibi", "kerple", "fire"])
def test_parameters(before):
    shapes = list_shapes(make_initial([before, "dape"]))
    own = {f"dape.{name}": shape for name, shape in list_network_shapes(2 * HEADS, 32).items()}
    assert {name: shape for name, shape in shapes.items() if name.startswith("dape.")} == own
    assert all(name.startswith((f"{before}.", "dape.")) for name in shapes)


@pytest.mark.parametrize(
    ("parameter", "inputs"),
    [("net.0.weight", 2 * HEADS), ("net.0.bias", 2 * HEADS), ("net.2.weight", 256)],
)
def test_initial_values_are_those_of_pytorch(parameter, inputs):
    chain = make_initial([{"name": "alibi"}, {"name": "dape", "hidden": 256}])
    edge = 1 / math.sqrt(inputs)
    assert is_uniform(chain.dape.get_parameter(parameter).detach() + edge, 2 * edge)


class OnlyChanges(DAPE):
    """The biases themselves are not added."""

    def modify(self, call):
        adapt_bias = super().modify(call).transform_scores

        def rescore(scores, visible, span):
            return adapt_bias(scores, visible, span) - call.sum_biases(span)

        return call.replace(biases=(), low_rank_biases=(), transform_scores=rescore)


def test_planted_fault():
    for cls in (DAPE, OnlyChanges):
        dims, call = make_dims(), make_call()
        links = {"alibi": zoo.encoding("alibi", dims), "dape": cls(dims)}
        chain = move_parameters(Chain(dims, links))
        expected = dape(chain.dape, call, alibi(chain.alibi))
        if cls is OnlyChanges:
            with pytest.raises(AssertionError, match="not close"):
                assert_close(compute_scores(chain, call), expected)
        else:
            assert_close(compute_scores(chain, call), expected)
