"""RoPE-Axial: pairs of q and k rotate by p_a w_k, w_k = base^(-2Pk/K), a group of pairs per axis."""

from __future__ import annotations

import math

import pytest
import torch
from calls import assert_close
from extrapolate import check_interpolated_axis
from literal.rope_axial import rope_axial
from literal.rotation import score_rotations
from parameters import list_facts, make_initial
from rotations import CASES, check_reference_catches, check_rotation, draw_heads, make_rotary

import zoo
from zoo.encodings.rope_axial import RoPEAxial
from zoo.errors import OptionError

AXES = pytest.mark.parametrize("axes", [2, 3])


@CASES
@AXES
def test_formula(axes, case):
    check_rotation(make_rotary("rope_axial", axes), rope_axial, case)


def test_formula_where_three_axes_do_not_divide_the_head():
    check_rotation(make_rotary("rope_axial", 3, head=20), rope_axial)


@AXES
def test_formula_in_whole_turns(axes):
    encoding = make_rotary("rope_axial", axes, unit="turn", coordinates="symmetric")
    pos = torch.rand(5, axes, dtype=torch.float64)
    q, k = draw_heads(encoding)
    expected = score_rotations(rope_axial, encoding, q, k, 2 * math.pi * pos)
    assert_close(zoo.functional.scores(encoding, q, k, pos), expected)


def test_facts():
    assert list_facts("rope_axial") == {
        "shift_invariant": True,
        "axes": (2, 3),
        "identity_at_zero": True,
    }


@AXES
def test_parameters(axes):
    assert make_initial("rope_axial", axes).state_dict() == {}


def test_the_column_comes_first_as_published():
    encoding, q = make_rotary("rope_axial", 2), torch.zeros(1, 2, 2, 24, dtype=torch.float64)
    q[..., 0] = 1  # the first pair, which rotates by one a step
    by_column, by_row = (
        zoo.functional.scores(encoding, q, q, torch.tensor([[0.0, 0], p]))
        for p in ([0.0, 1], [1.0, 0])
    )
    assert_close(by_column[0, 0, 0, 1], torch.tensor(math.cos(1) / math.sqrt(24)).double(), 1e-7)
    assert_close(by_row[0, 0, 0, 1], torch.tensor(1 / math.sqrt(24)).double(), 1e-7)


@pytest.mark.parametrize("coordinates", ["index", "interpolated"])
def test_whole_turns_of_whole_coordinates_are_refused(coordinates):
    message = r"rope_axial: unit turn .* choose coordinates: symmetric"
    with pytest.raises(OptionError, match=message):
        make_rotary("rope_axial", 2, unit="turn", coordinates=coordinates)
    with pytest.raises(OptionError, match="unit: radian"):
        make_rotary("rope_axial", 2, unit="turn")  # index is the default


def test_a_larger_image_is_interpolated_along_the_axis_that_grew():
    check_interpolated_axis("rope_axial")


class SwappedAxes(RoPEAxial):
    """The row first, which no law can tell from the column."""

    def compute_rotation(self, pos):
        return super().compute_rotation(pos.flip(-1))


def test_planted_fault():
    check_reference_catches(SwappedAxes, rope_axial)
