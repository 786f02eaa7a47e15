"""Files as a trained model sees them: images named, texts measured, what cannot be read told and left out."""

import json
import logging
import math
import os
import shutil

import numpy as np
import pytest
import torch
from pictures import encode, pairs, parquet
from PIL import Image
from tiny import LETTERS, TINY, language
from training import fit

from zoo import load
from zoo.data.digits import Digits, load_digits
from zoo.data.vision import ImageDecoder

PHOTOS = [
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "model.patch_size=4",
    "data.name=images",
    "data.size=8",
    "data.val=0.25",
    "data.test=0.25",
    "data.batch_size=4",
    "data.mean=[0.4,0.5,0.6]",
    "data.std=[0.2,0.3,0.4]",
    "trainer.max_epochs=1",
    "trainer.accelerator=cpu",
    "data.workers=0",
    "model.encoding=rope_axial",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Tiny runs of digits, photos, text, masked text and clips. The photos and the text that they learnt are gone."""
    folder = tmp_path_factory.mktemp("runs")
    fit("vit_none", [*TINY, "optim.lr=0.01"], folder / "digits", "never")
    parquet(folder / "made" / "train-0.parquet", 16)
    fit("vit_none", [*PHOTOS, f"data.path={folder / 'made'}"], folder / "photos", "never")
    letters = [*language(folder / "letters.txt"), "evaluate.lengths=null"]
    fit("lm_rope", [*letters, "evaluate.lengths=[8]"], folder / "text", "never")
    fit("mlm_t5", [*letters, "trainer.max_steps=1"], folder / "masked", "never")
    fit(
        "lm_xl",
        [*letters, "model.memory_length=16", "data.streams=true", "data.batch_size=2"],
        folder / "memory",
        "never",
    )
    small = [
        "data.train=8",
        "data.val=8",
        "data.test=8",
        "model.dim=16",
        "model.depth=1",
        "model.heads=2",
    ]
    fit(
        "clip_comrope",
        [*small, "trainer.max_epochs=1", "trainer.accelerator=cpu"],
        folder / "clips",
        "never",
    )
    shutil.rmtree(folder / "made")
    (folder / "letters.txt").unlink()
    return folder


@pytest.fixture
def photos(tmp_path):
    """Five images in folders, a note, a hidden file and a broken image."""
    for at, name in enumerate(("b.png", "a.PNG", "c/d.bmp", "c/e/f.webp", "z.png")):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        kind = {"bmp": "BMP", "webp": "WEBP"}.get(name.rpartition(".")[2], "PNG")
        (tmp_path / "photos" / name).write_bytes(encode(at, (20, 12), kind))
    for name, content in (
        ("notes.md", b"mine"),
        (".hidden.png", b"junk"),
        ("broken.jpg", encode(1, kind="JPEG")[:200]),
    ):
        (tmp_path / "photos" / name).write_bytes(content)
    return tmp_path / "photos"


def draw_digits(folder, numbers):
    """Files of the digits, in this order."""
    images, _ = load_digits()
    folder.mkdir()
    for at, number in enumerate(numbers):
        Image.fromarray((images[number, 0] * 255).round().byte().numpy()).save(
            folder / f"{at:04}.png"
        )


# images


def test_files_of_digits_are_what_the_model_was_tested_on(runs, predict_json, tmp_path):
    order = np.random.default_rng(0).permutation(1797)[:30]  # how the seed 0 draws the test part
    draw_digits(tmp_path / "drawn", order)
    source = Digits(0, test=0.4, val=0.4)
    source.setup("test")
    images, _ = source.splits["test"].__getitems__(list(range(30)))
    expected = load(runs / "digits")(images).softmax(-1)
    found = predict_json(runs / "digits", "drawn", "top=10")["predictions"]
    for one, shares in zip(found, expected, strict=True):
        message = {each["label"]: each["probability"] for each in one["top"]}
        assert [message[number] for number in range(10)] == pytest.approx(
            shares.tolist(), abs=0.002
        )


def test_images_are_read_as_the_data_of_training_is(runs, photos, predict_json):
    task = load(runs / "photos", {"evaluate.resolutions": None})
    found = predict_json(runs / "photos", photos / "b.png", "top=4")["predictions"][0]
    pixels = ImageDecoder((8, 8), 3, "crop").decode((photos / "b.png").read_bytes()) / 255
    scaled = (pixels - np.array([0.4, 0.5, 0.6])[:, None, None]) / np.array([0.2, 0.3, 0.4])[
        :, None, None
    ]
    shares = task(torch.from_numpy(scaled[None]).float()).softmax(-1)[0].tolist()
    assert {each["label"]: each["probability"] for each in found["top"]} == pytest.approx(
        {f"class {n}": share for n, share in enumerate(shares)}, abs=1e-6
    )
    assert [found["label"], found["probability"]] == [*found["top"][0].values()]


def test_folders_are_searched_and_what_is_broken_is_told(runs, photos, predict_json, caplog):
    found = predict_json(runs / "photos", "photos")
    names = ["photos/a.PNG", "photos/b.png", "photos/z.png", "photos/c/d.bmp", "photos/c/e/f.webp"]
    assert [one["path"] for one in found["predictions"]] == names
    assert [one["path"] for one in found["skipped"]] == ["photos/broken.jpg"]
    assert "Skipped photos/broken.jpg: " in caplog.text
    assert found.keys() == {"recipe", "checkpoint", "predictions", "skipped"}


def test_each_file_is_asked_once_and_alone_gives_the_same(runs, photos, predict_json):
    many = predict_json(runs / "photos", "photos/z.png", "photos", "photos/b.png")["predictions"]
    assert many[0]["path"] == "photos/z.png"
    assert len(many) == 5
    (alone,) = predict_json(runs / "photos", "photos/c/d.bmp")["predictions"]
    together = next(one for one in many if one["path"] == "photos/c/d.bmp")
    assert [each["label"] for each in alone["top"]] == [each["label"] for each in together["top"]]
    assert alone["probability"] == pytest.approx(together["probability"], abs=1e-6)


def test_a_line_for_each_file(runs, photos, zoo, predict_json):
    code, out, message = zoo("predict", runs / "photos", "photos", "top=2")
    assert code == 0
    lines = out.splitlines()
    first = predict_json(runs / "photos", "photos", "top=2")["predictions"][0]["top"]
    assert lines[0] == "photos/a.PNG     " + "".join(
        f"  {e['label']} {e['probability']:.4f}" for e in first
    )
    assert [line.split()[0] for line in lines[3:]] == ["photos/c/d.bmp", "photos/c/e/f.webp"]
    assert "Traceback" not in message


def test_a_path_may_have_an_equals_sign(runs, photos, predict_json):
    shutil.copy(photos / "a.PNG", photos / "top=1.png")
    found = predict_json(runs / "photos", "photos/top=1.png", "top=1")["predictions"]
    assert [one["path"] for one in found] == ["photos/top=1.png"]
    assert len(found[0]["top"]) == 1


def test_a_name_need_not_be_text(runs, photos, zoo):
    shutil.copy(photos / "a.PNG", os.fsdecode(os.fsencode(photos) + b"/\xff.png"))
    code, out, message = zoo("predict", runs / "photos", "photos")
    assert code == 0, message
    assert "photos/\\udcff.png " in out


def test_another_resolution_is_a_key_of_the_data(runs, photos, predict_json):
    one, two = (
        predict_json(runs / "photos", photos / "z.png", f"data.size={size}")["predictions"][0]
        for size in (8, 16)
    )
    assert one["probability"] != two["probability"]


def test_workers_change_nothing(runs, photos, predict_json):
    plain, shared = (
        predict_json(runs / "photos", "photos", *more) for more in ([], ["data.workers=2"])
    )
    assert plain == shared


def test_long_work_says_how_far_it_is(runs, photos, predict_json, monkeypatch, caplog):
    monkeypatch.setattr("zoo.utils.INTERVAL", 0.0)
    caplog.set_level(logging.INFO)
    predict_json(runs / "photos", "photos")
    assert "of 6 files, 0:00 left" in caplog.text


# texts


def test_a_text_has_the_loss_that_eval_gives(runs, zoo, predict_json, tmp_path):
    (tmp_path / "song.txt").write_text(LETTERS)
    code, out, message = zoo(
        "eval", runs / "text", "evaluate.lengths=null", "data.files=[song.txt]", "--json"
    )
    assert code == 0, message
    (tmp_path / "end.txt").write_text(LETTERS[-200:])
    (found,) = predict_json(runs / "text", "end.txt")["predictions"]
    assert found["tokens"] == 199
    measured = {
        f"test/{key}": found[key]
        for key in ("loss", "perplexity", "accuracy", "bits_per_character")
    }
    assert measured == pytest.approx(json.loads(out)["metrics"], rel=1e-5)


def test_texts_are_told_apart_and_short_ones_are_read(runs, zoo, predict_json, tmp_path):
    for name, text in (
        ("a.txt", "abc"),
        ("b.txt", LETTERS[:40]),
        ("c.txt", "x"),
        ("d.txt", "a"),
        ("e.md", "abc"),
    ):
        (tmp_path / name).write_text(text)
    found = predict_json(runs / "text", ".")
    assert [(one["path"], one["tokens"]) for one in found["predictions"]] == [
        ("a.txt", 2),
        ("b.txt", 39),
    ]
    assert [one["path"] for one in found["skipped"]] == ["c.txt", "d.txt"]
    assert "'x' at position 0" in found["skipped"][0]["problem"]
    assert "fewer than two tokens" in found["skipped"][1]["problem"]
    both = predict_json(runs / "text", "b.txt", "a.txt")["predictions"]
    assert both[::-1] == found["predictions"]
    head, first, _ = zoo("predict", runs / "text", ".")[1].splitlines()
    assert head.split() == ["path", "tokens", "loss", "perplexity", "accuracy", "bits/character"]
    assert first.split()[:3] == ["a.txt", "2", f"{found['predictions'][0]['loss']:.4f}"]


def test_what_is_remembered_ends_with_a_text(runs, predict_json, tmp_path):
    (tmp_path / "a.txt").write_text(LETTERS[:100])
    (tmp_path / "b.txt").write_text(LETTERS[100:200])
    both = predict_json(runs / "memory", "a.txt", "b.txt")["predictions"]
    assert both == [
        predict_json(runs / "memory", name)["predictions"][0] for name in ("a.txt", "b.txt")
    ]
    assert all(math.isfinite(one["loss"]) for one in both)


# wrong inputs

GREY = ["data.channels=1", "data.mean=[0]", "data.std=[1]"]
WRONG = {
    "no path": ("digits", [], 2, ["command line", "name a file or a folder"]),
    "a missing path": ("digits", ["nowhere.png"], 4, ["nowhere.png", "no such file or folder"]),
    "a missing path beside a good one": (
        "photos",
        ["photos", "nowhere"],
        4,
        ["nowhere", "no such file"],
    ),
    "an empty folder": ("digits", ["empty"], 4, ["empty", "no file to read"]),
    "a file that is no image": (
        "digits",
        ["notes.txt"],
        4,
        ["notes.txt", "not an image", "none of 1"],
    ),
    "half an image": ("digits", ["half.png"], 4, ["half.png", "none of 1"]),
    "no run": ("nowhere", ["photos"], 5, ["nowhere", "no such checkpoint"]),
    "a misspelt option": ("digits", ["photos", "tops=3"], 2, ["predict.tops", "predict.top?"]),
    "no class": ("digits", ["photos", "top=0"], 2, ["predict.top", "at least 1", "0"]),
    "a word for a number": (
        "digits",
        ["photos", "top=all"],
        2,
        ["predict.top", "an integer", "'all'"],
    ),
    "an unknown key": ("digits", ["photos", "data.sise=8"], 2, ["data.sise", "data.size?"]),
    "a size that patches do not divide": (
        "photos",
        ["photos", "data.size=9"],
        2,
        ["patch_size 4", "9 x 9"],
    ),
    "grey images for a model of colours": (
        "photos",
        ["photos", *GREY],
        2,
        ["data.channels", "images of 3"],
    ),
    "a model of clips": ("clips", ["photos"], 2, ["data.name", "moving_digits", "reads no files"]),
    "a model that fills": ("masked", ["notes.txt"], 2, ["task.name", "masked_lm", "evaluate it"]),
    "a text in another alphabet": (
        "text",
        ["notes.txt"],
        4,
        ["notes.txt", "vocabulary of 10 characters"],
    ),
    "images for a model of text": ("text", ["photos"], 4, ["photos", ".txt"]),
    "an image for a model of text": ("text", ["half.png"], 4, ["half.png", "UTF-8"]),
    "another recipe": ("digits", ["photos", "model.dim=32"], 5, ["another recipe"]),
    "an unknown flag": ("digits", ["photos", "--top", "3"], 2, ["--top"]),
}


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_a_wrong_question(case, runs, photos, zoo, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("Zebras")
    (tmp_path / "half.png").write_bytes(encode(0, (64, 64))[:600])
    run, arguments, expected, words = WRONG[case]
    code, out, message = zoo("predict", runs / run if run != "nowhere" else run, *arguments)
    assert (code, out) == (expected, ""), message
    assert 1 <= len(message.strip().splitlines()) <= 6, message
    assert "Traceback" not in message
    for word in words:
        assert word in message


def test_a_run_is_measured_on_other_images_of_as_many_classes(runs, zoo, tmp_path):
    parquet(tmp_path / "more" / "train-0.parquet", 16, size=(10, 10))
    parquet(tmp_path / "three" / "train-0.parquet", 16, classes=3)
    code, out, message = zoo(
        "eval", runs / "photos", "data.path=more", "evaluate.resolutions=[8,16]", "--json"
    )
    assert code == 0, message
    assert [one["name"] for one in json.loads(out)["conditions"]] == ["trained", "8", "16"]
    code, _, message = zoo("eval", runs / "photos", "data.path=three")
    assert code == 2
    assert "data.classes: 3 classes, but the model was trained with 4" in message


def test_a_segmenter_says_which_classes_an_image_has(tmp_path, zoo):
    pairs(tmp_path / "made", 8)
    changes = [
        "model.dim=16",
        "model.depth=1",
        "model.heads=2",
        "data={name: image_masks, path: made, classes: [road, sky, tree, other], size: 16}",
        "data.val=0.25",
        "data.test=0.25",
        "trainer.max_epochs=1",
        "trainer.accelerator=cpu",
        "evaluate.resolutions=null",
    ]
    code, _, error = zoo("fit", "seg_digits_none", "--run-dir", "run", *changes)
    assert code == 0, error
    photos = str(tmp_path / "made" / "images")
    code, printed, error = zoo("predict", "run", photos, "predict.top=4", "--json")
    assert code == 0, error
    found = json.loads(printed)["predictions"]
    assert len(found) == 8
    for one in found:
        assert sum(each["share"] for each in one["classes"]) == pytest.approx(1)
        assert {each["label"] for each in one["classes"]} <= {"road", "sky", "tree", "other"}
