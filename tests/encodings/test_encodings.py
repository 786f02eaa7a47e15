"""What holds for all encodings: each has a file of tests, and its options and parameters fit together."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from calls import assert_close, move_parameters
from extrapolate import make_extended
from grids import compute_biases, evaluate_distances
from literal.alibi import alibi_on_grid
from literal.comrope_ap import comrope_ap
from literal.comrope_ld import comrope_ld
from literal.fire import fire_on_grid
from literal.kerple import kerple_log
from literal.liere import liere
from literal.none import none
from literal.pape import tabulate
from literal.rope import rope
from literal.rope_axial import rope_axial
from literal.rope_mixed import rope_mixed
from literal.sinusoidal import sinusoidal
from literal.string import cayley
from parameters import compute_limit, make_normal, measure_distance
from rotations import check_rotation

import zoo
from zoo.attention.coordinates import apply_convention, grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

FOLDER = Path(__file__).parent
BLOCKS = {"comrope_ap": 2, "comrope_ld": 4, "liere": 4}  # that divide a head of 12 channels


def make_small(name, dims):
    return zoo.encoding(name, dims, **({"block": BLOCKS[name]} if name in BLOCKS else {}))


# tests of each encoding


def list_tests(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_each_encoding_has_a_reference_and_a_file_of_tests(name):
    path = FOLDER / f"test_{name}.py"
    assert (FOLDER / "literal" / f"{name}.py").exists()
    assert f"from literal.{name} import" in path.read_text(encoding="utf-8")

    tests, cls = list_tests(path), zoo.encoding_class(name)
    dims = Dims(192, 4, cls.axes[0], (4,) * cls.axes[0], depth=2)
    state = zoo.encoding(["alibi", name] if cls.consumes_biases else name, dims).state_dict()
    kinds = ["formula", "facts", "parameters", "planted_fault", *(["initial"] if state else [])]
    assert [kind for kind in kinds if not any(t.startswith(f"test_{kind}") for t in tests)] == []


def test_no_file_of_tests_is_of_an_encoding_that_is_gone():
    named = {path.stem.removeprefix("test_") for path in FOLDER.glob("test_*.py")}
    assert named == {*zoo.encoding_names(), "encodings"}


# facts

PLACES = {1: [0, 1, 3], 2: [[0, 0], [0, 1], [2, 1]], 3: [[0, 0, 0], [0, 1, 1], [1, 2, 1]]}
# dape has no effect without the biases of another encoding, which may read coordinates
ALONE = [
    (name, axes)
    for name in zoo.encoding_names()
    for axes in zoo.encoding_class(name).axes
    if not zoo.encoding_class(name).consumes_biases and axes in PLACES
]


@pytest.mark.parametrize(("name", "axes"), ALONE)
def test_coordinates_change_something_where_an_encoding_declares_it(name, axes):
    cls = zoo.encoding_class(name)
    encoding = make_small(name, Dims(48, 4, axes, (4,) * axes))
    move_parameters(encoding)
    heads, x = torch.randn(3, 1, 4, 3, 12).double(), torch.randn(1, 3, 48).double()
    found = []
    for factor in (1, 0.5):
        pos = factor * torch.tensor(PLACES[axes]).double().reshape(3, axes)
        states = encoding.embed(Tokens.at(x, pos)).x
        out = zoo.functional.attend(encoding, *heads, pos, x=x, causal=cls.causal_only)
        found.append(torch.cat([states.flatten(), out.flatten()]))
    assert ((found[0] - found[1]).abs().max() > 1e-4) == cls.reads_positions


# parameters for other sizes


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_parameters_of_the_same_sizes_are_taken_unchanged(name):
    for dims in (
        Dims(48, 4, length=6, depth=2),
        Dims(48, 4, 2, (3, 4), depth=2),
        Dims(48, 4, 3, (2, 3, 4), depth=2),
    ):
        if dims.axes in zoo.encoding_class(name).axes:
            there, here = make_small(name, dims), make_small(name, dims)
            for key, value in there.named_parameters():
                assert here.adapt_parameter(key, value, there) is value


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_no_extrapolation_changes_the_shape_of_a_parameter(name):
    cls = zoo.encoding_class(name)
    for axes in cls.axes:
        dims = Dims(192, 4, axes, (4,) * axes, depth=2)
        encoding = zoo.encoding(name, dims)
        own = {key: value.shape for key, value in encoding.state_dict().items()}
        for options in encoding.extrapolations((2.0,) * axes).values():
            other = zoo.encoding({"name": name, **options}, dims)
            assert {key: value.shape for key, value in other.state_dict().items()} == own


LINEAR = ["rope_axial", "rope_mixed", "string", "sinusoidal", "liere", "comrope_ap", "comrope_ld"]


@pytest.mark.parametrize("name", [*LINEAR, "learned", "none"])
def test_linear_keeps_coordinates_of_images_in_the_range_of_training(name):
    dims = Dims(32, 2, 2, (4, 4))
    plain, there = zoo.encoding(name, dims), make_extended(name, dims, "linear", (2.0, 2.0))

    def compute_coordinates(encoding, side):
        index = grid((side, side), torch.zeros(0))
        tokens = Tokens.at(torch.zeros(1, side * side, 32), index)
        sized = tokens.replace(grid_size=torch.tensor([[[side, side]]]))
        return apply_convention(sized, encoding.coordinates, dims.sizes).pos

    pos = compute_coordinates(plain, 4)
    assert torch.equal(compute_coordinates(there, 4), pos)
    end = pos.amax() + (pos[0, 1, 1] - pos[0, 0, 1])
    assert compute_coordinates(there, 8).amax() < end or name in ("learned", "none")
    if name != "rope_axial":  # a text has no such range: its length is not known
        text = zoo.encoding(name, Dims(32, 2, length=8))
        assert text.extrapolations((2.0,)).keys() <= {"resample"}


# refused axes


def read_refusal(name, axes):
    with pytest.raises(OptionError) as refusal:
        zoo.encoding_class(name)(Dims(48, 2, axes, 4))
    return str(refusal.value)


@pytest.mark.parametrize(
    "name", [n for n in zoo.encoding_names() if zoo.encoding_class(n).axes == (1,)]
)
def test_an_encoding_that_refuses_grids_says_why(name):
    beginning, _, reason = read_refusal(name, 2).partition(": ")
    assert beginning == f"{name} takes 1 axis, not 2"
    assert len(reason.split()) > 4


def test_a_refusal_names_what_takes_the_place():
    refusal = "rope takes 1 axis, not 3: rope_axial and rope_mixed are its forms for grids"
    assert read_refusal("rope", 3) == refusal
    assert read_refusal("sandwich", 2).endswith("distances in sequences; alibi and t5 accept grids")
    assert read_refusal("fox", 2).endswith("it depends on the order of tokens, and a grid has none")
    assert read_refusal("rope_axial", 1).endswith("rope is its form for text")
    assert read_refusal("alibi", 4) == "alibi takes 1, 2 or 3 axes, not 4"


# points at real coordinates


ROTATIONS = {
    "none": none,
    "rope": rope,
    "rope_axial": rope_axial,
    "rope_mixed": rope_mixed,
    "string": cayley,
    "comrope_ap": comrope_ap,
    "comrope_ld": comrope_ld,
    "liere": liere,
}
POINT_CASES = [
    (name, axes)
    for name in zoo.encoding_names()
    for axes in zoo.encoding_class(name).point_axes
    if axes in (1, 2, 3, 6)
]


def make_for_points(name, axes):
    options = {"block": 2} if name in BLOCKS else {}
    dims = Dims(24, 2, axes, depth=1, points=True)
    return move_parameters(zoo.encoding(name, dims, **options), 0.1)


@pytest.mark.parametrize(("name", "axes"), POINT_CASES)
def test_points_have_the_scores_of_the_formula_on_any_number_of_axes(name, axes):
    encoding = make_for_points(name, axes)
    pos = 2 * torch.randn(4, axes, dtype=torch.float64)
    if name in ROTATIONS:
        check_rotation(encoding, ROTATIONS[name], pos=pos)
    elif name == "sinusoidal":
        x = torch.zeros(1, 4, 24, dtype=torch.float64)
        assert_close(encoding.embed(Tokens.at(x, pos)).x[0], sinusoidal(pos, 24))
    elif name == "fire":
        seen = torch.ones(4, 4, dtype=torch.bool)
        assert_close(compute_biases(encoding, pos), fire_on_grid(encoding, pos, seen, 1.0))
    elif name == "kerple":
        expected = evaluate_distances(kerple_log(encoding), 2, pos)
        assert_close(compute_biases(encoding, pos), expected)
    elif name == "pape":
        x = torch.randn(4, 24, dtype=torch.float64)
        assert_close(compute_biases(encoding, pos, x=x[None]), tabulate(encoding, x, pos))
    else:
        assert name == "alibi"
        assert_close(compute_biases(encoding, pos), alibi_on_grid(2, pos))


def test_what_reads_points_is_declared():
    known = {"rope_axial", "rope_mixed", "comrope_ap", "comrope_ld", "liere", "alibi", "kerple"}
    assert known | {"rope", "fire", "none", "pape", "string", "sinusoidal"} == {
        name for name, _ in POINT_CASES
    }


def test_an_encoding_that_counts_tokens_refuses_points_and_names_those_that_read_them():
    for name, axes in (("learned", 1), ("rope_axial", 1), ("rope", 2), ("t5", 3)):
        noun = "axis" if axes == 1 else "axes"
        with pytest.raises(
            OptionError, match=f"{name} does not read points on {axes} {noun}"
        ) as it:
            zoo.encoding(name, Dims(24, 2, axes, points=True))
        assert "these do: alibi, comrope_ap, comrope_ld, fire" in str(it.value)
    with pytest.raises(OptionError, match="which have 1 to 6"):
        zoo.encoding("none", Dims(24, 2, 7, points=True))
    with pytest.raises(OptionError, match="no convention applies"):
        zoo.encoding("rope", Dims(24, 2, points=True), coordinates="fraction")


@pytest.mark.parametrize("name", ["rope", "rope_axial", "rope_mixed"])
def test_points_have_no_size_from_which_frequencies_are_scaled(name):
    axes = 1 if name == "rope" else 2
    with pytest.raises(OptionError, match="points do not count"):
        zoo.encoding(
            name, Dims(24, 2, axes, points=True), scaling={"rule": "linear", "factor": 2.0}
        )


# the helper by which initial values are tested


def test_distance_tells_distributions_apart():
    uniform, wide = torch.rand(4000), torch.randn(4000) * 1.2
    assert measure_distance(uniform, make_normal(1)) > compute_limit(uniform)
    assert measure_distance(wide, make_normal(1)) > compute_limit(wide)
