"""RoPE-Axial: pairs of q and k rotate by p_a w_k, w_k = base^(-2Pk/K), a group of pairs per axis."""

from __future__ import annotations

import math

import pytest
import torch
from calls import assert_close
from extrapolate import check_interpolated_axis, make_extended
from literal.rope_axial import rope_axial, rope_axial_scaled, rope_axial_waves
from literal.rotation import score_rotations
from parameters import list_facts, make_initial
from rotations import CASES, SIZES, check_reference_catches, check_rotation, draw_heads, make_rotary

import zoo
from zoo.attention.encoding import Dims
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


# rules that scale frequencies


@pytest.mark.parametrize("head", [24, 20])  # 20 channels of three axes: 4, 3 and 3 pairs
@pytest.mark.parametrize("rule", ["linear", "ntk", "yarn"])
@AXES
def test_formula_with_a_rule_on_each_axis(axes, rule, head):
    factors, sizes = (3.0, 1.0, 5.0)[:axes], (64, 9, 300)[:axes]
    scaling = {"rule": rule, "factor": [*factors], "original": [*sizes]}
    encoding = make_rotary("rope_axial", axes, head=head, scaling=scaling)
    check_rotation(encoding, rope_axial_scaled(rule, factors, sizes))
    assert encoding.identity_at_zero == (rule != "yarn")


@AXES
def test_formula_with_one_factor_and_the_sizes_of_the_model(axes):
    encoding = make_rotary("rope_axial", axes, scaling={"rule": "yarn", "factor": 4})
    check_rotation(encoding, rope_axial_scaled("yarn", (4.0,) * axes, SIZES[axes]))


@pytest.mark.parametrize("rule", ["ntk", "yarn"])
def test_formula_with_the_options_that_a_rule_declares(rule):
    dims = Dims(48, 2, 2, (8, 40))
    encoding = make_extended("rope_axial", dims, rule, (0.5, 2.5)).double()
    check_rotation(encoding, rope_axial_scaled(rule, (1.0, 2.5), (8, 40)))
    assert encoding.extrapolations((2.0, 2.0)) == {}
    assert {*zoo.encoding("rope_axial", dims).extrapolations((2.0, 2.0))} == {
        "linear",
        "ntk",
        "yarn",
    }


def test_yarn_keeps_fast_pairs_and_divides_slow_ones():
    encoding = make_rotary("rope_axial", 2, scaling={"rule": "yarn", "factor": 4, "original": 16})
    plain = make_rotary("rope_axial", 2)
    like = torch.zeros((), dtype=torch.float64)
    ratio = (encoding.wave_vectors(like) / plain.wave_vectors(like))[0, 0, 6:]  # rows
    assert ratio[0] == 1
    assert_close(ratio[-1], torch.tensor(0.25).double())


@pytest.mark.parametrize(
    ("scaling", "part"),
    [
        ({"rule": "llama3", "factor": 2.0}, "one of 'linear', 'ntk', 'yarn'"),
        (
            {"rule": "ntk", "factor": [2.0, 2.0, 2.0]},
            "factor has 3 numbers for 2 axes; give one, or 2",
        ),
        ({"rule": "yarn", "factor": 2.0, "original": [4]}, "original has 1 numbers for 2 axes"),
        ({"rule": "ntk", "factor": [2.0, 0.5]}, "at least 1"),
        ({"rule": "linear", "factor": 2.0, "beta_fast": 4.0}, "linear has no beta_fast"),
    ],
    ids=str,
)
def test_a_rule_that_does_not_fit_is_refused(scaling, part):
    with pytest.raises(OptionError, match=part):
        make_rotary("rope_axial", 2, scaling=scaling)


@pytest.mark.parametrize("name", ["rope_axial", "rope_mixed"])
def test_yarn_counts_patches(name):
    scaling = {"rule": "yarn", "factor": 2.0}
    with pytest.raises(OptionError, match="which coordinates symmetric do not; choose coordinates"):
        make_rotary(name, 2, scaling=scaling, coordinates="symmetric")


class SwappedAxes(RoPEAxial):
    """The row first, which no law can tell from the column."""

    def compute_rotation(self, pos):
        return super().compute_rotation(pos.flip(-1))


def test_planted_fault():
    check_reference_catches(SwappedAxes, rope_axial)


@pytest.mark.parametrize("axes", [2, 3])
def test_each_axis_has_its_own_wavelengths(axes):
    ends = [(0.5, 40.0), (2.0, 9.0), (1.0, 1.0)][:axes]
    t_min, t_max = (list(side) for side in zip(*ends, strict=True))
    encoding = make_rotary("rope_axial", axes, t_min=t_min, t_max=t_max)
    check_rotation(encoding, rope_axial_waves(ends))
    same = make_rotary("rope_axial", axes, t_min=2.0, t_max=30.0)
    check_rotation(same, rope_axial_waves([(2.0, 30.0)] * axes))
    with pytest.raises(OptionError, match=f"t_min has 1 numbers for {axes} axes"):
        make_rotary("rope_axial", axes, t_min=[2.0], t_max=30.0)
    with pytest.raises(OptionError, match="unit has no effect"):
        make_rotary("rope_axial", axes, t_min=2.0, t_max=30.0, unit="turn")
