"""Angles that tokens add up, polar coordinates and the forms of GRAPE against literal transcriptions, and special cases."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from calls import SEEN, TOKENS, agree, called, dims, made, moved, near, scores, spots
from literal import biases as literal
from literal import grape_pope_carope as newer
from torch import nn

import zoo
from zoo.attention.call import AttentionCall
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

CAUSAL = {
    "selective_rope": ({}, newer.selective_rope),
    "selective_rope_gate": ({"gate": True}, newer.selective_rope),
    "selective_rope_silu": (
        {"gate": False, "silu": True, "rank": 3, "width": 2, "base": 100.0},
        partial(newer.selective_rope, base=100.0, silu=True),
    ),
    "carope": ({}, newer.carope),
    "grape_m_contextual": ({}, newer.grape_m_contextual),
    "grape_m_contextual_softplus": (
        {"activation": "softplus", "initial": 0.5},
        partial(newer.grape_m_contextual, activation="softplus"),
    ),
    "grape_a": ({}, newer.grape_a),
    "grape_a_query": ({"by": "query"}, partial(newer.grape_a, by="query")),
    "grape_a_both": ({"by": "both"}, partial(newer.grape_a, by="both")),
    "grape_ap": ({}, newer.grape_ap),
    "grape_ap_narrow": ({"size": 2}, partial(newer.grape_ap, size=2)),
}
EITHER = {
    "pope": ({}, newer.pope),
    "grape_m": ({}, newer.grape_m),
    "grape_m_mixture": ({"planes": 3}, newer.grape_m_mixture),
}


def named(case):
    return (
        case.removesuffix("_silu")
        .removesuffix("_gate")
        .removesuffix("_softplus")
        .removesuffix("_both")
        .removesuffix("_query")
        .removesuffix("_narrow")
        .removesuffix("_mixture")
    )


@pytest.mark.parametrize("queries", [TOKENS, 2])
@pytest.mark.parametrize("case", CAUSAL)
def test_formulas_under_a_causal_mask(case, queries):
    options, reference = CAUSAL[case]
    encoding, call = made(named(case), **options), called(queries=queries)
    agree(encoding, call, reference(encoding, call))


@SEEN
@pytest.mark.parametrize("case", EITHER)
def test_formulas_under_either_mask(case, causal):
    options, reference = EITHER[case]
    encoding, call = (
        made(named(case), **options),
        called(queries=3, causal=causal, pos=spots(real=True)),
    )
    agree(encoding, call, reference(encoding, call), causal)


@pytest.mark.parametrize("by", ["key", "query", "both"])
def test_slopes_need_no_order_of_places(by):
    places = torch.tensor([5.0, 2.0, 3.0, 3.0, 9.0, 0.5, 4.0]).double()
    encoding, call = made("grape_a", by=by), called(pos=places)
    near(scores(encoding, call), newer.grape_a(encoding, call, by))


# query heads that share a key head


def shared_heads(name):
    """The first attention call of an encoding for four query heads and two key heads, keys as often as queries."""
    encoding = moved(zoo.encoding(name, Dims(32, 4, length=16, kv_heads=2)))
    call = called()
    tokens = encoding.prepare(Tokens.at(call.x, call.pos[:, None], ordered=True))
    modified = encoding.modify(
        AttentionCall(call.q, call.k, call.v, call.q, tokens, tokens, True, 8**-0.5)
    )
    return encoding, call, modified


def test_query_heads_turn_as_their_key_head():
    encoding, call, modified = shared_heads("selective_rope")
    visible = (modified.q @ modified.k.mT * modified.scale).masked_fill(
        ~call.visible, float("-inf")
    )
    near(visible, newer.selective_rope(encoding, call))


def test_polar_phases_are_those_of_the_key_head():
    encoding = moved(zoo.encoding("pope", Dims(32, 4, kv_heads=2)))
    call = called()
    tokens, shared = Tokens.at(call.x, call.pos[:, None]), call.k[:, ::2]
    q, k = (
        encoding.transform_query(call.q, tokens),
        encoding.transform_key(shared, tokens).repeat_interleave(2, dim=1),
    )
    encoding.phase = nn.Parameter(encoding.phase.repeat_interleave(2, dim=0), requires_grad=False)
    repeated = literal.Call(
        call.q, shared.repeat_interleave(2, dim=1), call.v, call.pos, call.visible, call.x
    )
    near(
        (q @ k.mT / math.sqrt(8)).masked_fill(~call.visible, float("-inf")),
        newer.pope(encoding, repeated),
    )


# special cases


def same(one, other, call):
    """The same scores, in float64."""
    near(
        scores(one.double(), call), scores(other.double(), call), 1e-6
    )  # parameters are rounded to float32


@pytest.mark.parametrize("name", ["carope", "grape_m"])
def test_rope_is_where_they_start(name):
    call = called(pos=torch.arange(TOKENS).double())
    same(zoo.encoding(name, dims()), zoo.encoding("rope", dims()), call)


@torch.no_grad()
def test_a_pace_of_one_is_rope():
    call = called(pos=torch.arange(TOKENS).double())
    paced = zoo.encoding("grape_m_contextual", dims(), activation="softplus", initial=1.0)
    same(paced, zoo.encoding("rope", dims()), call)


@torch.no_grad()
def test_one_plane_is_rodrigues_formula():
    encoding, call = made("grape_m", planes=1), called()
    near(
        scores(encoding, call),
        newer.turned(
            call, lambda h, p: newer.rodrigues(encoding.first[h, 0], encoding.second[h, 0], p)
        ),
    )


@torch.no_grad()
@pytest.mark.parametrize("by", ["key", "query", "both"])
def test_alibi_is_a_gate_that_says_the_same_of_all(by):
    encoding, call = zoo.encoding("grape_a", dims(), by=by).double(), called()
    encoding.gate.zero_()
    gates = 1 if encoding.query_gate is None else 2
    if encoding.query_gate is not None:
        encoding.query_gate.zero_()
    # softplus(rate) times the sum of softplus(0) is 1
    encoding.rate.fill_(math.log(math.expm1(1 / (gates * math.log(2)))))
    near(scores(encoding, call), literal.biased(call, literal.alibi(encoding)))


@torch.no_grad()
def test_alibi_is_a_path_of_nothing():
    encoding, call = (
        zoo.encoding("grape_ap", dims()).double(),
        called(pos=torch.arange(TOKENS).double()),
    )
    encoding.path.weight.zero_()
    slopes = literal.alibi(encoding)
    near(
        scores(encoding, call), literal.biased(call, lambda h, i, j: math.log(2) * slopes(h, i, j))
    )


@torch.no_grad()
def test_fox_is_a_path_that_does_not_depend_on_the_query():
    encoding, call = made("grape_ap"), called()
    call.x[:] = call.x[:, :1]
    path = (encoding.path.weight @ call.x[0, 0]).view(4, 8)  # [H, size]
    lengths = path.square().sum(-1) / (path.square().mean(-1) + 1e-6).sqrt() / 8
    fox = zoo.encoding("fox", dims()).double()
    slopes = torch.tensor([newer.alibi_slope(h, 4) for h in range(4)]).double()
    forget = slopes * nn.functional.logsigmoid(
        lengths * call.pos.cos()[:, None]
    )  # [M, H], of the first sample
    first = literal.Call(call.q[:1], call.k[:1], call.v[:1], call.pos, call.visible, call.x[:1])
    gates = Tokens.at(first.x, first.pos[:, None], ordered=True).with_per_token(
        log_forget=forget[None]
    )
    modified = fox.modify(
        AttentionCall(first.q, first.k, first.v, first.q, gates, gates, True, 8**-0.5)
    )
    expected = (first.q @ first.k.mT * modified.scale + modified.sum_biases()).masked_fill(
        ~call.visible, float("-inf")
    )
    near(scores(encoding, first), expected)


# what they refuse, and what goes together


def test_gates_of_turned_keys_are_refused():
    call = called()
    with pytest.raises(
        OptionError,
        match="grape_a reads projected queries and keys, but an encoding before it changes them; list it first",
    ):
        scores(zoo.encoding(["rope", "grape_a"], dims()).double(), call)
    assert scores(zoo.encoding(["grape_a", "carope"], dims()).double(), call).isfinite().any()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("grape_m", {"planes": 5}, "5 planes do not fit into the head dim 8"),
        ("grape_ap", {"size": 3}, "size 3 is not even"),
        ("grape_m_contextual", {"initial": 1.0}, "initial 1.0 is not below 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name, options, message):
    with pytest.raises(OptionError, match=message):
        zoo.encoding(name, dims(), **options)


@torch.no_grad()
@pytest.mark.parametrize("name", ["carope", "pope", "grape_m_contextual"])
def test_what_stands_for_a_query_turns_as_queries_do(name):
    chain, call = moved(zoo.encoding([name, "transformer_xl"], dims())), called()
    link, bias = dict(chain.named_children())[name], chain.transformer_xl.content

    def instead() -> torch.Tensor:
        heads = bias[:, None].expand_as(call.q)
        return scores(link, literal.Call(heads, call.k, call.v, call.pos, call.visible, call.x))

    whole, added = scores(chain, call), instead()
    bias.zero_()
    near((whole - scores(chain, call))[:, :, call.visible], (added - instead())[:, :, call.visible])
