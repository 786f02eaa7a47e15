"""`zoo diff`: what differs between two recipes once they are resolved."""

import json
import re

import pytest
from tiny import TINY
from training import fit

from zoo.config.recipe import Side, format_sides


def test_a_name_that_differs_is_told_with_its_options_and_places(zoo):
    code, out, _ = zoo("diff", "lm_rope", "lm_alibi")
    assert code == 0
    first = next(line for line in out.splitlines() if line.startswith("model.encoding.0.name:"))
    assert "rope -> alibi" in first
    assert re.search(r"lm_rope\.yaml:\d+ -> ", first)
    assert re.search(r"lm_alibi\.yaml:\d+\)", first)
    assert "model.encoding.0, options of rope only: base 10000.0, rotary_fraction 1.0" in out
    assert "model.encoding.0, options of alibi only: " in out


def test_a_component_that_one_side_lacks_has_a_line_of_its_name_and_one_of_its_options(zoo):
    _, out, _ = zoo("diff", "lm_hybrid", "lm_rope")
    assert re.search(r"layer_types\.linear\.mixer\.name: +gated_delta -> nothing", out)
    assert "model.layer_types.linear.mixer, options of gated_delta only: heads null" in out


def test_equal_recipes_are_told_equal(zoo, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "extends: lm_rope\nmodel: {dim: 128}\n"
    )  # what it has already
    code, out, _ = zoo("diff", "lm_rope", "mine.yaml")
    assert (code, out) == (0, "lm_rope and mine.yaml are equal once resolved\n")


def test_what_differs_late_is_told_in_whole():
    one, other = Side([1] * 20 + [2], ""), Side([1] * 20 + [3], "")
    assert format_sides(one, other) == [str([1] * 20 + [2]), str([1] * 20 + [3])]
    assert format_sides(Side([1] * 20, ""), Side(2, ""))[0].endswith("...]")


def test_overrides_change_both(zoo):
    _, out, _ = zoo("diff", "vit_comrope", "vit_liere", "model.encoding=rope_axial", "--json")
    found = json.loads(out)
    assert found["equal"]
    assert found["parameters"][0] == found["parameters"][1]
    _, out, _ = zoo("diff", "vit_none", "vit_learned", "data.size=32", "--json")
    found = json.loads(out)
    assert not found["equal"]
    assert (
        found["parameters"][1] - found["parameters"][0] == 8 * 8 * 96
    )  # a row for each patch of 4
    assert found["tokens"][0] == found["tokens"][1]


def test_the_key_of_a_fragment_is_placed_in_it(zoo):
    _, out, _ = zoo("diff", "lm_rope", "flipflop_rope", "--json")
    sides = {one["key"]: one for one in json.loads(out)["differences"]}
    assert sides["data.length"]["values"] == [128, 64]
    assert "configs/data/python_docs.yaml:" in sides["data.length"]["locations"][0]
    assert sides["generate.prompt"]["locations"][1] == "by default"
    assert [word is None for word in sides["data.ignore"]["locations"]] == [True, False]


def test_a_run_and_its_checkpoint_are_recipes_too(zoo, tmp_path):
    fit("vit_none", TINY, tmp_path / "run", "never")
    _, out, _ = zoo("diff", "run", "run/checkpoints/last.ckpt", "--json")
    assert json.loads(out)["equal"]
    _, out, _ = zoo("diff", "vit_none", "run/best", "--json")
    sides = {one["key"]: one for one in json.loads(out)["differences"]}
    assert sides["model.dim"]["values"][1] == 16
    assert sides["model.dim"]["locations"][1].endswith("best.ckpt")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["lm_rope", "lm_ropes"], 2, "did you mean lm_rope?"),
        (["lm_rope", "lm_alibi", "model.dpth=3"], 2, "model.depth"),
        (["lm_rope", "nowhere/last"], 5, "nowhere"),
    ],
)
def test_what_is_no_recipe_is_told(words, code, message, zoo):
    found, out, err = zoo("diff", *words)
    assert (found, out) == (code, "")
    assert message in err


def test_a_model_that_cannot_be_made_is_unknown(zoo):
    code, out, _ = zoo("diff", "lm_rope", "lm_alibi", "model.heads=5", "--json")
    assert code == 0
    assert json.loads(out)["parameters"] == [None, None]
