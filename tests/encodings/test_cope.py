"""CoPE: scores + z_i[p_ij], p_ij = min(sum_{t=j..i} sigmoid(scores_it), max_positions - 1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calls import (
    QUERIES,
    assert_close,
    check_attention,
    check_documents,
    check_future_changes_nothing,
    check_reference_catches,
    compute_scores,
    make_call,
    make_encoding,
)
from faults import check_fault_is_caught, name_parameter
from literal.alibi import alibi
from literal.call import make_product
from literal.cope import cope
from literal.rope import list_frequencies, rotate_heads
from panels import describe_call, name_panels
from parameters import (
    HEAD,
    adapt_parameters,
    check_everything_learns,
    list_facts,
    list_shapes,
    make_initial,
)

import zoo
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.layer import Context
from zoo.attention.tokens import Tokens
from zoo.encodings.cope import CoPE
from zoo.laws import causality, equivariance


def score_literally(encoding, call, positions=64):
    return cope(encoding, call, make_product(call), positions)


@QUERIES
@pytest.mark.parametrize("positions", [2, 3, 64])  # the first two are less than the gates' sums
def test_formula(positions, queries):
    encoding = make_encoding("cope", max_positions=positions)
    call = make_call(queries=queries)
    check_attention(encoding, call, score_literally(encoding, call, positions))


def test_formula_counts_by_scores_that_are_rotated_and_biased():
    chain = make_encoding(["rope", "alibi", {"name": "cope", "max_positions": 4}])
    call = make_call()
    q, k = (rotate_heads(one, call.pos, list_frequencies(8)) for one in (call.q, call.k))
    product, bias = make_product(replace(call, q=q, k=k)), alibi(chain.alibi)

    def score_before(b, h, i, j):
        return product(b, h, i, j) + bias(h, call.pos[i], call.pos[j])

    check_attention(chain, call, cope(chain.cope, call, score_before, 4))


def test_formula_in_packed_documents():
    check_documents("cope", score_literally)


def test_facts():
    assert list_facts("cope") == {"shared": False, "shift_invariant": True, "causal_only": True}


def test_parameters():
    assert list_shapes(make_initial("cope")) == {"table": (64, HEAD)}
    assert list_shapes(make_initial("cope", max_positions=9)) == {"table": (9, HEAD)}


def test_initial_values():
    encoding = make_initial("cope")
    assert (encoding.table == 0).all()
    check_everything_learns(encoding)


def test_a_longer_table_goes_on_with_its_last_rows():
    dims = Dims(24, 2, length=6, depth=2)
    short, long = (zoo.encoding("cope", dims, max_positions=size) for size in (3, 5))
    torch.nn.init.normal_(short.table)
    assert adapt_parameters(short, long) == []
    q, k = torch.randn(2, 1, 2, 9, 12)
    pos = torch.arange(9.0)[:, None]
    torch.testing.assert_close(
        zoo.functional.scores(long, q, k, pos, causal=True),
        zoo.functional.scores(short, q, k, pos, causal=True),
    )
    back = zoo.encoding("cope", dims, max_positions=3)
    adapt_parameters(long, back)
    torch.testing.assert_close(back.table, short.table)


# counts


def add_positions(positions, squares, tokens):
    """Return the last row of what is added to scores of zero: all gates are a half."""
    encoding = zoo.encoding("cope", Dims(1, 1), max_positions=positions).double()
    encoding = encoding.requires_grad_(False)
    encoding.table.copy_(squares)
    one, pos = torch.ones(1, 1, tokens, 1).double(), torch.arange(tokens).double()[:, None]
    return zoo.functional.scores(encoding, one, 0 * one, pos, causal=True)[0, 0, -1]


def test_counts_are_interpolated_between_floor_and_ceiling():
    added = add_positions(8, torch.arange(8.0)[:, None] ** 2, 5)  # counts 2.5, 2, 1.5, 1, 0.5
    assert_close(added, torch.tensor([6.5, 4, 2.5, 1, 0.5]).double())


def test_counts_are_clamped_at_the_last_position():
    table = torch.randn(3, 1)
    assert_close(add_positions(3, table, 9)[:5], table[2].double().expand(5))
    encoding, call = make_encoding("cope", max_positions=3), make_call()
    free = make_encoding("cope", max_positions=64)
    free.table[:3] = encoding.table
    assert not torch.allclose(compute_scores(encoding, call), compute_scores(free, call))


def test_future_changes_nothing():
    check_future_changes_nothing("cope")


@torch.no_grad()
def test_panels_count_halves_where_scores_are_zero():
    chain = Chain.of(zoo.encoding("cope", Dims(32, 2, length=16), max_positions=3))
    call = describe_call(chain, torch.zeros(1, 8, 32), torch.arange(8.0)[:, None], True, Context())
    panels = name_panels(chain, call.replace(q=0 * call.q))
    assert panels["Gates"].values == {"head 1": 0.5, "head 2": 0.5}
    # of 1 to 8 tokens
    assert panels["Positions counted"].values["head 1"] == pytest.approx(4.5 / 2)
    cut = sum(max(row - 4, 0) for row in range(1, 9)) / 36  # counts of more than 2
    assert panels["Clamped positions"].values["head 1"] == pytest.approx(cut)


@torch.no_grad()
def test_panels_ignore_padding():
    layer = zoo.Attention(Dims(16, 2), "cope", causal=True).eval()
    x, document = torch.randn(1, 12, 16), torch.tensor([[0] * 6 + [-1] * 6])
    panels = []
    for tokens in (
        Tokens.at(x[:, :6], torch.arange(6.0)[:, None]),
        Tokens.at(x, torch.arange(12.0)[:, None], None, document),
    ):
        chain = Chain.of(layer.encoding)
        call = layer.layer.describe(tokens, chain, Context())[1]
        panels.append({panel.title: panel.values for panel in chain.panels(call)})
    for title, values in panels[0].items():
        assert panels[1][title] == pytest.approx(values), title


# planted faults


class GatesAhead(CoPE):
    """Counts that add up the gates of all keys."""

    def modify(self, call):
        z = call.raw_query @ self.table.mT

        def rescore(scores, visible, span):
            counts = scores.sigmoid().flip(-1).cumsum(-1).flip(-1)
            return scores + span.slice_queries(z).gather(-1, counts.long())

        return call.replace(transform_scores=rescore)


class CountsOfOthers(CoPE):
    """Counts that begin with the row, whatever document that was."""

    def modify(self, call):
        def rescore(scores, visible, span):
            return (
                scores * (1 + 0.1 * scores.sigmoid().cumsum(-1))
                + span.slice_queries(call.raw_query) @ self.table.mT[:, :1]
            )

        return call.replace(transform_scores=rescore)


@pytest.mark.parametrize(
    ("law", "fault"),
    [
        (causality.future_tokens_change_nothing, GatesAhead),
        (causality.a_longer_run_begins_the_same, GatesAhead),
        (equivariance.packed_documents_are_apart, CountsOfOthers),
    ],
    ids=name_parameter,
)
def test_planted_fault(law, fault):
    check_fault_is_caught(law, fault)


class WholeCounts(CoPE):
    """Counts rounded down: no gradient would reach the gates."""

    def _count(self, call, scores, visible, span):
        gates, counts = super()._count(call, scores, visible, span)
        return gates, counts.floor()


def test_planted_fault_of_counts():
    check_reference_catches(WholeCounts, score_literally)
