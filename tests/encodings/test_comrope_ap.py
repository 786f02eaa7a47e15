"""ComRoPE-AP: block j of b channels of q and k rotates by exp(p_(j mod P) S_j), S = G - G^T."""

from __future__ import annotations

import pytest
from generators import (
    DENSE,
    KINDS,
    check_gradients,
    check_gradients_by_sample,
    check_orthogonal_in_float32,
    check_waves,
    measure_largest_tensor,
)
from literal.comrope_ap import comrope_ap
from parameters import (
    adapt_parameters,
    compute_limit,
    list_facts,
    list_shapes,
    make_normal,
    measure_distance,
)
from rotations import AXES, CASES, CLIP, IMAGE, check_reference_catches, check_rotation, make_rotary

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.comrope_ap import ComRoPEAP
from zoo.errors import OptionError


@CASES
@AXES
def test_formula(axes, case):
    check_rotation(make_rotary("comrope_ap", axes, block=4), comrope_ap, case)


@KINDS
@AXES
def test_formula_and_gradients_of_difficult_generators(axes, kind):
    check_gradients("comrope_ap", comrope_ap, axes, kind)


@AXES
def test_gradients_of_positions_by_sample(axes):
    check_gradients_by_sample("comrope_ap", comrope_ap, axes)


def test_facts():
    assert list_facts("comrope_ap") == {
        "shared": False,
        "shift_invariant": True,
        "axes": (1, 2, 3),
        "coordinates": "fraction",
        "identity_at_zero": True,
    }


@pytest.mark.parametrize(
    ("axes", "options", "shape"), [(1, {}, (2, 3, 8, 8)), (2, {"block": 4}, (2, 6, 4, 4))], ids=str
)
def test_parameters(axes, options, shape):
    assert list_shapes(make_rotary("comrope_ap", axes, **options)) == {"generators": shape}


@pytest.mark.parametrize("options", [{}, {"std": 0.2}], ids=str)
def test_initial_values_are_normal(options):
    values = zoo.encoding("comrope_ap", Dims(128, 4, 2, (3, 4)), **options).generators
    assert measure_distance(values, make_normal(options.get("std", 1.0))) < compute_limit(values)


def test_a_block_that_does_not_fit_is_refused():
    with pytest.raises(OptionError, match=r"^comrope_ap: block") as refusal:
        zoo.encoding("comrope_ap", Dims(48, 2, 2), block=3)
    assert refusal.value.key == "block"


def test_large_generators_stay_orthogonal_in_float32():
    check_orthogonal_in_float32("comrope_ap", 8)


@pytest.mark.parametrize("per_sample", [False, True])
def test_no_dense_rotation_is_made_per_token(per_sample):
    assert measure_largest_tensor("comrope_ap", 8, per_sample) < DENSE


def test_wave_vectors_are_those_of_the_tables():
    check_waves("comrope_ap")


def test_blocks_dealt_to_other_axes_are_not_adapted():
    image, clip = (zoo.encoding("comrope_ap", dims, block=2) for dims in (IMAGE, CLIP))
    assert adapt_parameters(image, clip) == ["generators"]


class InHalves(ComRoPEAP):
    """The first half of the blocks rotates with one axis, the second with the other."""

    def _axis_of_block(self, blocks):
        return super()._axis_of_block(blocks).sort().values


def test_planted_fault():
    check_reference_catches(InHalves, comrope_ap, block=4)
