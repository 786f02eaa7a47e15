"""GRAPE-AP: scores + m_h sum_{l=j+1..i} log sigmoid(P_i . R_l P'_l / size), P = path(x), P' = P / rms(P)."""

from __future__ import annotations

import math
from dataclasses import replace
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
from literal.alibi import alibi, slope
from literal.call import score_with_bias
from literal.grape_ap import grape_ap
from parameters import HEADS, WIDTH, check_spread, list_facts, list_shapes, make_initial
from torch.nn import functional as F

import zoo
from zoo.attention.call import AttentionCall
from zoo.attention.tokens import Tokens
from zoo.encodings.grape_ap import GRAPEAP
from zoo.errors import OptionError

CASES = {"default": ({}, grape_ap), "narrow": ({"size": 2}, partial(grape_ap, size=2))}


@pytest.mark.parametrize("queries", [TOKENS, 2])
@pytest.mark.parametrize("case", CASES)
def test_formula(case, queries):
    options, reference = CASES[case]
    encoding, call = make_encoding("grape_ap", **options), make_call(queries=queries)
    check_attention(encoding, call, reference(encoding, call))


@torch.no_grad()
def test_formula_with_a_path_of_zero_is_that_of_alibi():
    encoding = zoo.encoding("grape_ap", make_dims()).double()
    call = make_call(pos=torch.arange(TOKENS).double())
    encoding.path.weight.zero_()
    slopes = alibi(encoding)
    expected = score_with_bias(call, lambda h, i, j: math.log(2) * slopes(h, i, j))
    assert_close(compute_scores(encoding, call), expected)


@torch.no_grad()
def test_formula_with_a_path_that_does_not_depend_on_the_query_is_that_of_fox():
    encoding, call = make_encoding("grape_ap"), make_call()
    call.x[:] = call.x[:, :1]
    path = (encoding.path.weight @ call.x[0, 0]).view(4, 8)  # [H, size]
    lengths = path.square().sum(-1) / (path.square().mean(-1) + 1e-6).sqrt() / 8
    slopes = torch.tensor([slope(h, 4) for h in range(4)]).double()
    forget = slopes * F.logsigmoid(lengths * call.pos.cos()[:, None])  # [M, H], of the first sample

    fox, first = (
        zoo.encoding("fox", make_dims()).double(),
        replace(call, q=call.q[:1], k=call.k[:1], v=call.v[:1], x=call.x[:1]),
    )
    gates = Tokens.at(first.x, first.pos[:, None], ordered=True)
    gates = gates.with_per_token(log_forget=forget[None])
    modified = fox.modify(
        AttentionCall(first.q, first.k, first.v, first.q, gates, gates, True, 8**-0.5)
    )
    scores = first.q @ first.k.mT * modified.scale + modified.sum_biases()
    expected = scores.masked_fill(~call.visible, float("-inf"))
    assert_close(compute_scores(encoding, first), expected)


def test_facts():
    assert list_facts("grape_ap") == {
        "shared": False,
        "causal_only": True,
        "identity_at_zero": True,
        "reads_states": True,
    }


@pytest.mark.parametrize(("options", "size"), [({}, 8), ({"size": 4}, 4)], ids=str)
def test_parameters(options, size):
    shapes = list_shapes(make_initial("grape_ap", kv_heads=2, **options))
    assert shapes == {"path.weight": (size * HEADS, WIDTH)}


@torch.no_grad()
def test_initial_values():
    check_spread(make_initial("grape_ap").path.weight, 0.5 * WIDTH**-0.5)


def test_an_odd_size_is_refused():
    with pytest.raises(OptionError, match="size 3 is not even"):
        zoo.encoding("grape_ap", make_dims(), size=3)


class EdgesOfOthers(GRAPEAP):
    """Edges that belong to the tokens before."""

    def modify(self, call):
        keys = call.keys
        return super().modify(
            call.replace(keys=keys.with_per_token(path=keys.per_token["path"].roll(1, dims=1)))
        )


def test_planted_fault():
    check_reference_catches(EdgesOfOthers, grape_ap)
