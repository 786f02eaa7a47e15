"""Masks of 0 and 255: fit and compare refuse them before they start, and a test of other masks too."""

import numpy as np
import pytest
from PIL import Image

import zoo
from zoo.errors import RecipeError

CHANGES = {
    "data.name": "image_masks",
    "data.classes": 2,
    "data.val": 0.2,
    "data.test": 0.4,
    "data.size": 8,
    "data.channels": 1,
    "data.batch_size": 8,
    "model.dim": 8,
    "model.heads": 2,
    "model.patch_size": 4,
    "model.encoding": "rope_mixed",
    "evaluate.resolutions": None,
    "evaluate.extrapolation": None,
    "trainer.max_epochs": 1,
    "trainer.accelerator": "cpu",
}


def write_pairs(folder, numbers):
    for number in range(20):
        mask = np.random.default_rng(number).choice(numbers, (8, 8)).astype(np.uint8)
        for name in ("images", "masks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(folder / name / f"{number}.png")
    return str(folder)


@pytest.fixture
def changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return {**CHANGES, "data.path": write_pairs(tmp_path / "binary", (0, 255))}


def test_masks_of_0_and_255_are_refused_before_anything_starts(changes, tmp_path):
    for command, options in ((zoo.fit, {}), (zoo.compare, {"vary": {"model.depth": [1, 2]}})):
        with pytest.raises(RecipeError, match=r"data.ignore: .*binary/masks, train: .* are 255"):
            command("seg_digits_none", changes, verbose=False, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["binary"]


def test_masks_of_a_test_are_counted_too(changes, tmp_path):
    sound = {**changes, "data.path": write_pairs(tmp_path / "sound", (0, 1))}
    run = zoo.fit("seg_digits_none", sound, verbose=False)
    with pytest.raises(RecipeError, match=r"data.ignore: .*binary/masks, test: .* are 255"):
        zoo.evaluate(run, {"data.path": changes["data.path"]}, verbose=False)
    numbered = {"data.path": changes["data.path"], "data.numbers": [0, 255]}
    found = zoo.evaluate(run, numbered, verbose=False)
    assert found.metrics["test/miou"] < 1
