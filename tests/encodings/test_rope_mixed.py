"""RoPE-Mixed: pairs (2i, 2i+1) of q and k of head h rotate by sum_a p_a frequencies[a, h, i]."""

from __future__ import annotations

import math

import pytest
import torch
from calls import assert_close
from extrapolate import check_interpolated_axis
from literal.rope import rope
from literal.rope_mixed import rope_mixed
from literal.rotation import score_rotations
from panels import list_panels
from parameters import (
    HEAD,
    HEADS,
    WIDTH,
    adapt_parameters,
    compute_limit,
    list_facts,
    list_shapes,
    make_initial,
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
from zoo.encodings.rope_mixed import RoPEMixed


@CASES
@AXES
def test_formula(axes, case):
    check_rotation(make_rotary("rope_mixed", axes), rope_mixed, case)


def test_facts():
    assert list_facts("rope_mixed") == {
        "shared": False,
        "shift_invariant": True,
        "axes": (1, 2, 3),
        "identity_at_zero": True,
    }


@AXES
def test_parameters(axes):
    shapes = list_shapes(make_initial("rope_mixed", axes))
    assert shapes == {"frequencies": (axes, HEADS, HEAD // 2)}
    assert list_shapes(make_rotary("rope_mixed", axes)) == {"frequencies": (axes, 2, 12)}


# initial values


@pytest.mark.parametrize("options", [{}, {"base": 100.0}], ids=str)
def test_initial_values_are_an_axial_frame_turned_at_random(options):
    dims = Dims(12 * 800, 800, 2, (3, 4))
    waves = zoo.encoding("rope_mixed", dims, **options).frequencies.double()  # [2, H, 6]
    phi = torch.atan2(waves[1, :, 0], waves[0, :, 0])[:, None]
    magnitudes = options.get("base", 10.0) ** (-4 * torch.arange(3).double() / 12)
    first = torch.stack([magnitudes * phi.cos(), magnitudes * phi.sin()])
    second = torch.stack([-magnitudes * phi.sin(), magnitudes * phi.cos()])
    assert_close(waves[:, :, :3], first, 1e-6)
    assert_close(waves[:, :, 3:], second, 1e-6)
    share = phi.remainder(2 * math.pi) / (2 * math.pi)
    assert measure_distance(share, lambda x: x) < compute_limit(share)


def test_initial_values_on_three_axes_are_rotations():
    dims = Dims(12 * 800, 800, 3, (2, 3, 2))
    waves = zoo.encoding("rope_mixed", dims).frequencies.double()  # [3, H, 6]
    magnitudes = 10 ** (-6 * torch.arange(2).double() / 12)
    groups = waves.unflatten(-1, (3, 2)) / magnitudes  # [3, H, group, 2]
    frames = groups.permute(3, 1, 0, 2)  # columns are groups
    assert_close(frames.mT @ frames, torch.eye(3).double().expand(2, 800, 3, 3), 1e-5)
    assert_close(torch.linalg.det(frames), torch.ones(2, 800).double(), 1e-5)
    for entry in frames[0].flatten(1).T:  # uniform on a sphere: each coordinate is uniform
        assert measure_distance(entry, lambda x: (x + 1) / 2) < compute_limit(entry)


def test_initial_values_of_each_head_are_a_frame_of_its_own():
    first, second = (
        zoo.encoding("rope_mixed", Dims(48, 2, 2, (3, 4))).frequencies for _ in range(2)
    )
    assert not torch.allclose(first[:, 0], first[:, 1])
    assert not torch.allclose(first, second)


def test_initial_values_on_a_text_are_those_of_rope():
    encoding = zoo.encoding("rope_mixed", Dims(16, 2, length=9)).double()
    q, k = torch.randn(2, 2, 2, 5, 8, dtype=torch.float64).unbind()
    pos = 200 * torch.randn(5, 1, dtype=torch.float64)
    expected = score_rotations(rope, encoding, q, k, pos)
    # parameters start in float32
    assert_close(zoo.functional.scores(encoding, q, k, pos), expected, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("base", "axes"), [(10000.0, 1), (10.0, 2), (10.0, 3)])
def test_initial_base_is_that_of_rope_on_texts_and_a_given_base_wins(base, axes):
    dims = Dims(WIDTH, HEADS, axes=axes, length=(4,) * axes)
    last = (HEAD // 2 + axes - 1) // axes - 1  # of the first group of pairs
    for given, chosen in ((None, base), (50.0, 50.0)):
        waves = zoo.encoding("rope_mixed", dims, base=given).frequencies.norm(dim=0)  # [G, K/2]
        expected = chosen ** (-2 * axes * last / HEAD)
        assert math.isclose(waves[0, last].item(), expected, rel_tol=1e-4)


# other sizes


@pytest.mark.parametrize(
    ("there", "here"), [(IMAGE, CLIP), (CLIP, IMAGE)], ids=["to clips", "to images"]
)
def test_rows_and_columns_keep_their_waves(there, here):
    trained, other = zoo.encoding("rope_mixed", there), zoo.encoding("rope_mixed", here)
    assert adapt_parameters(trained, other) == []
    check_grids_agree(trained, other)


def test_a_text_has_nothing_for_a_grid():
    text = zoo.encoding("rope_mixed", Dims(24, 2, length=6, depth=2))
    assert adapt_parameters(text, zoo.encoding("rope_mixed", IMAGE))


def test_a_larger_image_is_interpolated_along_the_axis_that_grew():
    check_interpolated_axis("rope_mixed")


def test_panel_shows_the_direction_in_which_a_pair_rotates():
    def set_one_wave(encoding):
        encoding.frequencies.zero_()[0, 1, 3] = 2.0  # the row, of the second head

    dims = Dims(32, 2, axes=2, length=(2, 3))
    waves = list_panels("rope_mixed", dims, False, change=set_one_wave)["Wave vectors"]
    columns, rows = waves.groups["head 2"]
    assert (rows[3], columns.abs().max(), rows.sum()) == (2, 0, 2)
    assert waves.groups["head 1"][1].abs().max() == 0


# rules that scale wave vectors


RULES = pytest.mark.parametrize("rule", ["linear", "ntk", "yarn"])


@torch.no_grad()
@RULES
@pytest.mark.parametrize("axes", [2, 3])
def test_formula_with_a_rule_is_that_of_rope_axial_where_waves_are_axial(axes, rule):
    scaling = {"rule": rule, "factor": 3.0, "original": [64, 16, 64][:axes]}
    axial = make_rotary("rope_axial", axes, scaling=scaling)
    mixed = make_rotary("rope_mixed", axes, scaling=scaling, base=100.0)
    plain = make_rotary("rope_axial", axes).wave_vectors(torch.zeros((), dtype=torch.float64))
    mixed.frequencies.copy_(plain.expand(-1, 2, -1))
    q, k = draw_heads(mixed)
    pos = 20 * torch.rand(5, axes, dtype=torch.float64)
    found, right = (zoo.functional.scores(one, q, k, pos) for one in (mixed, axial))
    assert_close(found, right, 1e-8)


@RULES
def test_a_rule_divides_each_component_by_at_most_the_factor_of_its_axis(rule):
    factors = torch.tensor([4.0, 2.0]).double()
    scaling = {"rule": rule, "factor": factors.tolist(), "original": 16}
    encoding = make_rotary("rope_mixed", 2, scaling=scaling)
    waves = encoding.frequencies
    ratios = waves / encoding.wave_vectors(waves)  # [2, H, K/2]
    slow = waves.abs().flatten(1).argmin(1)
    found = ratios.flatten(1)[torch.arange(2), slow]
    # ntk scales a component that is slower than all pairs as one pair further
    further = factors ** (1 + 2 / (12 - 2)) if rule == "ntk" else factors
    assert (found <= further + 1e-9).all()
    assert (found >= factors**0.8).all()
    assert ratios.min() >= (factors.min() if rule == "linear" else 0.7)


def test_a_rule_keeps_a_component_of_zero_and_its_gradient():
    encoding = make_rotary("rope_mixed", 2, scaling={"rule": "yarn", "factor": 2.0})
    with torch.no_grad():
        encoding.frequencies[0, 0, 0] = 0
    encoding.wave_vectors(encoding.frequencies).sum().backward()
    assert encoding.wave_vectors(encoding.frequencies)[0, 0, 0] == 0
    assert encoding.frequencies.grad[0, 0, 0] == 0.5


def test_the_axis_that_grew_most_sharpens_scores():
    scaling = {"rule": "yarn", "factor": [4.0, 1.0], "original": 16}
    encoding = make_rotary("rope_mixed", 2, scaling=scaling)
    q, k = draw_heads(encoding, tokens=1)
    pos = torch.zeros(1, 2).double()
    factor = (0.1 * math.log(4) + 1) ** 2
    plain = zoo.functional.scores(make_rotary("rope_mixed", 2), q, k, pos)
    assert_close(zoo.functional.scores(encoding, q, k, pos), factor * plain)


class OneHead(RoPEMixed):
    """All heads rotate as the first."""

    def wave_vectors(self, like):
        return super().wave_vectors(like)[:, :1]


def test_planted_fault():
    check_reference_catches(OneHead, rope_mixed)
