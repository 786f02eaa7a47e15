"""FoX: scores + sum_{l=j+1..i} log f_l, f = sigmoid(gate(x))."""

from __future__ import annotations

import pytest
import torch
from calls import (
    QUERIES,
    check_attention,
    check_documents,
    check_future_changes_nothing,
    check_reference_catches,
    make_call,
    make_encoding,
)
from literal.fox import fox
from panels import list_panels
from parameters import (
    HEADS,
    WIDTH,
    check_everything_learns,
    check_normal,
    list_facts,
    list_shapes,
    make_initial,
)

from zoo.encodings.fox import FoX


@QUERIES
def test_formula(queries):
    encoding, call = make_encoding("fox"), make_call(queries=queries)
    check_attention(encoding, call, fox(encoding, call))


def test_formula_in_packed_documents():
    check_documents("fox", fox)


def test_facts():
    assert list_facts("fox") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "reads_states": True,
    }


def test_parameters():
    shapes = {"gate.weight": (HEADS, WIDTH), "gate.bias": (HEADS,)}
    assert list_shapes(make_initial("fox")) == shapes


def test_initial_values():
    encoding = make_initial("fox")
    check_normal(encoding.gate.weight, 0.02)
    assert (encoding.gate.bias == 0).all()
    assert (make_initial("fox", init_bias=4.0).gate.bias == 4).all()
    check_everything_learns(encoding)


def test_future_changes_nothing():
    check_future_changes_nothing("fox")


def test_panels_show_the_half_life_of_gates():
    def set_gates(encoding):
        encoding.gate.weight.zero_()
        encoding.gate.bias.copy_(torch.tensor([0.5, 2**-0.1]).logit())

    panels = list_panels("fox", change=set_gates)
    assert panels["Half-life"].values == pytest.approx({"head 1": 1, "head 2": 10}, rel=1e-4)
    assert all(gates[1][0] == 0.5 for gates in panels["Forget gates"].groups.values())


class KeysToo(FoX):
    """Sums from the key on: a token forgets itself."""

    def modify(self, call):
        logs = call.keys.per_token["log_forget"]
        sums = logs.cumsum(1).mT[..., None]
        one = sums.new_ones(1, 1, 1, 1)
        keys = sums - logs.mT[..., None]
        return call.add_low_rank_bias(call.select_queries(sums), one).add_low_rank_bias(one, -keys)


def test_planted_fault():
    check_reference_catches(KeysToo, fox)
