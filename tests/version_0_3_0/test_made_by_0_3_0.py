"""What version 0.3.0 wrote still loads and gives the numbers that 0.3.0 gave.

`files` holds what version 0.3.0 made, in small: a run (a decoder with CoPE on flip-flop texts) and its
export for the Hub, a run with linear attention, which was an option of the model, an equipped Llama, a comparison of two encodings on digits, and a plug-in package.
Never write these files anew; a later version adds a folder of its own.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch

import zoo
from zoo.cli.main import main
from zoo.config import from_plain
from zoo.formats.huggingface import build_model
from zoo.run import checkpoint

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text())
ROUNDING = {"rel": 1e-4, "abs": 1e-6}  # another processor adds in another order


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the files, in which commands may write."""
    copied = tmp_path / "files"
    shutil.copytree(FILES, copied)
    monkeypatch.chdir(copied)
    return copied


@pytest.mark.parametrize("checkpoint", ["run", "run/checkpoints/last.ckpt", "hub_folder"])
def test_a_checkpoint_is_evaluated_equal(folder, checkpoint):
    recorded = json.loads((folder / "run/evaluation.json").read_text())
    result = zoo.evaluate(checkpoint)
    assert result.metrics == pytest.approx(recorded["metrics"], **ROUNDING)
    conditions = result.to_dict()["conditions"]
    for condition, expected in zip(conditions, recorded["conditions"], strict=True):
        assert condition["name"] == expected["name"]
        assert condition["metrics"] == pytest.approx(expected["metrics"], **ROUNDING)


def test_a_run_that_was_stopped_is_continued(folder):
    recorded = json.loads((folder / "run/end.json").read_text())
    (folder / "run/end.json").unlink()
    recipe = zoo.load_recipe(folder / "run/recipe.yaml")
    run = zoo.fit(recipe, run_dir=folder / "run", resume="auto")
    assert not run.stopped
    assert run.metrics == pytest.approx(recorded["metrics"], **ROUNDING)


def test_a_run_of_two_epochs_is_trained_equal(folder):
    recorded = json.loads((folder / "run/end.json").read_text())
    run = zoo.fit(folder / "run/recipe.yaml", run_dir=folder / "again")
    assert run.metrics == pytest.approx(recorded["metrics"], **ROUNDING)


def test_a_run_with_linear_attention_is_evaluated_equal_and_continued(folder):
    assert zoo.evaluate("linear_run").metrics == pytest.approx(EXPECTED["linear"], **ROUNDING)
    content = checkpoint.read(folder / "linear_run/checkpoints/last.ckpt")
    recipe = from_plain(content["zoo"]["recipe"], origin="linear_run", name="flipflop_cope")
    assert recipe.model.options["layer_types"]["linear"]["mixer"].name == "linear"
    run = zoo.fit(recipe, run_dir=folder / "linear_run", resume="auto")
    assert run.metrics == pytest.approx(EXPECTED["linear"], **ROUNDING)
    again = zoo.fit(recipe, run_dir=folder / "again")
    assert again.metrics == pytest.approx(EXPECTED["linear"], **ROUNDING)


def test_a_recipe_with_the_former_option_of_linear_attention_names_the_mixer(folder):
    with pytest.raises(zoo.RecipeError, match=r"layer_types: \{linear: \{mixer: linear\}\}"):
        zoo.load_recipe(folder / "linear_run/recipe.yaml")
    with pytest.raises(zoo.RecipeError, match=r"layer_pattern: \[linear\]"):
        zoo.load_recipe("vit_none", {"model.attention": "linear"})


def test_an_exported_folder_with_linear_attention_names_the_command():
    metadata = {"name": "lm", "recipe": {"model": {"name": "decoder", "attention": "linear"}}}
    with pytest.raises(zoo.CheckpointError, match="zoo export FOLDER NEW_FOLDER to=hf"):
        build_model(metadata)


def test_an_equipped_model_computes_equal(folder):
    model = zoo.load(folder / "equipped")
    with torch.no_grad():
        logits = model(torch.arange(12)[None] % 7).logits[0, -1, :4]
    torch.testing.assert_close(logits, torch.tensor(EXPECTED["logits"]), rtol=1e-4, atol=1e-6)


def test_a_comparison_is_analysed_equal(folder):
    recorded = json.loads((folder / "comparison/results.json").read_text())
    result = zoo.rebuild_comparison(folder / "comparison", verbose=False).to_dict()
    assert result["seeds"] == recorded["seeds"]
    for variant, expected in zip(result["variants"], recorded["variants"], strict=True):
        assert variant["name"] == expected["name"]
        for cell, expected_cell in zip(variant["cells"], expected["cells"], strict=True):
            metrics = [measured["metrics"] for measured in cell["measurements"]]
            assert metrics == [measured["metrics"] for measured in expected_cell["measurements"]]
    for condition, expected in recorded["analysis"].items():
        for name, entry in expected["variants"].items():
            analysed = result["analysis"][condition]["variants"][name]
            assert analysed["mean"] == pytest.approx(entry["mean"], nan_ok=True)
            assert analysed["difference"] == pytest.approx(entry["difference"], nan_ok=True)


def test_a_comparison_is_continued_without_training(folder, monkeypatch):
    monkeypatch.chdir(folder)
    plan = json.loads((folder / "comparison/plan.json").read_text())
    words = shlex.split(plan["command"])
    words[2] = str(ROOT / words[2])
    trained = {path: path.stat().st_mtime_ns for path in folder.glob("comparison/cells/*/end.json")}
    assert len(trained) == 4
    assert main(words[1:]) == 0
    assert {path: path.stat().st_mtime_ns for path in trained} == trained


def test_a_plugin_trains_equal(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("ZOO_PLUGINS", "plugin_of_0_3_0")
    tiny = {"model.dim": 16, "model.heads": 2, "model.depth": 1}
    few = {"data.train": 64, "data.test": 32, "trainer.max_epochs": 1}
    run = zoo.fit("vit_gaussian", {**tiny, **few}, run_dir=folder / "plugin_run")
    # the best five of four classes were always right, and are measured no more
    expected = {name: value for name, value in EXPECTED["plugin"].items() if name != "test/top5"}
    assert run.metrics == pytest.approx(expected, **ROUNDING)
    lion = zoo.fit("vit_gaussian_lion", {**tiny, **few}, run_dir=folder / "lion_run")
    assert {"test/f1", "test/within_one"} <= lion.metrics.keys()
