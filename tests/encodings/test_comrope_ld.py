"""ComRoPE-LD: block j of b channels of q and k rotates by exp((sum_a scales[a, j] p_a) S_j), S = G - G^T."""

from __future__ import annotations

import pytest
import torch
from calls import assert_close
from generators import (
    DENSE,
    DERIVATIVE,
    KINDS,
    check_gradients,
    check_gradients_by_sample,
    check_orthogonal_in_float32,
    check_waves,
    compute_gradients,
    make_with_generators,
    measure_largest_tensor,
)
from literal.comrope_ld import comrope_ld
from literal.rotation import score_rotations
from parameters import (
    adapt_parameters,
    compute_limit,
    list_facts,
    list_shapes,
    make_normal,
    measure_distance,
)
from rotations import (
    AXES,
    CASES,
    CLIP,
    IMAGE,
    check_grids_agree,
    check_reference_catches,
    check_rotation,
    draw_heads,
    make_rotary,
)

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.comrope_ld import ComRoPELD
from zoo.errors import OptionError


@CASES
@AXES
def test_formula(axes, case):
    check_rotation(make_rotary("comrope_ld", axes, block=4), comrope_ld, case)


@KINDS
@AXES
def test_formula_and_gradients_of_difficult_generators(axes, kind):
    check_gradients("comrope_ld", comrope_ld, axes, kind)


@AXES
def test_gradients_of_positions_by_sample(axes):
    check_gradients_by_sample("comrope_ld", comrope_ld, axes)


def test_scales_learn_while_generators_are_frozen():
    encoding = make_with_generators("comrope_ld", 2, "random")
    encoding.generators.requires_grad_(False)
    pos = torch.randn(4, 2, dtype=torch.float64)
    q, k = draw_heads(encoding, 4, 1)
    actual = zoo.functional.scores(encoding, q, k, pos)
    expected = score_rotations(comrope_ld, encoding, q, k, pos)
    weight = torch.randn_like(actual)
    both = (compute_gradients(one, weight, encoding.scales)[0] for one in (actual, expected))
    assert_close(*both, DERIVATIVE)


def test_facts():
    assert list_facts("comrope_ld") == {
        "shared": False,
        "shift_invariant": True,
        "axes": (1, 2, 3),
        "coordinates": "fraction",
        "identity_at_zero": True,
    }


@pytest.mark.parametrize(("axes", "options"), [(2, {}), (3, {"block": 8})], ids=str)
def test_parameters(axes, options):
    assert list_shapes(make_rotary("comrope_ld", axes, **options)) == {
        "generators": (2, 3, 8, 8),
        "scales": (axes, 2, 3),
    }


@pytest.mark.parametrize("options", [{}, {"std": 0.2}], ids=str)
def test_initial_generators_are_normal(options):
    values = zoo.encoding("comrope_ld", Dims(128, 4, 2, (3, 4)), **options).generators
    assert measure_distance(values, make_normal(options.get("std", 1.0))) < compute_limit(values)


def test_initial_values_of_scales_are_standard_normal():
    scales = zoo.encoding("comrope_ld", Dims(4096, 64, 2, (3, 4)), std=0.2).scales
    assert measure_distance(scales, make_normal(1)) < compute_limit(scales)


def test_a_block_that_does_not_fit_is_refused():
    with pytest.raises(OptionError, match=r"^comrope_ld: block") as refusal:
        zoo.encoding("comrope_ld", Dims(48, 2, 2), block=5)
    assert refusal.value.key == "block"


def test_large_generators_stay_orthogonal_in_float32():
    check_orthogonal_in_float32("comrope_ld", 64)


@pytest.mark.parametrize("per_sample", [False, True])
def test_no_dense_rotation_is_made_per_token(per_sample):
    assert measure_largest_tensor("comrope_ld", 8, per_sample) < DENSE


def test_wave_vectors_are_those_of_the_tables():
    check_waves("comrope_ld")


# other sizes


@pytest.mark.parametrize(
    ("there", "here"), [(IMAGE, CLIP), (CLIP, IMAGE)], ids=["to clips", "to images"]
)
def test_rows_and_columns_keep_their_scales(there, here):
    trained, other = (zoo.encoding("comrope_ld", dims, block=4) for dims in (there, here))
    assert adapt_parameters(trained, other) == []
    check_grids_agree(trained, other)


def test_a_text_has_nothing_for_a_grid():
    text = zoo.encoding("comrope_ld", Dims(24, 2, length=6, depth=2), block=4)
    assert adapt_parameters(text, zoo.encoding("comrope_ld", IMAGE, block=4))


class OneAxis(ComRoPELD):
    """The scales of the first axis serve all."""

    def compute_rotation(self, pos):
        return super().compute_rotation(pos.sum(-1, keepdim=True) * torch.eye(2)[0])


def test_planted_fault():
    check_reference_catches(OneAxis, comrope_ld, block=4)
