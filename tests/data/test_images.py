"""Images of users: where they come from, what they become, in what order, and what is not tolerated."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import encode, parquet

from zoo.data.images import Images
from zoo.data.tables.stream import StreamOptions
from zoo.data.vision import Augmentation, ImageDecoder
from zoo.errors import DataError, OptionError


@pytest.fixture
def folder(tmp_path):
    """A folder of parquet files: 40 images to train on, 10 to test on."""
    parquet(tmp_path / "set" / "train-0.parquet", 20)
    parquet(tmp_path / "set" / "train-1.parquet", 20, first=20)
    parquet(tmp_path / "set" / "test-0.parquet", 10)
    return str(tmp_path / "set")


def images(path, **options):
    data = Images(0, path=str(path), **{"size": 8, "batch_size": 8, **options})
    data.setup("fit")
    data.setup("test")
    return data


def labels(loader):
    return [label for batch in loader for label in batch[1].tolist()]


def first(loader):
    return next(iter(loader))[0]


def test_facts_are_those_of_the_table_or_of_the_recipe(folder):
    assert Images(0, path=folder, size=16).spec.classes == 4
    assert Images(0, path="nowhere", size=16, classes=7).spec.grid == (16, 16)


def test_parts_are_splits_or_shares_of_the_training_split(folder):
    data = images(folder, val=0.25)
    assert [data.count_samples(part) for part in ("train", "val", "test")] == [30, 10, 10]
    own = set(data.subsets["train"].numbers)
    assert own.isdisjoint(data.subsets["val"].numbers)
    assert images(folder, val="test", test=0.25).count_samples("train") == 30


def test_a_folder_of_classes_is_read(tmp_path):
    for number in range(8):
        path = tmp_path / "set" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number))
    data = images(tmp_path / "set", val=0.25, test=0.25)
    assert data.spec.classes == 2
    assert (
        sorted(labels(data.train_dataloader())) == [0, 0, 1, 1] or data.count_samples("train") == 4
    )


def test_a_glob_of_parquet_files_is_one_training_split(folder):
    data = images(f"{folder}/*.parquet", val=0.1, test=0.1)
    assert [data.count_samples(part) for part in ("train", "val", "test")] == [40, 5, 5]


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_pixels_are_those_of_the_files(folder, keep):
    from PIL import Image

    data = images(folder, keep=keep)
    loaded, numbers = data.subsets["test"].__getitems__([3, 1])[:2]
    expected = np.asarray(Image.open(io.BytesIO(encode(3)))).transpose(2, 0, 1)
    assert np.array_equal(loaded[0].numpy(), expected)
    assert numbers.tolist() == [3, 1]


def test_decoded_images_are_kept_for_the_next_time(folder, cache):
    before = first(images(folder).test_dataloader())
    files = {path: path.stat().st_mtime_ns for path in cache.glob("*.tokens")}
    assert len(files) == 2
    assert torch.equal(first(images(folder).test_dataloader()), before)
    assert {path: path.stat().st_mtime_ns for path in cache.glob("*.tokens")} == files


def test_of_a_share_only_its_own_images_are_decoded(folder, cache):
    data = Images(0, path=folder, size=8, batch_size=8, val=0.25, test=0.25)
    data.setup("test")
    (file,) = cache.glob("*.tokens")
    assert file.stat().st_size < 10 * 3 * 8 * 8 + 1000
    held = data.subsets["test"].rows
    assert held.numbers.tolist() == data.subsets["test"].numbers.tolist()
    kept, plain = (
        each.test_dataloader() for each in (data, images(folder, val=0.25, test=0.25, keep=0.0))
    )
    assert all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
        for a, b in zip(kept, plain, strict=True)
    )


def test_a_split_that_is_no_part_of_a_test_is_not_decoded(folder, monkeypatch):
    numbers = []
    monkeypatch.setattr(
        ImageDecoder,
        "decode",
        lambda self, content, crop: numbers.append(content) or np.zeros(self.shape, "u1"),
    )
    Images(0, path=folder, size=8).setup("test")
    assert len(numbers) == 10


def test_seeds_share_what_is_decoded_for_training(folder, cache):
    for seed in (0, 1):
        Images(seed, path=folder, size=8).setup("fit")
    assert len(list(cache.glob("*.tokens"))) == 1


@pytest.mark.parametrize("path", ["nowhere", "nowhere/*.tar"])
def test_a_path_to_nothing_is_told_without_reading(path, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset_builder", None)
    with pytest.raises(DataError, match=r"no such file or folder|no file matches"):
        Images(0, path=path, classes=2).check_source()


def test_a_path_to_something_is_not_read(folder, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset_builder", None)
    for path in (folder, f"{folder}/*.parquet", "hub:someone/something"):
        Images(0, path=path, classes=2).check_source()


def test_batches_are_finished_on_the_device(folder):
    data = images(folder, mean=(0.4, 0.5, 0.6), std=(0.2,))
    batch = next(iter(data.test_dataloader()))
    finished, same = data.on_after_batch_transfer(batch, 0)
    expected = (batch[0].float() / 255 - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / 0.2
    torch.testing.assert_close(finished, expected)
    assert same is batch[1]


@pytest.mark.parametrize("options", [{"keep": 0.0}, {"keep": 0.0, "workers": 2}, {"workers": 1}])
def test_the_order_does_not_depend_on_what_loads(folder, options):
    plain, other = images(folder).train_dataloader(), images(folder, **options).train_dataloader()
    for loader in (plain, other):
        loader.epoch_sampler.set_epoch(3)
    pairs = zip(plain, other, strict=True)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def test_a_loader_goes_on_in_the_middle_of_an_epoch(folder):
    whole = [batch[0] for batch in images(folder).train_dataloader()]
    loader = images(folder).train_dataloader()
    loader.load_state_dict({"consumed": 2 * 8})
    assert all(torch.equal(a[0], b) for a, b in zip(loader, whole[2:], strict=True))


@pytest.mark.parametrize("keep", [0.0, 1.0])
@pytest.mark.parametrize("workers", [0, 1])
def test_corrupt_samples_are_skipped_up_to_a_share(tmp_path, keep, workers, caplog):
    path = parquet(tmp_path / "train.parquet", 20, broken=(3,))
    data = images(path, val=0.1, test=0.1, skip=0.07, keep=keep, workers=workers)
    found = [labels(data.build_loader(part)) for part in ("train", "val", "test")]
    assert sum(map(len, found)) == 19
    assert "row 3, 3.png" in caplog.text


def test_more_corrupt_samples_than_tolerated_are_told(tmp_path):
    path = parquet(tmp_path / "train.parquet", 20, broken=(3, 4, 5))
    data = images(path, val=0.05, test=0.05, skip=0.07)
    message = r"train.parquet, train, row \d, \d.png: not an image of a known format; corrupt: 2 of 18 samples, more than data.skip"
    with pytest.raises(DataError, match=message):
        list(data.train_dataloader())


def test_a_label_out_of_bounds_counts_as_corrupt(folder):
    data = images(folder, classes=3)
    with pytest.raises(DataError, match="label 3 is none of 3 classes"):
        list(data.train_dataloader())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere"}, "nowhere: no such file or folder"),
        ({"path": "nowhere/*.tar"}, "nowhere/*.tar: no file matches"),
        ({"train": "learn"}, "no split learn; there are"),
        ({"image": "picture"}, "no column picture in train; there are image, label"),
    ],
)
def test_data_that_is_not_there_is_told(folder, options, message):
    with pytest.raises(DataError) as error:
        images(**{"path": folder, **options})
    assert message in str(error.value)


def test_files_that_are_no_tables_are_told(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"a.parquet: cannot be read"):
        images(tmp_path / "a.parquet", classes=2)
    (tmp_path / "a.zip").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"files of .zip; expected one of .parquet"):
        images(tmp_path / "a.zip", classes=2)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"path": None}, "path"),
        ({"val": 0.6, "test": 0.5}, "val"),
        ({"val": "train"}, "train"),
        ({"mean": (0.1, 0.2)}, "mean"),
        ({"std": (0.0,)}, "std"),
        ({"stream": StreamOptions(samples=8)}, "stream"),
        ({"stream": StreamOptions(samples=8), "val": "test", "workers": 2}, "workers"),
    ],
)
def test_options_that_cannot_work_are_refused(options, key):
    with pytest.raises(OptionError) as error:
        Images(0, **{"path": "set", **options})
    assert error.value.key == key


def stream(folder, **options):
    return images(folder, val="test", stream=StreamOptions(samples=24, buffer=16), **options)


def test_a_stream_is_a_function_of_seed_and_epoch(folder):
    one, two = stream(folder).train_dataloader(), stream(folder, workers=1).train_dataloader()
    epochs = []
    for epoch in (0, 1):
        one.set_epoch(epoch)
        two.set_epoch(epoch)
        epochs.append([batch[0] for batch in one])
        assert all(torch.equal(a, b[0]) for a, b in zip(epochs[-1], two, strict=True))
    assert len(epochs[0]) == len(one) == 3
    assert not torch.equal(epochs[0][0], epochs[1][0])


def test_a_stream_goes_on_in_the_middle_of_an_epoch(folder):
    whole = [batch[0] for batch in stream(folder).train_dataloader()]
    loader = stream(folder).train_dataloader()
    loader.load_state_dict({"consumed": 2 * 8})
    rest = [batch[0] for batch in loader]
    assert len(rest) == 1
    assert torch.equal(rest[0], whole[2])
    assert loader.state_dict() == {"consumed": 0}


def test_a_stream_is_measured_whole(folder):
    data = stream(folder)
    assert len(labels(data.test_dataloader())) == data.count_samples("test") == 10


def test_augmentation_is_for_training(folder):
    data = images(folder, augment=Augmentation(flip=1.0))
    batch = next(iter(data.test_dataloader()))
    assert torch.equal(
        data.transform(*batch, training=True, classes=4)[0],
        data.transform(*batch, training=False, classes=4)[0].flip(-1),
    )


def test_a_missing_file_of_a_folder_is_corrupt(tmp_path):
    for number in range(8):
        path = tmp_path / "set" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number))
    data = images(tmp_path / "set", val=0.25, test=0.25, keep=0.0)
    for path in Path(tmp_path / "set").rglob("*.png"):
        path.unlink()
    with pytest.raises(DataError, match=r"\.png"):
        list(data.train_dataloader())


# images that would take too much memory


def encode_flat(size):
    """A file of a grey image, small however large the image is."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", size, 90).save(file, "PNG")
    return file.getvalue()


