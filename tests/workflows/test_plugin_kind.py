"""A plug-in brings a kind of data that zoo does not have; nothing of zoo is edited for it."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch

import zoo as package
from zoo.run import checkpoint
from zoo.utils import follow_latest

PLUGIN = ("--plugin", "zoo_series")
RUN = "runs/series_rope/latest"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("series")


@pytest.fixture
def series(zoo, folder, monkeypatch):
    """`zoo` in the folder of one run of the plug-in, which the first test trains."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.chdir(folder)
    if not (folder / "runs").exists():
        few = ("data.train=8000", "trainer.accelerator=cpu", "diagnostics.every_n_steps=20")
        code, _, message = zoo("fit", "series_rope", *few, *PLUGIN)
        assert code == 0, message
    return zoo


def test_it_learns(series, folder):
    run = follow_latest(folder / RUN)
    with open(run / "metrics.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    (error,) = [float(row["test/rmse"]) for row in rows if row.get("test/rmse")]
    # the next place is where the point is now, 2 sin(0.35) away on average
    assert error < 0.1


def test_it_is_evaluated_at_other_lengths(series):
    code, out, message = series("eval", RUN, "--json", *PLUGIN)
    assert code == 0, message
    trained, longer = json.loads(out)["conditions"]
    assert (trained["size"], longer["size"]) == ([8], [16])
    assert trained["metrics"]["test/rmse"] < longer["metrics"]["test/rmse"]


def test_it_is_shown(series):
    code, out, message = series("show", "series_rope", *PLUGIN)
    assert code == 0, message
    assert "# tokens per sample: 8" in out
    assert "head.weight  2 x 32" in out


def test_it_is_diagnosed(series, folder):
    code, _, message = series("diagnose", RUN, *PLUGIN)
    assert code == 0, message
    page = (follow_latest(folder / RUN) / "diagnosis.html").read_text(encoding="utf-8")
    assert "uses them" in page
    # the title has the right numbers and the predicted ones
    assert re.search(r"test sample 1: -?[\d.]+, -?[\d.]+, predicted -?[\d.]+, -?[\d.]+", page)


def test_a_checkpoint_stores_its_facts(series, folder, monkeypatch):
    code, _, message = series("eval", RUN)
    assert code == 5
    assert "begin with --plugin MODULE" in message
    monkeypatch.setenv("ZOO_PLUGINS", "zoo_series")
    path = follow_latest(folder / RUN) / "checkpoints" / "best.ckpt"
    content = checkpoint.read(path)
    stored = content["zoo"]["samples"]
    assert stored["kind"] == "SeriesSpec"
    assert checkpoint.read_spec(content, path).size == (8,)
    stored["channels"] = "two"
    with pytest.raises(package.CheckpointError, match="channels"):
        checkpoint.read_spec(content, path)
    stored["kind"] = "os.system"
    with pytest.raises(package.CheckpointError, match=r"os\.system is none of the data that model"):
        checkpoint.read_spec(content, path)


def test_it_predicts_for_tensors(series, folder, monkeypatch):
    monkeypatch.setenv("ZOO_PLUGINS", "zoo_series")
    task = package.load(follow_latest(folder / RUN))
    angles = 0.5 * torch.arange(9.0)
    places = torch.stack([angles.cos(), angles.sin()], dim=-1)
    (single,) = task.predict(places[:8])
    assert single["numbers"] == pytest.approx(places[8].tolist(), abs=0.1)
    batch = task.predict(torch.stack([places[:8], places[1:]]))
    assert batch[0]["numbers"] == pytest.approx(single["numbers"], abs=1e-5)


def test_datasets_of_a_program_have_it(series, folder, monkeypatch, tmp_path):
    from zoo_series.spec import SeriesSpec

    monkeypatch.setenv("ZOO_PLUGINS", "zoo_series")
    pairs = [(torch.randn(8, 2), torch.zeros(2)) for _ in range(8)]
    data = {"train": pairs, "val": pairs, "test": pairs}
    changes = {"trainer.max_steps": 1, "evaluate.lengths": None}
    spec = SeriesSpec(2, 8, (0.0, 0.0), (1.0, 1.0))
    run = package.fit("series_rope", changes, data=data, spec=spec, run_dir=tmp_path / "run")
    assert run.metrics["test/loss"] > 0
    wrong = {**data, "train": [(torch.randn(8, 3), torch.zeros(2))]}
    with pytest.raises(package.DataError, match=r"a sample has shape \(8, 3\), not \(8, 2\)"):
        package.fit("series_rope", changes, data=wrong, spec=spec, run_dir=tmp_path / "other")


def test_other_tasks_and_formats_refuse_it_by_name(series, folder, tmp_path):
    code, _, message = series("fit", "series_rope", "task=classification", *PLUGIN)
    assert code == 2
    assert "classification reads images, labelled texts or points" in message
    assert "data turns yields series" in message
    for to in ("onnx", "torch_export", "hf"):
        code, _, message = series("export", RUN, f"to={to}", str(tmp_path / to), *PLUGIN)
        assert code == 2, message
        assert "series" in message
        assert "safetensors" in message
