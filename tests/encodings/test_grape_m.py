"""GRAPE-M: q and k rotate by exp(p sum_s (a_s b_s^T - b_s a_s^T)), with learned frequencies or planes."""

from __future__ import annotations

import pytest
import torch
from calls import (
    MASKS,
    TOKENS,
    assert_close,
    check_attention,
    check_reference_catches,
    compute_scores,
    draw_positions,
    make_call,
    make_dims,
    make_encoding,
)
from literal.grape_m import grape_m, grape_m_mixture, rotate_in_plane, score_by_rotation
from parameters import HEAD, list_facts, list_shapes, make_initial

import zoo
from zoo.encodings.grape_m import GRAPEM
from zoo.errors import OptionError

FORMS = pytest.mark.parametrize(
    ("options", "reference"),
    [({}, grape_m), ({"planes": 3}, grape_m_mixture)],
    ids=["frequencies", "planes"],
)


@MASKS
@FORMS
def test_formula(options, reference, causal):
    pos = draw_positions(real=True)
    encoding = make_encoding("grape_m", **options)
    call = make_call(queries=3, causal=causal, pos=pos)
    check_attention(encoding, call, reference(encoding, call), causal)


@torch.no_grad()
def test_formula_of_one_plane_is_that_of_rodrigues():
    encoding, call = make_encoding("grape_m", planes=1), make_call()
    expected = score_by_rotation(
        call, lambda h, p: rotate_in_plane(encoding.first[h, 0], encoding.second[h, 0], p)
    )
    assert_close(compute_scores(encoding, call), expected)


def test_facts():
    assert list_facts("grape_m") == {
        "shared": False,
        "shift_invariant": True,
        "identity_at_zero": True,
    }


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {"log_frequencies": (HEAD // 2,)}),
        ({"planes": 3}, {"first": (2, 3, HEAD), "second": (2, 3, HEAD)}),
    ],
    ids=str,
)
def test_parameters(options, shapes):
    assert list_shapes(make_initial("grape_m", kv_heads=2, **options)) == shapes


def test_initial_values_are_those_of_rope():
    call = make_call(pos=torch.arange(TOKENS).double())
    one, other = (zoo.encoding(name, make_dims()).double() for name in ("grape_m", "rope"))
    # parameters are rounded to float32
    assert_close(compute_scores(one, call), compute_scores(other, call), 1e-6)


@torch.no_grad()
def test_initial_planes_are_orthogonal_with_a_ladder_of_frequencies():
    encoding = make_initial("grape_m", kv_heads=2, planes=4)
    for first, second in zip(encoding.first, encoding.second, strict=True):
        squares = 10000.0 ** (-torch.arange(4.0) / 4)  # |a| |b| is the frequency
        frame = torch.cat([first, second])
        torch.testing.assert_close(frame @ frame.mT, squares.repeat(2).diag(), atol=1e-5, rtol=1e-4)


def test_planes_that_do_not_fit_are_refused():
    with pytest.raises(OptionError, match="5 planes do not fit into the head dim 8"):
        zoo.encoding("grape_m", make_dims(), planes=5)


class Unscaled(GRAPEM):
    """Logarithms of frequencies that are not divided by 16."""

    def wave_vectors(self, like):
        return self.log_frequencies.exp()[None, None]


class Mirrored(GRAPEM):
    """b a^T - a b^T: the other sense of rotation."""

    def _generator(self):
        return -super()._generator()


@pytest.mark.parametrize(
    ("fault", "options", "reference"),
    [(Unscaled, {}, grape_m), (Mirrored, {"planes": 3}, grape_m_mixture)],
)
def test_planted_fault(fault, options, reference):
    check_reference_catches(fault, reference, options=options)