@pytest.mark.robustness
@pytest.mark.parametrize("size", [(1, 1_000_000), (30_000, 1)])
@pytest.mark.parametrize("resize", ["crop", "exact"])
def test_an_image_that_is_far_too_narrow_is_refused(size, resize):
    with pytest.raises(ValueError, match="too narrow, expected sides of at most 256 to 1"):
        ImageDecoder((224, 224), 3, resize).decode(encode_flat(size))


def test_only_the_part_that_is_kept_is_enlarged(monkeypatch):
    from PIL.Image import Image

    sizes, resize = [], Image.resize
    monkeypatch.setattr(
        Image, "resize", lambda self, size, *rest: sizes.append(size) or resize(self, size, *rest)
    )
    found = ImageDecoder((224, 224), 1, "crop", 1.0).decode(encode_flat((4, 1000)))
    assert sizes == [(224, 224)]
    assert (found == 90).all()


@pytest.mark.robustness
def test_too_many_pixels_are_refused_before_they_are_decoded(monkeypatch, recwarn):
    from PIL import Image

    content, before = encode_flat((1100, 1000)), Image.MAX_IMAGE_PIXELS
    assert ImageDecoder((8, 8), 1, "crop", 1.1).decode(content).shape == (1, 8, 8)
    monkeypatch.setattr(Image.Image, "convert", None)
    for limit in (1.0, 0.4):
        with pytest.raises(ValueError, match=rf"more than {limit:g} mega.*data\.max_megapixels"):
            ImageDecoder((8, 8), 1, "crop", limit).decode(content)
    assert before == Image.MAX_IMAGE_PIXELS
    assert not recwarn


