"""A recipe that passes the checks trains, is tested, continues texts, is loaded and exported.

`python tests/benchmarks/recipes.py` draws and uses hundreds; this is a part of them.
"""

import importlib
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
recipes = importlib.import_module("recipes")
sys.path.pop(0)

KINDS = {"decoder": 4, "encoder": 1, "classifier of texts": 2, "vit": 3}
"""The first number of each kind."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder where recipes find their text."""
    monkeypatch.chdir(tmp_path)
    recipes.write_text(tmp_path)
    return tmp_path


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_recipes_that_pass_the_checks_work_to_the_end(kind, count, folder):
    for number in range(KINDS[kind], 400, len(recipes.TASKS)):
        outcome = recipes.try_recipe(number, folder)
        assert not outcome.is_fault, (outcome, recipes.describe(recipes.draw_recipe(number)))
        count -= outcome.kind == "trained"
        if not count:
            return
    pytest.fail("almost every recipe is refused")


def test_the_same_number_draws_the_same_recipe():
    assert recipes.draw_recipe(7) == recipes.draw_recipe(7)
    assert recipes.draw_recipe(7) != recipes.draw_recipe(11)


@pytest.mark.parametrize("what", ["the past of another future", "decoding with a cache"])
def test_a_wrong_decoder_is_noticed(what):
    def model(ids, context=None):
        if context is not None and what == "decoding with a cache":
            return torch.zeros(*ids.shape, 5)
        number = ids.sum() if what == "the past of another future" else 1
        return torch.ones(*ids.shape, 5) * number

    with pytest.raises(recipes.FaultError, match=what):
        recipes.check_decoder(model, 9)


def test_what_is_refused_late_is_noticed(folder, monkeypatch):
    def train(recipe, run, started):
        started(run)
        raise recipes.OptionError("length", "position 16 is past the table")

    monkeypatch.setattr(recipes.training, "fit", train)
    outcomes = [recipes.try_recipe(number, folder) for number in range(12)]
    assert {one.kind for one in outcomes} <= {"late", "refused"}
    assert any(one.is_fault for one in outcomes)
