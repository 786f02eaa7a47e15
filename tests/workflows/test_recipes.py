"""Every recipe opens with its claim, and trains."""

import json
import math
import re

import pytest
from small_recipes import RECIPES, shrink, write_data

from zoo.config import load

COUNTS = {
    "digits": 36,
    "python_docs": 59,
    "flipflop": 50,
    "moving_digits": 32,
    "images": 4,
    "marker_offset": 50,
    "text_table": 13,
    "text_stream": 8,
    "counting": 50,
    "selective_copy": 50,
    "recall": 50,
    "addition": 50,
    "copying": 50,
    "parity": 50,
    "passkey": 50,
    "multikey_passkey": 50,
    "variable_tracking": 50,
    "common_words": 50,
}
"""Samples that a shrunken test split has, by data source."""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_opens_with_its_claim(path):
    lines = path.read_text().splitlines()
    assert re.fullmatch(r"# .+\.", lines[0])
    assert [line.split()[1] for line in lines[2:6]] == ["paper", "command", "cost", "number"]
    assert lines[3].split()[2:] == ["zoo", "fit", path.stem]
    assert re.search(r"test/(accuracy|loss) \d\.\d{4}|not recorded yet", lines[5])
    assert len(lines) <= 25


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_two_steps(path, zoo, tmp_path):
    recipe = load(path)
    write_data(recipe, tmp_path)
    # a pattern of layers is no longer than the depth
    depth = [] if recipe.model.options.get("layer_pattern") else ["model.depth=2"]
    if recipe.init_from is not None:
        # the run of another recipe, under runs/
        assert zoo("fit", recipe.init_from.split("/")[1], *depth, *shrink(recipe))[0] == 0
    code, printed, error = zoo("fit", path.stem, *depth, *shrink(recipe), "--json")
    assert code == 0, error

    result = json.loads(printed)
    count = COUNTS[recipe.data.name]
    assert result["count"] == count - (count % 16 if recipe.data.options.get("streams") else 0)
    assert all(math.isfinite(value) for value in result["metrics"].values())
