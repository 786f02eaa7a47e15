"""A package beside the user is a plug-in without being installed."""

import json
import re
import shutil
import sys

import pytest
from tiny import ROOT

from zoo import load_recipe
from zoo.run import checkpoint
from zoo.utils import follow_latest

FEW = [
    "data.train=32",
    "data.val=16",
    "data.test=16",
    "trainer.max_epochs=1",
    "trainer.accelerator=cpu",
]


@pytest.fixture
def beside(zoo, tmp_path, monkeypatch):
    """`zoo`, in a folder that holds the example."""
    shutil.copytree(ROOT / "docs" / "plugin" / "zoo_example", tmp_path / "zoo_example")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield zoo
    for name in [name for name in sys.modules if name.partition(".")[0] == "zoo_example"]:
        del sys.modules[name]


def test_its_members_are_listed(beside):
    for kind, name in (("encodings", "gaussian"), ("data", "dots"), ("recipes", "vit_gaussian")):
        code, out, _ = beside("list", kind, "--plugin", "zoo_example")
        assert code == 0
        assert re.search(f"^{name} ", out, re.MULTILINE)


def test_its_recipe_trains_and_is_measured(beside):
    code, _, message = beside("fit", "vit_gaussian", *FEW, "--plugin", "zoo_example")
    assert code == 0, message
    code, out, message = beside(
        "eval",
        "runs/vit_gaussian/latest",
        "evaluate.resolutions=[16,24]",
        "--plugin",
        "zoo_example",
    )
    assert code == 0, message
    assert "24 pixels" in out


KINDS = {
    "optim": "lion",
    "schedules": "inverse_sqrt",
    "metrics": "within_one",
    "callbacks": "weight_norm",
    "loggers": "json_lines",
}


def test_members_of_every_kind_are_used_by_name(beside, tmp_path):
    for kind, name in KINDS.items():
        assert re.search(f"^{name} ", beside("list", kind, "--plugin", "zoo_example")[1], re.M)
    few = [*FEW, "trainer.log_every_n_steps=1"]
    code, _, message = beside("fit", "vit_gaussian_lion", *few, "--plugin", "zoo_example")
    assert code == 0, message
    run = follow_latest(tmp_path / "runs" / "vit_gaussian_lion" / "latest")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = {name for line in lines for name in line}
    assert {"train/weight_norm", "train/loss", "val/within_one", "test/within_one"} <= logged

    content = checkpoint.read(run / "checkpoints" / "last.ckpt")
    (state, *_) = content["optimizer_states"][0]["state"].values()
    assert [*state] == ["momentum"]
    stored = load_recipe(run / "recipe.yaml")
    assert stored.optim.options["schedule"].name == "inverse_sqrt"
    assert [one.name for one in stored.trainer.callbacks] == ["weight_norm", "learning_rate"]

    code, _, message = beside(
        "fit", "vit_gaussian_lion", "trainer.callbacks=[weigth_norm]", "--plugin", "zoo_example"
    )
    assert code == 2
    assert "trainer.callbacks.0.name: there is no 'weigth_norm' among callbacks; did y" in message


def test_a_run_without_its_plug_in_is_told(beside, monkeypatch):
    beside("fit", "vit_gaussian", *FEW, "--plugin", "zoo_example")
    monkeypatch.setenv("ZOO_PLUGINS", "")
    code, _, message = beside("eval", "runs/vit_gaussian/latest")
    assert code == 5
    assert (
        "there is no 'gaussian' among encodings; if that comes from a plug-in, begin with --plugin MODULE"
        in message
    )


def test_a_name_that_zoo_has_is_refused(beside, tmp_path):
    taken = tmp_path / "zoo_example" / "encodings" / "rope.py"
    (tmp_path / "zoo_example" / "encodings" / "gaussian.py").rename(taken)
    for words in (["list", "encodings"], ["show", "rope"]):
        code, out, message = beside(*words, "--plugin", "zoo_example")
        assert (code, out) == (2, "")
        assert "rope among encodings" in message
        assert "zoo_example" in message
