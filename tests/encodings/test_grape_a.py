"""GRAPE-A: scores - |p_i - p_j| m_h softplus(rate_h) softplus(u_h . k_j / sqrt(K)), u = gate / |gate|."""

from __future__ import annotations

import math

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
from literal.alibi import alibi
from literal.call import score_with_bias
from literal.grape_a import grape_a
from parameters import HEAD, HEADS, check_spread, list_facts, list_shapes, make_initial
from torch.nn import functional as F

import zoo
from zoo.encodings.grape_a import GRAPEA
from zoo.errors import OptionError

FORMS = pytest.mark.parametrize("by", ["key", "query", "both"])


@FORMS
@pytest.mark.parametrize("queries", [TOKENS, 2])
def test_formula(by, queries):
    encoding, call = make_encoding("grape_a", by=by), make_call(queries=queries)
    check_attention(encoding, call, grape_a(encoding, call, by))


@FORMS
def test_formula_at_positions_in_any_order(by):
    pos = torch.tensor([5.0, 2.0, 3.0, 3.0, 9.0, 0.5, 4.0]).double()
    encoding, call = make_encoding("grape_a", by=by), make_call(pos=pos)
    assert_close(compute_scores(encoding, call), grape_a(encoding, call, by))


@torch.no_grad()
@FORMS
def test_formula_with_gates_of_zero_is_that_of_alibi(by):
    encoding, call = zoo.encoding("grape_a", make_dims(), by=by).double(), make_call()
    encoding.gate.zero_()
    gates = 1
    if encoding.query_gate is not None:
        encoding.query_gate.zero_()
        gates = 2
    # softplus(rate) times the sum of softplus(0) is 1
    encoding.rate.fill_(math.log(math.expm1(1 / (gates * math.log(2)))))
    assert_close(compute_scores(encoding, call), score_with_bias(call, alibi(encoding)))


def test_facts():
    assert list_facts("grape_a") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "reads_keys": True,
    }


@pytest.mark.parametrize("options", [{}, {"by": "query"}, {"by": "both"}], ids=str)
def test_parameters(options):
    gates = ["gate", "query_gate"] if options.get("by") == "both" else ["gate"]
    shapes = list_shapes(make_initial("grape_a", kv_heads=2, **options))
    assert shapes == {"rate": (HEADS,), **dict.fromkeys(gates, (HEADS, HEAD))}


@torch.no_grad()
def test_initial_values():
    encoding = make_initial("grape_a", kv_heads=2)
    torch.testing.assert_close(F.softplus(encoding.rate), torch.ones(HEADS))
    check_spread(encoding.gate, HEAD**-0.5)


def test_keys_that_an_encoding_before_it_rotates_are_refused():
    call = make_call()
    message = (
        "grape_a reads projected queries and keys, but an encoding before it changes them; "
        "list it first"
    )
    with pytest.raises(OptionError, match=message):
        compute_scores(zoo.encoding(["rope", "grape_a"], make_dims()).double(), call)
    chain = zoo.encoding(["grape_a", "carope"], make_dims()).double()
    assert compute_scores(chain, call).isfinite().any()


class Undirected(GRAPEA):
    """Gates at their own length."""

    def _slopes(self, heads, gate):
        return super()._slopes(heads * gate.norm(dim=-1)[:, None, None], gate)


@FORMS
def test_planted_fault(by):
    check_reference_catches(
        Undirected, lambda encoding, call: grape_a(encoding, call, by), options={"by": by}
    )
