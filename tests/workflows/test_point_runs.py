"""Runs on points: trained on files of one's own, tested and used, and what is refused by name."""

import json

import numpy as np
import pytest
import torch

import zoo as package

SMALL = [
    "model.dim=24",
    "model.heads=2",
    "model.depth=1",
    "trainer.accelerator=cpu",
    "trainer.max_steps=2",
    "trainer.max_epochs=null",
    "diagnostics.every_n_steps=1",
    "diagnostics.max_overhead=1",
]


@pytest.fixture
def run(zoo, tmp_path):
    """Train a regression on four coordinates, with diagnostics, and return its folder."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(40, 5)), "pos": rng.uniform(size=(40, 5, 4))}
    arrays["mask"] = np.arange(5) < rng.integers(1, 6, 40)[:, None]
    np.savez(tmp_path / "sets.npz", **arrays, target=rng.normal(50, 9, (40, 2)))
    data = f"data={{name: points, path: {tmp_path / 'sets.npz'}, batch_size: 8}}"
    words = ["points_period_comrope", data, "model.encoding=rope_mixed", *SMALL]
    code, _, error = zoo("fit", *words, "--run-dir", str(tmp_path / "run"))
    assert code == 0, error
    assert "attention/0/entropy" in (tmp_path / "run" / "metrics.csv").read_text()
    return tmp_path / "run"


def test_a_regression_is_tested_and_predicts(run, zoo):
    code, printed, error = zoo("eval", str(run), "--json")
    assert code == 0, error
    metrics = json.loads(printed)["metrics"]
    assert {"test/loss", "test/rmse", "test/mae", "test/r2"} == {*metrics}

    code, printed, error = zoo("predict", str(run), str(run.parent / "sets.npz"), "--json")
    assert code == 0, error
    found = json.loads(printed)["predictions"]
    assert [one["row"] for one in found] == list(range(40))
    assert all(len(one["numbers"]) == 2 for one in found)

    task = package.load(run)
    with np.load(run.parent / "sets.npz") as arrays:
        x, pos = (torch.from_numpy(arrays[name]).float() for name in ("x", "pos"))
        mask = torch.from_numpy(arrays["mask"])
    again = task.predict((x[..., None], pos, mask))
    np.testing.assert_allclose(again[7]["numbers"], found[7]["numbers"], rtol=1e-4)
    assert task.predict((x[0, :, None], pos[0], mask[0]))[0].keys() == {"numbers"}


def test_what_points_have_not_is_refused_by_name(run, zoo, tmp_path):
    code, _, error = zoo("export", str(run), str(tmp_path / "out"), "to=hf")
    assert code == 2
    assert "models of points have no class in transformers" in error
    for words, problem in (
        (["model.encoding=learned"], "learned does not read points on 1 axis; these do: alibi"),
        (["task=classification"], "the targets are numbers, not classes; choose regression"),
        (["evaluate.lengths=[2x]"], "has no option length, so it cannot vary"),
        (["model.encoding.0.coordinates=fraction"], "no convention applies"),
        (["data=digits"], "reads points, data digits yields images"),
    ):
        code, _, error = zoo("fit", "points_period_comrope", *words)
        assert code == 2
        assert problem in error, error
