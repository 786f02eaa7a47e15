"""Pictures of encodings: what is measured is what the formula says, and a file comes of it."""

import math

import pytest
import torch
from PIL import Image

from zoo import encoding_class, encoding_names
from zoo.attention import Dims
from zoo.diagnostics.portrait.portrait import collect_panels, draw_portrait, probe_encodings
from zoo.diagnostics.portrait.probe import (
    is_commuting,
    measure_rotations,
    rotation_angles,
    wave_vectors,
)
from zoo.options import Choice

TEXT, IMAGE = Dims(32, 2, length=12, depth=2), Dims(32, 2, axes=2, length=(5, 5), depth=2)


def draw(name, dims=TEXT, **options):
    """{title: panel} of one encoding."""
    with torch.no_grad():
        return {
            panel.title: panel
            for panel in collect_panels(probe_encodings([Choice(name, options)], dims))
        }


@pytest.mark.parametrize("name", encoding_names())
@pytest.mark.parametrize(
    "dim",
    [pytest.param(128, marks=pytest.mark.nightly), pytest.param(32, marks=pytest.mark.nightly), 12],
)
def test_heads_of_any_width_are_pictured(name, dim):
    """All heads together may be wider or narrower than the states, and one head alone too."""
    cls = encoding_class(name)
    axes = next(axes for axes in (1, 2, 3) if axes in cls.axes)
    sizes = {1: 6, 2: (3, 3), 3: (2, 3, 3)}[axes]
    chain = [Choice(other, {}) for other in (["alibi"] if cls.consumes_biases else [])]
    chain.append(Choice(name, {"coordinates": "index"} if axes == 1 else {}))
    dims = Dims(dim, 4, axes, length=sizes, depth=2, head_dim=16)
    with torch.no_grad():
        panels = [*collect_panels(probe_encodings(chain, dims))]
    assert panels or name == "none"


@pytest.mark.parametrize("name", ["rope", "alibi", "kerple", "rope_mixed"])
def test_the_width_of_the_states_changes_no_picture(name):
    """Of encodings that do not read them."""
    axes = encoding_class(name).axes[-1]
    drawn = []
    for dim in (32, 64, 16):
        dims = Dims(dim, 2, axes, length=4, depth=2, head_dim=16)
        torch.manual_seed(0)
        drawn.append(draw(name, dims))
    for other in drawn[1:]:
        assert other.keys() == drawn[0].keys()
        for title, panel in other.items():
            assert repr(panel) == repr(drawn[0][title]), title


def test_a_bias_is_shown_as_its_slope_per_head():
    lines = draw("alibi")["Bias on scores"].lines
    distance = torch.arange(-11, 12).abs().double()
    torch.testing.assert_close(lines["head 1"], -distance / 16)
    torch.testing.assert_close(lines["head 2"], -distance / 256)


def test_rotations_show_their_frequencies():
    (points,) = draw("rope", base=100.0)["Rotation of each pair of channels"].groups.values()
    torch.testing.assert_close(points[1], 100.0 ** (-torch.arange(8.0, dtype=torch.float64) / 8))


def test_channels_that_do_not_turn_are_counted():
    panel = draw("rope", rotary_fraction=0.5)["Rotation of each pair of channels"]
    assert panel.note == "4 of 8 pairs stay"
    assert panel.groups["all heads"][1].isnan().sum() == 4


def test_equal_tokens_lose_score_by_the_mean_of_cosines():
    (line,) = draw("rope")["Scores of equal tokens"].lines.values()
    assert line[11] == 0
    assert (line[:11] < 0).all()


def test_waves_of_an_image_lie_on_its_axes_or_off_them():
    (both,) = draw("rope_axial", IMAGE)["Wave vectors of the rotations"].groups.values()
    torch.testing.assert_close(both[0] * both[1], torch.zeros_like(both[0]), atol=1e-9, rtol=0)
    mixed = draw("rope_mixed", IMAGE)["Wave vectors of the rotations"].groups["head 1"]
    assert (mixed[0] * mixed[1]).abs().min() > 1e-9


def test_angles_and_waves_of_known_turns():
    def turn(*found):
        blocks = [
            torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]).double()
            for a in found
        ]
        return torch.block_diag(*blocks)

    torch.testing.assert_close(
        rotation_angles(turn(0.1, 0.7)), torch.tensor([0.7, 0.1], dtype=torch.float64)
    )
    rows, columns = wave_vectors(turn(0.1, 0.7), turn(0.2, 0.3))
    pairs = {
        (round(abs(float(a)), 6), round(abs(float(b)), 6))
        for a, b in zip(rows, columns, strict=True)
    }
    assert pairs == {(0.1, 0.2), (0.7, 0.3)}
    assert is_commuting(turn(0.1, 0.7), turn(0.2, 0.3))


def test_turns_that_do_not_commute_are_told():
    assert "Angles of rotations that do not commute" in draw("liere", IMAGE)


def test_nothing_turns_where_nothing_is_turned():
    with torch.no_grad():
        assert measure_rotations(probe_encodings([Choice("alibi")], TEXT), 1) is None


def test_what_is_added_to_the_input_is_shown_as_it_is():
    values = draw("sinusoidal")["Added to the input"].values
    torch.testing.assert_close(values[0], torch.arange(12.0, dtype=torch.float64).sin())


def test_gates_are_shown_for_random_tokens():
    titles = draw("fox")
    assert "The same of random tokens, head 2" in titles
    assert "Bias of random tokens, head 2" in titles


def test_what_starts_as_nothing_is_moved_and_said_to_be():
    assert probe_encodings([Choice("cope")], TEXT).moved
    assert not probe_encodings([Choice("fox")], TEXT).moved
    assert not probe_encodings([Choice("none")], TEXT).moved


def test_places_of_an_image_that_are_not_relative_are_shown_twice():
    assert "Scores of a patch off the centre" in draw("sinusoidal", IMAGE)
    assert "Scores of a patch off the centre" not in draw("rope_axial", IMAGE)


def test_patches_that_some_heads_hide_are_means_of_those_that_see_them():
    """Heads of lookhere look up, down, left and right; the first slope halves distances."""
    panels = draw("lookhere", Dims(32, 4, axes=2, length=(5, 5), depth=2))
    heads = panels["Scores of the centre, by head"].values
    assert heads.isnan().sum(dim=(1, 2)).tolist() == [10] * 4
    offsets = torch.cartesian_prod(*[torch.arange(-2.0, 3.0)] * 2).double()
    expected = -1.5 / 2 * offsets.norm(dim=1).view(5, 5)
    torch.testing.assert_close(panels["Scores of the centre with all"].values, expected)


def test_a_clip_is_shown_by_one_frame():
    clip = draw("rope_axial", Dims(32, 2, axes=3, length=(2, 5, 5)))
    assert clip["Scores of the centre with all"].values.shape == (5, 5)


@pytest.mark.parametrize("names", [["alibi", "dape"], ["rope_axial"]], ids="+".join)
def test_a_picture_is_a_small_file_of_few_colours(names, tmp_path):
    draw_portrait([Choice(name) for name in names], tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.mode == "P"
        assert 800 < picture.width < 1300
        assert len(picture.getcolors()) > 20
    assert (tmp_path / "picture.png").stat().st_size < 60_000


def test_a_picture_is_the_same_each_time_and_leaves_the_random_numbers_alone(tmp_path):
    before = torch.get_rng_state()
    for name in "ab":
        draw_portrait([Choice("kerple")], tmp_path / f"{name}.png", TEXT)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert torch.equal(torch.get_rng_state(), before)
