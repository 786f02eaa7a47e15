"""Images that keep their shape: padded and packed batches train, test and predict the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from training import diagnose, evaluate, fit
from without_torchvision import import_timm

import zoo
from zoo.config.command_line import parse_overrides
from zoo.errors import DataError, RecipeError
from zoo.run.load import load_experiment

MODEL = "model: {dim: 16, depth: 1, heads: 2, patch_size: 4, encoding: comrope_ld, registers: 1}"
PHOTOS = f"""
extends: [model/vit_tiny, data/images, optim/adamw, trainer/default]
{MODEL}
data: {{path: photos, size: 16, aspect: keep, batch_size: 4, val: 0.2, test: 0.4, augment: {{flip: 0.5, area: 0.5}}}}
task: classification
trainer: {{max_epochs: 1, accelerator: cpu, log_every_n_steps: 1}}
"""
SCENES = f"""
extends: [model/vit_tiny, data/image_masks, optim/adamw, trainer/default]
{MODEL}
data: {{path: scenes, classes: 4, size: 16, aspect: keep, batch_size: 4, val: 0.2, test: 0.4, augment: {{flip: 0.5}}}}
task: segmentation
trainer: {{max_epochs: 1, accelerator: cpu, log_every_n_steps: 1}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recipes with 20 photographs of random shapes, and their masks of stripes."""
    folder = tmp_path_factory.mktemp("shapes")
    rng = np.random.default_rng(0)
    for number in range(20):
        height, width = rng.integers(8, 60, 2)
        picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        stripes = (np.arange(width) // 8 % 4).astype(np.uint8)[None].repeat(height, 0)
        for path, content in (
            (f"photos/train/{number % 2}/{number}.png", picture),
            (f"scenes/images/{number}.png", picture),
            (f"scenes/masks/{number}.png", Image.fromarray(stripes)),
        ):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            content.save(folder / path)
    (folder / "photos.yaml").write_text(PHOTOS)
    (folder / "scenes.yaml").write_text(SCENES)
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


PAGE = ["samples=3", "controls=false"]


@pytest.fixture(scope="module")
def runs(folder):
    """A padded and a packed run of each recipe."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for recipe in ("photos", "scenes"):
            fit(f"{recipe}.yaml", [], Path(recipe + "-run"), "never")
            fit(f"{recipe}.yaml", ["data.pack=40"], Path(recipe + "-packed"), "never")
    return folder


@pytest.mark.parametrize("recipe", ["photos", "scenes"])
def test_packed_rows_train_as_padded_ones(recipe, runs, weights):
    padded, packed = (
        weights(f"{recipe}-{kind}/checkpoints/last.ckpt") for kind in ("run", "packed")
    )
    for name, value in padded.items():
        torch.testing.assert_close(packed[name], value, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("recipe", ["photos", "scenes"])
def test_larger_budgets_are_tested(recipe, runs):
    sizes = ["evaluate.resolutions=[16,24,16x32]"]
    found = {
        kind: evaluate(f"{recipe}-run", [*sizes, *words])
        for kind, words in (("padded", []), ("packed", ["data.pack=40"]))
    }
    for name in ("16", "24", "16x32"):
        padded, packed = (found[kind].find(name).metrics["test/loss"] for kind in found)
        assert padded == pytest.approx(packed, abs=1e-5)
    assert "in its own shape" in json.dumps(found["padded"].to_dict())


@pytest.mark.parametrize("recipe", ["photos", "scenes"])
def test_a_file_is_predicted_as_if_it_were_alone(recipe, runs):
    files = "photos" if recipe == "photos" else "scenes/images"
    alone, together = (
        zoo.predict(f"{recipe}-{kind}", files, {"data.batch_size": size, "data.pack": pack})
        for kind, size, pack in (("run", 1, None), ("run", 20, 40))
    )
    assert len(alone.predictions) == 20
    for one, other in zip(alone.predictions, together.predictions, strict=True):
        if recipe == "photos":
            assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
        else:
            assert one == other
            assert sum(each["share"] for each in one["classes"]) == pytest.approx(1)


@pytest.mark.parametrize("recipe", [pytest.param("photos", marks=pytest.mark.nightly), "scenes"])
def test_a_page_shows_images_of_the_commonest_shape(recipe, runs):
    padded, packed = (
        diagnose(f"{recipe}-run", *words, *PAGE, f"to={at}.html")[0].runs[0]
        for at, words in (("a", []), ("b", ["data.pack=40"]))
    )
    attended = padded.attended
    assert attended.grid[0] * attended.grid[1] <= 16
    assert attended.weights.shape[-1] == attended.grid[0] * attended.grid[1] + len(attended.extra)
    (picture,) = attended.samples[0].pictures
    assert picture.shape[:2] == tuple(4 * side for side in attended.grid)
    assert "commonest" in padded.facts["shown"]
    if recipe == "scenes":
        assert padded.segmented[0].mask.shape == picture.shape[:2]
    # the same images, whatever row they are laid out in
    torch.testing.assert_close(packed.attended.weights, attended.weights)
    assert padded.metrics["test/loss"] == pytest.approx(packed.metrics["test/loss"], abs=1e-5)


def test_masks_have_the_sizes_of_their_images():
    data = load_experiment("scenes.yaml").data
    data.setup("fit")
    images, places, masks = next(iter(data.train_dataloader()))
    assert images.shape[2:] == masks.shape[1:]
    patches = masks[:, ::4, ::4] >= 0
    assert patches.sum() == (places >= 0).sum()
    assert (places >= 0).sum(1).tolist() == patches.sum((1, 2)).tolist()
    assert (places >= 0).sum(1).max() <= 16
    # stripes run down, flipped or not
    for mask in masks:
        assert all(len(column[column >= 0].unique()) <= 1 for column in mask.T)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.augment.mixup=0.5"], "data.augment.mixup: it needs images of one size"),
        (["data.augment.randaugment=1"], "data.augment.randaugment: it needs images of one size"),
        (["data.max_tokens=64"], r"data.max_tokens: unknown key; did you mean data.size\?"),
        (["data.resize=exact"], "data.resize: exact changes the shape of images"),
        (["data.aspect=fixed", "data.pack=40"], "data.pack: images of one size fill their rows"),
        (["data.pack=15"], "data.pack: a row of 15 patches, and an image of data.size has 16"),
        (
            ["model.encoding={name: learned, antialias: true}"],
            "model.encoding: learned: antialias resizes the table once for all images of a batch",
        ),
        (
            ["data.pack=40", "model.position_augmentation={shift: 1, per_sample: true}"],
            "model.position_augmentation.per_sample: images that share a row share its draws",
        ),
        (
            ["~model", "model.name=timm", "model.arch=vit_tiny_patch16_224", "model.patch_size=4",
             "model.encoding=rope_mixed"],
            "model.name: it reads batches of images of one size; choose vit",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(words, message):
    if "model.name=timm" in words:
        import_timm()
    with pytest.raises(RecipeError, match=message):
        load_experiment("photos.yaml", parse_overrides(words))


def test_a_model_of_one_size_is_tested_on_images_in_their_shapes(runs):
    words = ["data.aspect=fixed", "data.augment.mixup=0.5", "evaluate.resolutions=[24]"]
    fit("photos.yaml", words, Path("fixed"), "never")
    # what only training follows does not matter
    found = evaluate("fixed", ["data.aspect=keep"])
    assert found.metrics["test/loss"] != evaluate("fixed").metrics["test/loss"]
    assert len(zoo.predict("fixed", "photos", {"data.aspect": "keep"}).predictions) == 20


def test_windows_and_models_of_one_size_are_refused(runs, tmp_path):
    with pytest.raises(RecipeError, match="sliding_window reads images of one size"):
        evaluate(
            "scenes-run", ["evaluate.resolutions=[32]", "evaluate.extrapolation=[sliding_window]"]
        )
    with pytest.raises(RecipeError, match="resize reads images of one size"):
        evaluate("photos-run", ["evaluate.resolutions=[32]", "evaluate.extrapolation=[resize]"])
    with pytest.raises(RecipeError, match="to=hf reads images of one size"):
        zoo.export("photos-run", tmp_path / "hf", "hf")


def test_datasets_of_python_have_images_of_any_shape(tmp_path):
    grids = [(4, 4), (2, 6), (5, 3), (1, 2)] * 2
    samples = [
        (torch.randn(1, 4 * rows, 4 * columns), torch.randint(2, (4 * rows, 4 * columns)))
        for rows, columns in grids
    ]
    data = dict.fromkeys(("train", "val", "test"), samples)
    small = {"model.dim": 16, "model.depth": 1, "model.heads": 2, "trainer.max_epochs": 1}
    changes = {**small, "trainer.accelerator": "cpu", "evaluate.resolutions": [24]}
    spec = zoo.SegmentationSpec(1, 16, 16, 2)
    losses = []
    for pack in (None, 32):
        shaped = {"data.aspect": "keep", "data.pack": pack, "data.batch_size": 4}
        run = zoo.fit(
            "seg_digits_rope_mixed",
            {**changes, **shaped},
            data=data,
            spec=spec,
            run_dir=tmp_path / str(pack),
        )
        losses.append(run.metrics["test/loss"])
        found = zoo.evaluate(run, data=data)
        assert found.find("24").metrics["test/loss"] != found.metrics["test/loss"]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    odd = {**data, "val": [*samples, (torch.randn(1, 8, 10), torch.randint(2, (8, 10)))]}
    with pytest.raises(DataError, match="data, val, sample 8: 8 x 10 pixels, and a patch has 4"):
        zoo.fit(
            "seg_digits_rope_mixed", {**changes, **shaped}, data=odd, spec=spec,
            run_dir=tmp_path / "odd",
        )  # fmt: skip
