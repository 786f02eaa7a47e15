"""Classes without a sample or pixel are named, and splits that teach nothing are refused, for all sources."""

import csv
import logging

import numpy as np
import pytest
import torch
from pictures import encode
from PIL import Image
from tables import jsonl, text

from zoo import registry
from zoo.data import class_counts
from zoo.data.base import Datasets
from zoo.data.corpus.tokenizer import Words
from zoo.data.image_masks import ImageMasks
from zoo.data.images import Images
from zoo.data.points import PointFiles
from zoo.data.spec import (
    IGNORE_INDEX,
    ImageSpec,
    PointSpec,
    SegmentationSpec,
    TextClassificationSpec,
    TextSpec,
)
from zoo.data.tables.stream import StreamOptions
from zoo.data.text_classification import TextClassification
from zoo.data.torch_dataset import TorchDataset
from zoo.errors import DataError, OptionError

COUNT = 30
FRACTIONS = {"val": 0.2, "test": 0.2}
TOKENS = Words(("a", "b", "c"))


def open_images(folder, labels, classes):
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageFeature

    rows = {"image": [{"bytes": encode(n), "path": None} for n in range(COUNT)], "label": labels}
    features = Features(image=ImageFeature(), label=Value("int64"))
    Dataset.from_dict(rows, features).to_parquet(folder / "rows.parquet")
    return Images(0, path=str(folder / "rows.parquet"), size=8, classes=classes, **FRACTIONS)


def open_class_folders(folder, labels, classes):
    for number, label in enumerate(labels):
        path = folder / "pets" / "train" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number))
    return Images(0, path=str(folder / "pets"), size=8, classes=classes, **FRACTIONS)


def open_masks(folder, labels, classes, **options):
    for number, label in enumerate(labels):
        for name, pixels in (("images", 0), ("masks", label)):
            (folder / name).mkdir(exist_ok=True)
            image = Image.fromarray(np.full((8, 8), pixels, np.uint8))
            image.save(folder / name / f"{number}.png")
    return ImageMasks(0, path=str(folder), size=8, classes=classes, **{**FRACTIONS, **options})


def open_texts(folder, labels, classes):
    rows = [{"text": text(n), "label": label} for n, label in enumerate(labels)]
    path = jsonl(folder / "rows.jsonl", rows)
    return TextClassification(0, path=str(path), classes=classes, **FRACTIONS)


def open_csv(folder, labels, classes):
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["text", "label"], *([text(n), label] for n, label in enumerate(labels))]
        )
    path = str(folder / "rows.csv")
    return TextClassification(0, path=path, classes=classes, **FRACTIONS)


def open_npz(folder, labels, classes):
    path = folder / "sets.npz"
    draw = np.random.default_rng(0)
    arrays = {"x": draw.normal(size=(COUNT, 4, 2)), "pos": draw.normal(size=(COUNT, 4, 1))}
    np.savez(path, **arrays, target=np.array(labels))
    return PointFiles(0, path=str(path), classes=classes, **FRACTIONS)


def open_point_rows(folder, labels, classes):
    draw = np.random.default_rng(0)
    rows = [
        {"x": draw.normal(size=(3, 2)).tolist(), "pos": [0.0, 1.0, 2.0], "target": label}
        for label in labels
    ]
    path = jsonl(folder / "sets.jsonl", rows)
    return PointFiles(0, path=str(path), classes=classes, **FRACTIONS)


def pass_datasets(samples, spec):
    data = TorchDataset(0)
    data.adopt_datasets(Datasets(dict.fromkeys(("train", "val", "test"), samples), spec))
    return data


def pass_images(folder, labels, classes):
    samples = [(torch.zeros(1, 8, 8), label) for label in labels]
    return pass_datasets(samples, ImageSpec(1, 8, 8, classes))


def pass_masks(folder, labels, classes):
    samples = [(torch.zeros(1, 8, 8), torch.full((8, 8), label)) for label in labels]
    return pass_datasets(samples, SegmentationSpec(1, 8, 8, classes))


def pass_texts(folder, labels, classes):
    samples = [(torch.tensor([0, 1, 2]), label) for label in labels]
    return pass_datasets(samples, TextClassificationSpec(3, TOKENS, classes))


def pass_points(folder, labels, classes):
    samples = [(np.zeros((3, 2)), np.zeros((3, 1)), label) for label in labels]
    return pass_datasets(samples, PointSpec(2, 1, 3, classes))


