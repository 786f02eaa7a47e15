"""What varies, as it is written on the command line."""

import pytest

from zoo import config
from zoo.comparison.grid import (
    build_axes,
    list_combinations,
    name_folders,
    parse_varied_keys,
    split_grid_words,
)
from zoo.config.command_line import parse_overrides
from zoo.errors import RecipeError


def message(*words):
    with pytest.raises(RecipeError) as error:
        parse_varied_keys(*split_grid_words(words))
    return str(error.value)


def test_encodings_are_names_lists_and_mappings():
    (one,) = parse_varied_keys(
        ["encodings=[rope, alibi+dape, [learned, rope], {name: rope, base: 100}]"], []
    )
    assert one.key == "model.encoding"
    assert one.values == {
        "rope": '["rope"]',
        "alibi+dape": '["alibi", "dape"]',
        "learned+rope": '["learned", "rope"]',
        "rope(base=100)": '[{"name": "rope", "base": 100}]',
    }


def test_the_grid_is_the_product_of_all_that_varies():
    keys = parse_varied_keys(
        ["encodings=[none,rope]", "vary.model.depth=[4,8]", "vary.optim.lr=[0.001]"], []
    )
    assert [axis.title for axis in build_axes(keys)] == ["encoding", "depth", "lr"]
    found = list(list_combinations(keys))
    assert [one.name for one in found] == [
        f"{name} depth={depth} lr=0.001" for name in ("none", "rope") for depth in (4, 8)
    ]
    assert found[-1].overrides == ('model.encoding=["rope"]', "model.depth=8", "optim.lr=0.001")


def test_titles_that_are_alike_are_whole_keys():
    keys = parse_varied_keys(["vary.model.dim=[1]", "vary.data.dim=[1]"], [])
    assert [axis.title for axis in build_axes(keys)] == ["model.dim", "data.dim"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model.dim=8"], "nothing varies; write encodings="),
        (["encodings=rope"], "encodings: expected a list of values; write encodings=[rope,alibi]"),
        (["encodings=[]"], "encodings: expected a list"),
        (["encodings=[rope,rope]"], "the list names rope twice"),
        (["encodings=[rope]", "vary.model.encoding=[fox]"], "the key varies twice"),
        (["encodings=[rope]", "model.encoding=fox"], "the key varies and is overridden too"),
        (["encodings=[rope]", "model.encoding.0.base=100"], "the key varies and is overridden too"),
        (["encodings=[rope]", "~model.encoding.0.base"], "the key varies and is overridden too"),
        (
            ["vary.model.encoding=[rope]", "vary.model=[{name: vit}]"],
            "and so does model.encoding, which overlaps it",
        ),
        (
            ["vary.model.encoding.0.base=[10,100]", "encodings=[rope]"],
            "and so does model.encoding.0.base",
        ),
        (["vary.seed=[1,2]"], "write seeds=3"),
        (["encodings=[rope"], "bad YAML"),
    ],
)
def test_a_mistake_is_told(words, expected):
    assert expected in message(*words)


def test_folders_have_names_of_their_own():
    names = ["rope(base=100)", "rope base 100", "a/../b", "alibi+dape", "...", "x" * 300]
    found = name_folders(names)
    assert found == ["rope-base=100", "rope-base-100", "a-..-b", "alibi+dape", "variant", "x" * 80]
    assert name_folders(["a b", "a/b", "a,b"]) == ["a-b", "a-b~2", "a-b~3"]


def test_conventions_are_axes_beside_encodings():
    words = ["encodings=[rope_axial,learned]", "vary.coordinates=[index,interpolated]"]
    found = [*list_combinations(parse_varied_keys([*words, "vary.encoding_lr=[1,10]"], []))]
    assert len(found) == 8
    assert found[3].name == "rope_axial coordinates=interpolated encoding_lr=10"
    recipe = config.load("vit_comrope", parse_overrides(found[7].overrides))
    (entry,) = recipe.model.options["encoding"]
    assert (entry.name, entry.options["coordinates"]) == ("learned", "interpolated")
    assert recipe.optim.options["encoding_lr"] == 10
    with pytest.raises(RecipeError, match=r"write encodings=\[...\] first"):
        parse_varied_keys(words[::-1], [])
