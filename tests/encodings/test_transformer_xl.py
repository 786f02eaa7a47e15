"""Transformer-XL: scores ((q_i + content).k_j + (q_i + place).(W R_{i-j})) / sqrt(K)."""

from __future__ import annotations

import math

import pytest
import torch
from calls import (
    QUERIES,
    assert_close,
    check_attention,
    check_cached_decoding,
    check_documents,
    check_reference_catches,
    draw_positions,
    make_call,
    make_encoding,
)
from literal.transformer_xl import transformer_xl
from parameters import HEAD, HEADS, WIDTH, check_normal, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.chain import Chain
from zoo.encodings.transformer_xl import TransformerXL
from zoo.laws import Case, LawBroken
from zoo.laws.equivariance import shifts_change_nothing


@QUERIES
@pytest.mark.parametrize("real", [False, True])
def test_formula(real, queries):
    encoding = make_encoding("transformer_xl")
    call = make_call(queries=queries, pos=draw_positions(real))
    check_attention(encoding, call, transformer_xl(encoding, call))


def test_formula_with_another_base():
    encoding, call = make_encoding("transformer_xl", base=50.0), make_call()
    check_attention(encoding, call, transformer_xl(encoding, call, 50.0))


def test_formula_in_packed_documents():
    check_documents("transformer_xl", transformer_xl)


def test_formula_far_from_the_start():
    encoding = make_encoding("transformer_xl").float()
    pos = torch.tensor([0.0, 1, 2, 5, 6, 9])[:, None]
    q, k = torch.randn(2, 1, encoding.dims.heads, 6, encoding.dims.head_dim)
    near = zoo.functional.scores(encoding, q, k, pos, causal=True)
    torch.testing.assert_close(
        zoo.functional.scores(encoding, q, k, pos + 2**20, causal=True), near
    )


def test_facts():
    assert list_facts("transformer_xl") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "reads_keys": True,
    }


def test_parameters():
    assert list_shapes(make_initial("transformer_xl")) == {
        "project.weight": (WIDTH, WIDTH),
        "content": (HEADS, HEAD),
        "place": (HEADS, HEAD),
    }


def test_initial_values():
    encoding = make_initial("transformer_xl")
    check_normal(encoding.project.weight, 0.02)
    assert encoding.content.abs().max() < 0.1
    assert encoding.place.abs().max() < 0.1


def test_no_projection_stands_before_the_vectors():
    encoding, k = make_encoding("transformer_xl", 2), torch.randn(1, 2, 9, 8).double()
    pos = torch.arange(9).double()[:, None]
    scores = zoo.functional.scores(encoding, 0 * k, k, pos, causal=True)[0, 1]
    angles = 3 * torch.tensor([10000 ** (-2 * t / 16) for t in range(8)], dtype=torch.float64)
    far = (encoding.project.weight @ torch.cat([angles.sin(), angles.cos()])).view(2, 8)[1]
    expected = (encoding.content[1] @ k[0, 1, 2] + encoding.place[1] @ far) / math.sqrt(8)
    assert_close(scores[5, 2], expected)


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("transformer_xl")


class Backwards(TransformerXL):
    """Waves of p_j - p_i."""

    def _angles(self, pos):
        return -super()._angles(pos)


def test_planted_fault():
    check_reference_catches(Backwards, transformer_xl)


def test_planted_fault_of_content_that_is_not_rotated_with_the_queries(monkeypatch):
    case = Case("rope+transformer_xl", 1, lambda at: zoo.encoding(["rope", "transformer_xl"], at))
    shifts_change_nothing(case)
    transform_query = Chain.transform_query

    def leave_vectors(self, q, tokens):  # those are the same for all tokens
        return q if q.stride(2) == 0 else transform_query(self, q, tokens)

    monkeypatch.setattr(Chain, "transform_query", leave_vectors)
    with pytest.raises(LawBroken):
        shifts_change_nothing(case)