READERS = {
    "images of a table": ("images", open_images),
    "class folders": ("images", open_class_folders),
    "masks": ("image_masks", open_masks),
    "JSON lines": ("text_classification", open_texts),
    "CSV": ("text_classification", open_csv),
    "NPZ": ("points", open_npz),
    "rows of points": ("points", open_point_rows),
    "own images": ("torch_dataset", pass_images),
    "own masks": ("torch_dataset", pass_masks),
    "own texts": ("torch_dataset", pass_texts),
    "own points": ("torch_dataset", pass_points),
}
MADE = ("digits", "irregular_series", "marker_offset", "moving_digits", "seg_digits")
"""Sources of zoo that make their samples, so that they have all classes by construction."""
TEXTS = ("python_docs", "text", "text_stream", "text_table")
"""Sources of tokens that are all predicted."""


def labels_of(*classes):
    return [classes[number % len(classes)] for number in range(COUNT)]


@pytest.fixture(autouse=True)
def _read_all(monkeypatch):
    # on a busy machine, too
    monkeypatch.setattr(class_counts, "MAX_SECONDS", 100.0)


def test_all_sources_with_classes_are_here():
    counted = {name for name, _ in READERS.values()}
    for name in {*registry.names("data")} - counted - {*MADE} - {*TEXTS}:
        spec = registry.find("data", name)(0).spec
        assert isinstance(spec, TextSpec), f"{name} yields classes: count them"


@pytest.mark.parametrize("name", MADE)
def test_sources_that_make_samples_have_all_classes(name):
    data = registry.find("data", name)(0)
    data.setup("fit")
    seen = set()
    for number, batch in enumerate(data.build_loader("train")):
        seen |= set(torch.as_tensor(batch[-1]).unique().tolist())
        if number == 20 or seen >= {*range(data.spec.classes)}:
            break
    assert seen == {*range(data.spec.classes)}
    assert data.count_classes("train") is None


@pytest.mark.parametrize("reader", READERS)
class TestReaders:
    def test_targets_are_counted(self, reader, tmp_path):
        data = READERS[reader][1](tmp_path, labels_of(0, 1, 1), 2)
        counts = data.count_classes("train")
        assert counts.is_complete
        assert counts.total in (18, COUNT)
        read = counts.targets / counts.total
        assert read in (1, 64)  # a mask has 64 pixels
        assert 0 < counts.classes[0] < counts.classes[1]
        assert sum(counts.classes) == counts.targets

    def test_nothing_is_said_where_all_classes_have_targets(self, reader, tmp_path, caplog):
        data = READERS[reader][1](tmp_path, labels_of(0, 1), 2)
        data.check_source()
        for split in ("train", "val", "test"):
            data.check_classes(split)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    # labels from 1, and a class that no file has
    @pytest.mark.parametrize(("labels", "absent"), [((1, 2), 0), ((0, 2), 1)])
    def test_a_class_without_targets_is_named(self, reader, labels, absent, tmp_path, caplog):
        if reader == "class folders":
            labels, absent = (0, 1), 2  # folders are counted
        data = READERS[reader][1](tmp_path, labels_of(*labels), 3)
        data.check_classes("train")
        (message,) = (record.getMessage() for record in caplog.records)
        assert f"has class {absent}" in message
        assert ", train: " in message

    def test_a_single_class_is_refused(self, reader, tmp_path):
        if reader == "class folders":
            return  # one folder has no labels at all
        data = READERS[reader][1](tmp_path, labels_of(1), 2)
        pattern = r", train: all (samples|pixels) have class \d, no .* has class \d; a model would"
        with pytest.raises(DataError, match=pattern):
            data.check_classes("train")

    def test_a_single_class_to_evaluate_is_named(self, reader, tmp_path, caplog):
        if reader == "class folders":
            return  # one folder has no labels at all
        data = READERS[reader][1](tmp_path, labels_of(1), 2)
        data.check_classes("test")
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert ", test: all" in record.getMessage()


@pytest.mark.parametrize("batch_size", [4, 7])
def test_a_stream_is_counted_while_it_is_read(batch_size, tmp_path, caplog):
    for split in ("train", "val", "test"):
        rows = [{"text": text(n), "label": 1 + n % 2} for n in range(COUNT)]
        jsonl(tmp_path / f"{split}.jsonl", rows)
    data = TextClassification(
        0,
        path=str(tmp_path),
        classes=3,
        val="validation",
        stream=StreamOptions(samples=20),
        batch_size=batch_size,
    )
    data.setup("fit")
    loader = data.build_loader("train")
    for epoch in range(2):
        loader.set_epoch(epoch)
        for _ in loader:
            assert bool(caplog.records) == bool(epoch)
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.endswith("stream of train: no sample has class 0; labels count from 0")


