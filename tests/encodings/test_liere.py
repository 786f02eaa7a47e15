"""LieRE: each block of b channels of q and k rotates by exp(sum_a p_a A_a), A_a = U_a - U_a^T."""

from __future__ import annotations

import math

import pytest
import torch
from generators import (
    DENSE,
    KINDS,
    check_gradients,
    check_gradients_by_sample,
    check_orthogonal_in_float32,
    measure_largest_tensor,
)
from literal.liere import liere
from panels import list_panels
from parameters import adapt_parameters, compute_limit, list_facts, list_shapes, measure_distance
from rotations import (
    AXES,
    CASES,
    CLIP,
    IMAGE,
    check_grids_agree,
    check_reference_catches,
    check_rotation,
    make_rotary,
)

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.liere import LieRE
from zoo.errors import OptionError


@CASES
@AXES
def test_formula(axes, case):
    check_rotation(make_rotary("liere", axes, block=4), liere, case)


def test_formula_leaves_channels_that_fill_no_block():
    check_rotation(make_rotary("liere", 2, head=22, block=5), liere)


@KINDS
@AXES
def test_formula_and_gradients_of_difficult_generators(axes, kind):
    check_gradients("liere", liere, axes, kind)


@AXES
def test_gradients_of_positions_by_sample(axes):
    check_gradients_by_sample("liere", liere, axes)


def test_facts():
    assert list_facts("liere") == {
        "shared": False,
        "axes": (1, 2, 3),
        "coordinates": "growing",
        "identity_at_zero": True,
    }


@pytest.mark.parametrize(
    ("axes", "options", "shape"),
    [(2, {}, (2, 2, 3, 28)), (2, {"block": 8}, (2, 2, 3, 28)), (3, {"block": 5}, (3, 2, 4, 10))],
    ids=str,
)
def test_parameters(axes, options, shape):
    assert list_shapes(make_rotary("liere", axes, **options)) == {"generators": shape}


@pytest.mark.parametrize("options", [{}, {"init_std": 0.5}], ids=str)
def test_initial_values_are_uniform(options):
    values = zoo.encoding("liere", Dims(128, 4, 2, (3, 4)), **options).generators
    top = options.get("init_std", 2 * math.pi)
    assert measure_distance(values, lambda x: (x / top).clamp(0, 1)) < compute_limit(values)


def test_a_block_that_does_not_fit_is_refused():
    with pytest.raises(OptionError, match=r"^liere: block") as refusal:
        zoo.encoding("liere", Dims(48, 2, 2), block=48)
    assert refusal.value.key == "block"


@pytest.mark.parametrize("block", [8, 64])
def test_large_generators_stay_orthogonal_in_float32(block):
    check_orthogonal_in_float32("liere", block)


@pytest.mark.parametrize("per_sample", [False, True])
def test_no_dense_rotation_is_made_per_token(per_sample):
    assert measure_largest_tensor("liere", 8, per_sample) < DENSE


def test_a_dense_rotation_per_token_would_be_seen():
    assert measure_largest_tensor("liere", 48, False) >= DENSE


@pytest.mark.parametrize("block", [4, 12], ids=["elements", "batches"])
@pytest.mark.parametrize("weights", [torch.float32, torch.float64])
def test_positions_may_have_another_dtype_than_weights(block, weights):
    dims = Dims(24, 2, 2, (2, 3))
    encoding = zoo.encoding({"name": "liere", "block": block}, dims).to(weights)
    other = torch.float64 if weights == torch.float32 else torch.float32
    q, k = torch.randn(2, 1, 2, 6, 12, dtype=other)
    pos = torch.cartesian_prod(torch.arange(2.0), torch.arange(3.0)).to(other)
    scores = zoo.functional.scores(encoding, q, k, pos)
    assert scores.dtype == other
    expected = zoo.functional.scores(encoding.to(other), q, k, pos)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


# other sizes


@pytest.mark.parametrize(
    ("there", "here"), [(IMAGE, CLIP), (CLIP, IMAGE)], ids=["to clips", "to images"]
)
def test_rows_and_columns_keep_their_generators(there, here):
    trained, other = (zoo.encoding("liere", dims, block=4) for dims in (there, here))
    assert adapt_parameters(trained, other) == []
    check_grids_agree(trained, other)


def test_a_text_has_nothing_for_a_grid():
    text = zoo.encoding("liere", Dims(24, 2, length=6, depth=2), block=4)
    assert adapt_parameters(text, zoo.encoding("liere", IMAGE, block=4))


def test_panels_show_shifts_that_change_scores_unless_generators_commute():
    def set_commuting(encoding):
        encoding.generators[1, 0] = 2 * encoding.generators[0, 0]  # of the first head

    dims = Dims(32, 2, axes=2, length=(5, 5))
    panels = list_panels("liere", dims, False, change=set_commuting)
    lines, sizes = panels["Change under shifts"].lines, panels["Commutators of axes"].values
    assert lines["head 1"].abs().max() < 1e-4
    assert lines["head 2"][0] == 0
    assert lines["head 2"][1:].min() > 0.1
    assert sizes["head 1"] < 1e-5 < 0.1 < sizes["head 2"]


class OneAfterTheOther(LieRE):
    """A rotation for each axis, one after the other, as if generators commuted."""

    def compute_rotation(self, pos):
        zero = torch.zeros_like(pos[..., :1])
        axes = [
            super(OneAfterTheOther, self).compute_rotation(torch.cat(parts, dim=-1))[0]
            for parts in ([pos[..., :1], zero], [zero, pos[..., 1:]])
        ]
        return (axes[0] @ axes[1],)


def test_planted_fault():
    check_reference_catches(OneAfterTheOther, liere, block=4)