def test_a_file_of_too_many_pixels_is_named(tmp_path):
    for number in range(8):
        path = tmp_path / "set" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number, (40, 40)))
    options = {"val": 0.25, "test": 0.25, "max_megapixels": 0.001}
    with pytest.raises(DataError, match=r"\d\.png: more than 0.001 megapixels"):
        list(images(tmp_path / "set", **options).train_dataloader())


# tables that name files


def name_images(folder, *paths):
    """A table in a folder `set`, of images that are named by paths."""
    (folder / "set").mkdir()
    (folder / "set" / "own.png").write_bytes(encode(0))
    (folder / "secret.png").write_bytes(encode(1))
    (folder / "set" / "link.png").symlink_to(folder / "secret.png")
    rows = [f"{path},{number % 2}" for number, path in enumerate(paths)]
    (folder / "set" / "train.csv").write_text("\n".join(["image,label", *rows]))
    return folder / "set" / "train.csv"


def read_named(path, **options):
    options = {"classes": 2, "val": 0.25, "test": 0.25, "size": 8, "batch_size": 4, **options}
    data = Images(0, path=str(path), **options)
    data.setup("fit")
    return list(data.train_dataloader())


@pytest.mark.robustness
@pytest.mark.parametrize("keep", [0.0, 1.0])
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/etc/passwd", "not below .*set"),
        ("../secret.png", "not below .*set"),
        ("link.png", "not below .*set"),
        ("file:///etc/passwd", "an address; expected a file below"),
        ("http://127.0.0.1:9/a.png", "data.allow_remote=true if you trust"),
        ("simplecache::file:///etc/passwd", "no file below"),
        ("zip://a.png::/etc/passwd", "not below .*set"),
    ],
)
def test_a_table_may_not_name_other_files(tmp_path, monkeypatch, path, problem, keep):
    monkeypatch.setattr("fsspec.open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(DataError, match=rf"row \d.*{problem}"):
        read_named(name_images(tmp_path, *[path] * 8), keep=keep)


@pytest.mark.robustness
def test_a_table_may_name_files_beneath_its_folder(tmp_path):
    table = name_images(tmp_path, "own.png", tmp_path / "set" / "own.png", *["own.png"] * 6)
    (batch,) = read_named(table)
    assert batch[0].shape == (4, 3, 8, 8)


@pytest.mark.robustness
def test_addresses_are_read_where_that_is_allowed(tmp_path, monkeypatch):
    opened = []

    def fetch(path, mode):
        opened.append(path)
        return io.BytesIO(encode(0))

    monkeypatch.setattr("fsspec.open", fetch)
    table = name_images(tmp_path, *["https://example.org/a.png"] * 8)
    assert len(read_named(table, allow_remote=True, keep=0.0)[0][1]) == 4
    assert {*opened} == {"https://example.org/a.png"}
    table.write_text(table.read_text().replace("https://", "file:///"))
    with pytest.raises(DataError, match="an address; expected a file"):
        read_named(table, allow_remote=True, keep=0.0)


@pytest.mark.robustness
def test_swapped_columns_are_told_in_one_line(folder):
    with pytest.raises(DataError, match=r"column label holds numbers, not images.*swapped\?$"):
        images(folder, image="label", label="image", classes=4)


@pytest.mark.parametrize(
    "options", [{"keep": 0.0}, {"aspect": "keep"}, {"augment": Augmentation(area=0.5)}]
)
def test_the_majority_class_is_known_without_decoded_images(folder, options):
    data = images(folder, val=0.25, **options)
    train, test = (
        np.bincount(labels(loader)) for loader in (data.train_dataloader(), data.test_dataloader())
    )
    found = data.compute_baselines()
    majority = {float(test[one] / test.sum()) for one in np.flatnonzero(train == train.max())}
    assert found["test/accuracy"]["majority class"] in [pytest.approx(one) for one in majority]