class TestMasks:
    def test_a_class_that_is_ignored_by_default_is_refused(self, tmp_path):
        data = open_masks(tmp_path, labels_of(0, 255), 2)
        with pytest.raises(OptionError) as refusal:
            data.check_classes("train")
        message = str(refusal.value)
        assert refusal.value.key == "ignore"
        assert message.startswith(f"{tmp_path}/masks, train: all pixels have class 0, no pixel has")
        assert "% of pixels are 255, which means no class" in message
        assert "data.numbers, such as [0, 255], or write masks of 0, 1" in message
        assert message.endswith("if it is none, set data.ignore to [255]")

    def test_numbers_of_classes_are_listed(self, tmp_path, caplog):
        data = open_masks(tmp_path, labels_of(0, 255), 2, numbers=(0, 255))
        data.check_classes("train")
        data.setup("fit")
        _, masks = next(iter(data.build_loader("train")))
        assert set(masks.unique().tolist()) == {0, 1}
        assert caplog.records == []

    def test_256_classes_have_the_number_255(self, tmp_path):
        data = open_masks(tmp_path, labels_of(0, 255), 256)
        counts = data.count_classes("train")
        assert counts.present == (0, 255)

    def test_255_between_sound_classes_is_left_out(self, tmp_path, caplog):
        data = open_masks(tmp_path, labels_of(0, 1, 255), 2)
        data.check_classes("train")
        assert caplog.records == []

    def test_a_chosen_number_and_a_missing_class_are_named(self, tmp_path, caplog):
        data = open_masks(tmp_path, labels_of(0, 1, 255), 3, ignore=(255,))
        data.check_classes("train")
        (message,) = (record.getMessage() for record in caplog.records)
        assert "no pixel has class 2; " in message
        assert "% of pixels are 255, which means no class" in message

    def test_a_high_share_without_a_class_is_named(self, tmp_path, caplog):
        data = open_masks(tmp_path, labels_of(0, 1, 2, 255, 255, 255), 3)
        data.check_classes("train")
        (message,) = (record.getMessage() for record in caplog.records)
        assert "% of pixels are 255" in message

    @pytest.mark.parametrize(
        ("classes", "options"), [((0, 1), {"first": 1}), ((0, 1), {"ignore": (0,)}), ((255,), {})]
    )
    def test_what_is_left_is_counted(self, classes, options, tmp_path):
        data = open_masks(tmp_path, labels_of(*classes), 2, **options)
        with pytest.raises((DataError, OptionError), match=r"masks, train: (all|no) pixel"):
            data.check_classes("train")

    def test_the_class_that_the_task_ignores_is_left_out(self, tmp_path, caplog):
        data = open_masks(tmp_path, labels_of(0, 1, 2), 3)
        data.ignored_target = 0
        counts = data.count_classes("train")
        assert counts.present == (1, 2)
        assert counts.missing == ()
        data.check_classes("train")
        assert caplog.records == []
        data = open_masks(tmp_path, labels_of(0, 1), 2)
        data.ignored_target = 0
        with pytest.raises(DataError, match="all pixels have class 1; "):
            data.check_classes("train")

    def test_what_was_read_is_stated(self, tmp_path, monkeypatch, caplog):
        data = open_masks(tmp_path, labels_of(0), 2)
        monkeypatch.setattr(class_counts, "MAX_SECONDS", 0.0)
        monkeypatch.setattr(class_counts, "LEAST_READ", 5)
        # a class that was not found in a part of the masks may be in the others
        data.check_classes("train")
        (message,) = (record.getMessage() for record in caplog.records)
        assert "no pixel has class 1 (5 of 18 samples were read)" in message

    @pytest.mark.parametrize(
        ("options", "key"),
        [
            ({"numbers": (0,)}, "numbers"),
            ({"numbers": (7, 7)}, "numbers"),
            ({"numbers": (0, 255), "first": 1}, "first"),
        ],
    )
    def test_numbers_are_one_for_each_class(self, options, key, tmp_path):
        with pytest.raises(OptionError) as refusal:
            open_masks(tmp_path, labels_of(0, 1), 2, **options)
        assert refusal.value.key == key

    def test_a_number_of_no_class_names_the_ways_on(self, tmp_path):
        data = open_masks(tmp_path, labels_of(0, 128), 2)
        data.setup("fit")
        with pytest.raises(DataError, match=r"number 128 .* set data.classes or data.numbers, or"):
            list(data.build_loader("train"))


def test_text_without_targets_is_refused():
    samples = [(torch.tensor([0, 1]), torch.full((2,), IGNORE_INDEX))] * 4
    data = pass_datasets(samples, TextSpec(2, TOKENS, "some"))
    with pytest.raises(DataError, match="data, train: no token has a target; 100"):
        data.check_classes("train")


def test_names_of_classes_are_listed_with_their_numbers(caplog):
    samples = [(torch.zeros(1, 8, 8), 1 + number % 2) for number in range(COUNT)]
    spec = ImageSpec(1, 8, 8, 3, names=("cat", "dog", "owl"))
    pass_datasets(samples, spec).check_classes("train")
    assert "no sample has class 0 (cat); labels count from 0" in caplog.text
