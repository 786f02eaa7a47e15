"""What varies: read from data, and from words of the command line."""

import pytest

from zoo import config
from zoo.cli.compare import parse_words
from zoo.comparison.grid import build_axes, list_combinations, name_folders, read_varied_keys
from zoo.config import Change
from zoo.errors import RecipeError
from zoo.options import Choice


def read_words(*words):
    given = parse_words(words)
    return read_varied_keys(given.get("encodings"), given["vary"], given["overrides"])


def read_message(*words):
    with pytest.raises(RecipeError) as error:
        read_words(*words)
    return str(error.value)


def test_encodings_are_names_lists_and_mappings():
    (one,) = read_words("encodings=[rope, alibi+dape, [learned, rope], {name: rope, base: 100}]")
    assert one.key == "model.encoding"
    assert one.values == {
        "rope": ["rope"],
        "alibi+dape": ["alibi", "dape"],
        "learned+rope": ["learned", "rope"],
        "rope(base=100)": [{"name": "rope", "base": 100}],
    }


def test_the_grid_is_the_product_of_all_that_varies():
    keys = read_words("encodings=[none,rope]", "vary.model.depth=[4,8]", "vary.optim.lr=[0.001]")
    axes = build_axes(keys)
    assert [axis.title for axis in axes] == ["encoding", "depth", "lr"]
    found = list(list_combinations(axes))
    assert [one.name for one in found] == [
        f"{name} depth={depth} lr=0.001" for name in ("none", "rope") for depth in (4, 8)
    ]
    assert found[-1].edits == (
        Change("model.encoding", ["rope"]),
        Change("model.depth", 8),
        Change("optim.lr", 0.001),
    )


def test_titles_that_are_equal_are_whole_keys():
    keys = read_varied_keys(None, {"model.dim": [1], "data.dim": (1,)})
    assert [axis.title for axis in build_axes(keys)] == ["model.dim", "data.dim"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model.dim=8"], 'nothing varies; write encodings=["rope", "alibi"]'),
        (["encodings=rope"], "encodings: expected a list of values; write encodings=["),
        (["vary.model.depth=4"], 'expected a list of values; write vary={"model.depth": [4, 8]}'),
        (["encodings=[]"], "encodings: expected a list"),
        (["encodings=[rope,rope]"], "the list names rope twice"),
        (["encodings=[rope]", "vary.model.encoding=[fox]"], "the key varies twice"),
        (["vary.model.dim=[8]", "vary.model.dim=[16]"], "the key is listed twice"),
        (["encodings=[rope]", "model.encoding=fox"], "set both by `vary` and by an override"),
        (["encodings=[rope]", "model.encoding.0.base=100"], "set both by `vary`"),
        (["encodings=[rope]", "~model.encoding.0.base"], "set both by `vary`"),
        (
            ["vary.model.encoding=[rope]", "vary.model=[{name: vit}]"],
            "and so does model.encoding, which overlaps it",
        ),
        (
            ["vary.model.encoding.0.base=[10,100]", "vary.model.encoding=[rope]"],
            "and so does model.encoding.0.base",
        ),
        (["vary.seed=[1,2]"], "write seeds=3"),
        (["encodings=[rope"], "bad YAML"),
    ],
)
def test_a_mistake_is_explained(words, expected):
    assert expected in read_message(*words)


def test_folders_have_names_of_their_own():
    names = ["rope(base=100)", "rope base 100", "a/../b", "alibi+dape", "...", "x" * 300]
    found = name_folders(names)
    assert found == ["rope-base=100", "rope-base-100", "a-..-b", "alibi+dape", "variant", "x" * 80]
    assert name_folders(["a b", "a/b", "a,b"]) == ["a-b", "a-b~2", "a-b~3"]


def test_conventions_are_axes_in_addition_to_encodings():
    words = ["vary.coordinates=[index,interpolated]", "encodings=[rope_axial,learned]"]
    found = [*list_combinations(build_axes(read_words(*words, "vary.encoding_lr=[1,10]")))]
    assert len(found) == 8
    assert found[3].name == "rope_axial coordinates=interpolated encoding_lr=10"
    recipe = config.load("vit_comrope", found[7].edits)
    (entry,) = recipe.model.options["encoding"]
    assert (entry.name, entry.options["coordinates"]) == ("learned", "interpolated")
    assert recipe.optim.options["encoding_lr"] == 10


def test_values_of_python_are_data_as_those_of_words():
    vary = {"model.depth": (4, 8), "data.path": ["a b", "c"]}
    words = ["encodings=[rope]", "vary.model.depth=[4,8]", "vary.data.path=['a b',c]"]
    assert read_varied_keys([Choice("rope", {})], vary)[1:] == read_words(*words)[1:]
