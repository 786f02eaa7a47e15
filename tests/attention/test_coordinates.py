"""Coordinates are indices under a convention; jitter moves an index within its patch."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.attention.coordinates import (
    CONVENTIONS,
    PositionAugmentation,
    apply_convention,
    get_known_range,
    grid,
    jitter,
    set_known_range,
    spacing,
)
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

LIKE = torch.zeros(0, dtype=torch.float64)
MANY = 40_000


def place(sizes, convention, length=None):
    index = grid(sizes, LIKE)
    tokens = Tokens.at(torch.zeros(1, len(index), 2).double(), index).replace(
        grid_size=torch.tensor([[sizes]]).double()
    )
    return apply_convention(tokens, convention, length).pos[0]


def test_grids_are_row_major_in_array_order():
    assert grid((2, 3), LIKE).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert grid((2, 1, 2), LIKE).tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
    assert grid((3,), LIKE).tolist() == [[0], [1], [2]]


def test_grids_have_at_least_single_precision():
    assert grid((2,), torch.zeros(0, dtype=torch.bfloat16)).dtype == torch.float32
    assert grid((2,), LIKE).dtype == torch.float64


@pytest.mark.parametrize(
    ("convention", "expected"),
    [
        ("index", [0, 1, 2, 3]),
        ("fraction", [1 / 8, 3 / 8, 5 / 8, 7 / 8]),
        ("symmetric", [-3 / 4, -1 / 4, 1 / 4, 3 / 4]),
        ("growing", [0, 2 / 3, 4 / 3, 2]),  # linspace(0, n / n0, n) with n0 = 2
        ("interpolated", [0, 1 / 2, 1, 3 / 2]),  # i n0 / n
        ("unit", [0, 1 / 3, 2 / 3, 1]),  # linspace(0, 1, n)
    ],
)
def test_conventions_are_exact(convention, expected):
    torch.testing.assert_close(place((4,), convention, (2,))[:, 0], torch.tensor(expected).double())


def test_growing_is_linspace_per_axis():
    pos = place((3, 5), "growing", (6, 5)).unflatten(0, (3, 5))
    torch.testing.assert_close(pos[:, 0, 0], torch.linspace(0, 0.5, 3).double())
    torch.testing.assert_close(pos[0, :, 1], torch.linspace(0, 1, 5).double())


def test_axes_are_divided_by_their_own_extent():
    pos = place((2, 5), "fraction")
    assert pos[:, 0].unique().tolist() == [0.25, 0.75]
    torch.testing.assert_close(pos[:5, 1], torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]).double())


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_one_token_has_a_finite_place(convention):
    pos = place((1,), convention, (1,))
    assert pos.tolist() == [[0.5 if convention == "fraction" else 0.0]]


def test_interpolation_leaves_axes_that_are_no_longer_than_in_training():
    pos = place((6, 3), "interpolated", (2, 4)).unflatten(0, (6, 3))
    torch.testing.assert_close(pos[:, 0, 0], torch.arange(6).double() / 3)
    assert pos[0, :, 1].tolist() == [0, 1, 2]


def test_growing_needs_the_size_of_training():
    with pytest.raises(OptionError, match="training size"):
        place((4,), "growing")


def test_samples_may_have_extents_of_their_own():
    index = torch.arange(2.0)[None, :, None]
    tokens = Tokens.at(torch.zeros(2, 2, 2), index.expand(2, -1, -1)).replace(
        grid_size=torch.tensor([[[2.0]], [[4.0]]])
    )
    assert apply_convention(tokens, "fraction", None).pos[..., 0].tolist() == [
        [0.25, 0.75],
        [0.125, 0.375],
    ]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_given_coordinates_are_left_alone(convention):
    tokens = Tokens.at(torch.zeros(1, 3, 2), torch.rand(3, 1))
    assert apply_convention(tokens, convention, None) is tokens


def test_conventions_do_not_pile_up():
    index = grid((4,), LIKE)
    tokens = Tokens.at(torch.zeros(1, 4, 2).double(), index).replace(
        grid_size=torch.tensor([[[4.0]]]).double()
    )
    again = apply_convention(apply_convention(tokens, "fraction", None), "fraction", None)
    torch.testing.assert_close(again.pos, apply_convention(tokens, "fraction", None).pos)
    assert torch.equal(apply_convention(again, "index", None).pos[0], index)


# jitter


def draw_jitter(*sigma):
    return jitter(torch.zeros(MANY, len(sigma), dtype=torch.float64), sigma)


@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0, 5.0])
def test_jitter_stays_within_its_patch(sigma):
    assert draw_jitter(sigma).abs().max() <= 0.5


@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0, 5.0])
def test_jitter_is_a_truncated_normal(sigma):
    draws = draw_jitter(sigma)[:, 0].sort().values
    reach = math.erf(0.5 / sigma / math.sqrt(2))
    expected = (torch.erf(draws / sigma / math.sqrt(2)) / reach + 1) / 2
    steps = torch.arange(1, MANY + 1) / MANY
    assert (steps - expected).abs().max() < 2.2 / math.sqrt(MANY)


def test_jitter_has_the_deviation_of_a_truncated_normal():
    assert draw_jitter(0.1).std() == pytest.approx(0.1, rel=0.02)  # hardly truncated
    assert draw_jitter(1.0).std() == pytest.approx(
        0.2841, rel=0.02
    )  # of N(0, 1) within half a patch
    assert draw_jitter(0.3).mean().abs() < 0.01


@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_no_mass_sits_on_the_edge(sigma):
    assert (draw_jitter(sigma).abs() > 0.4999).double().mean() < 1e-3


def test_an_axis_without_sigma_stays():
    draws = draw_jitter(0.0, 1.0, 0.5)
    assert (draws[:, 0] == 0).all()
    assert (draws[:, 1:] != 0).all()


def test_jitter_moves_indices_by_its_draw():
    torch.manual_seed(1)
    index = grid((3, 4), LIKE)
    assert torch.equal(jitter(index, (1.0, 1.0)).round(), index)


def test_a_perturbation_spares_frames():
    draws = PositionAugmentation(jitter=1.0)(torch.zeros(50, 3))
    assert (draws[:, 0] == 0).all()
    assert (draws[:, 1:] != 0).all()
    assert (PositionAugmentation(jitter=1.0)(torch.zeros(50, 2)) != 0).all()


def test_no_perturbation_returns_the_index_itself():
    index = torch.zeros(50, 2)
    assert PositionAugmentation()(index) is index


# shift and stretch


def places(count, **options):
    """Indices [count, 12, 2] of a grid of 3 x 4, each as one pass sees it."""
    perturbation, index = PositionAugmentation(**options), grid((3, 4), LIKE)
    return index, torch.stack([perturbation(index) for _ in range(count)])


def test_a_shift_moves_a_whole_grid_uniformly_along_each_axis():
    index, draw_jitter = places(2000, shift=1.5)
    moves = draw_jitter - index
    torch.testing.assert_close(moves, moves[:, :1].expand_as(moves))
    assert moves.abs().max() <= 1.5
    assert moves[:, 0].std(0).tolist() == pytest.approx([1.5 / 3**0.5] * 2, rel=0.05)
    assert (moves[:, 0, 0] != moves[:, 0, 1]).all()


def test_a_stretch_has_one_factor_about_the_centre():
    index, draw_jitter = places(2000, stretch=4.0)
    centre = torch.tensor([1.0, 1.5])
    factors = (draw_jitter - centre)[:, 0, 0] / (index - centre)[0, 0]
    torch.testing.assert_close(draw_jitter, centre + factors[:, None, None] * (index - centre))
    logs = factors.log() / math.log(4)
    assert logs.abs().max() <= 1
    assert logs.mean().abs() < 0.05
    assert logs.std() == pytest.approx(1 / 3**0.5, rel=0.05)


def test_an_aspect_has_a_factor_for_each_axis():
    index, draw_jitter = places(2000, aspect=4.0)
    centre = torch.tensor([1.0, 1.5])
    factors = (draw_jitter - centre)[:, 0] / (index - centre)[0]  # [2000, 2]
    torch.testing.assert_close(draw_jitter, centre + factors[:, None] * (index - centre))
    logs = factors.log() / math.log(4)
    assert logs.abs().max() <= 1
    assert logs.std(0).tolist() == pytest.approx([1 / 3**0.5] * 2, rel=0.05)
    assert abs(torch.corrcoef(logs.T)[0, 1]) < 0.1


def test_each_row_is_stretched_about_its_own_centre():
    index = torch.stack([torch.arange(4.0), torch.arange(4.0) + 10])[..., None]  # [B, N, 1]
    draw_jitter = PositionAugmentation(stretch=2.0)(index)
    assert draw_jitter.mean(1).flatten().tolist() == pytest.approx([1.5, 11.5])


def test_all_perturbations_spare_frames_and_keep_the_order_of_text():
    every = PositionAugmentation(jitter=0.2, stretch=2.0, aspect=1.5, shift=3.0)
    clip = grid((2, 3, 4), LIKE)
    assert torch.equal(every(clip)[:, 0], clip[:, 0])
    assert (every(clip)[:, 1:] != clip[:, 1:]).all()
    still = PositionAugmentation(stretch=2.0, aspect=1.5, shift=3.0)(torch.arange(20.0)[:, None])
    assert (still.diff(dim=0) > 0).all()


# each sample for itself


@pytest.mark.parametrize(
    "options",
    [{"jitter": 0.3}, {"stretch": 2.0}, {"aspect": 2.0}, {"shift": 1.0}],
    ids=lambda options: next(iter(options)),
)
def test_samples_draw_alike_unless_each_draws_for_itself(options):
    index = grid((3, 4), LIKE)
    assert PositionAugmentation(**options)(index, 4).shape == index.shape
    draw_jitter = PositionAugmentation(**options, per_sample=True)(index, 4)
    assert draw_jitter.shape == (4, *index.shape)
    for sample in range(1, 4):
        assert (draw_jitter[sample] != draw_jitter[0]).any()


def test_a_sample_is_still_moved_and_stretched_as_a_whole():
    index = grid((3, 4), LIKE)
    moves = PositionAugmentation(shift=1.0, per_sample=True)(index, 3) - index
    torch.testing.assert_close(moves, moves[:, :1].expand_as(moves))
    draw_jitter = PositionAugmentation(stretch=2.0, per_sample=True)(index, 3)
    torch.testing.assert_close(draw_jitter.mean(1), index.mean(0).expand(3, -1))


def test_samples_that_draw_nothing_are_refused():
    with pytest.raises(OptionError, match="set jitter, stretch, aspect or shift"):
        PositionAugmentation(per_sample=True)


@pytest.mark.parametrize("convention", ["index", "fraction", "growing", "symmetric"])
def test_neighbours_are_one_spacing_apart(convention):
    tokens = Tokens.at(torch.zeros(400, 12, 8).double(), grid((3, 4), LIKE))
    tokens = tokens.replace(grid_size=torch.tensor([[(3, 4)]]).double())
    pos = apply_convention(tokens, convention, (6, 6)).pos
    step = spacing(tokens, convention, (6, 6))
    torch.testing.assert_close(pos[:, 5] - pos[:, 0], step[:, 0])  # one row and one column on


# what is known without reading


def test_a_range_that_is_stated_answers_for_an_end_and_no_operation_keeps_it():
    pos = torch.arange(4.0)[:, None]
    set_known_range(pos, 0, 3)
    assert get_known_range(pos) == (0, 3)
    assert get_known_range(pos + 1) is None
    assert get_known_range(pos[None]) is None


@pytest.mark.parametrize(
    "changes",
    [{"jitter": 1.0}, {"stretch": 2.0, "shift": 1.0}, {"jitter": 0.5, "stretch": 1.5, "aspect": 2}],
)
def test_no_draw_leaves_the_widened_range(changes):
    augmentation = PositionAugmentation(**changes)
    index = torch.arange(3.0, 9.0)[:, None]
    low, high = augmentation.widen_range(3, 8)
    down, up = augmentation.find_extremes(index)
    assert (low, high) == (pytest.approx(float(down.min())), pytest.approx(float(up.max())))
    for _ in range(50):
        drawn = augmentation(index)
        assert low - 1e-4 <= drawn.min()
        assert drawn.max() <= high + 1e-4


@pytest.mark.parametrize("name", ["learned", "tupe", "xpos"])
def test_positions_past_the_end_are_refused_also_where_the_range_is_known(name):
    layer = zoo.Attention(zoo.Dims(32, 2, length=4), name, causal=name != "tupe")
    length = 40_000 if name == "xpos" else 5
    with pytest.raises(zoo.OptionError, match="span" if name == "xpos" else "past the table of 4"):
        layer.encoding.embed(layer._make_tokens(torch.zeros(1, length, 32), None, None, 0))
