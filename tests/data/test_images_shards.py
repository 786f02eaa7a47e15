"""Images in webdataset shards and on the Hub: what is read, and what is told where something is missing."""

import io
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
from pictures import encode

from zoo.data.images import Images
from zoo.data.tables import open_table
from zoo.data.tables.stream import StreamOptions, interleave
from zoo.errors import DataError

EACH = 6  # samples of a shard
SHARD = {"image": "png", "label": "cls", "classes": 2}


@pytest.fixture
def shards(tmp_path):
    """Writes three shards of six samples, of two members each; `lacking` are left out, `broken` are no images."""

    def write(*, lacking=(), broken=()):
        for number in range(3 * EACH):
            members = {
                f"{number:04}.png": encode(number),
                f"{number:04}.cls": str(number % 2).encode(),
            }
            with tarfile.open(tmp_path / f"train-{number // EACH}.tar", "a") as tar:
                for name, content in members.items():
                    info, held = tarfile.TarInfo(name), b"no image" if name in broken else content
                    info.size = len(held)
                    if name not in lacking:
                        tar.addfile(info, io.BytesIO(held))
        return tmp_path / "*.tar"

    return write


def read(path, **options):
    """The images of training, in their order, and their labels; val and test are two samples each."""
    data = Images(0, path=str(path), size=8, **{**SHARD, "val": 0.1, "test": 0.1, **options})
    data.setup("fit")
    return [
        pair
        for batch in data.train_dataloader()
        for pair in zip(*(each.numpy() for each in batch), strict=True)
    ]


def as_written(number):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(encode(number)))).transpose(2, 0, 1)


def test_each_sample_of_all_shards_is_read_with_its_class(shards):
    found = read(shards(), val=0.05, test=0.05)
    numbers = [
        next(n for n in range(3 * EACH) if np.array_equal(as_written(n), image))
        for image, _ in found
    ]
    assert len(set(numbers)) == 3 * EACH - 2
    assert [label for _, label in found] == [number % 2 for number in numbers]
    assert {number // EACH for number in numbers} == {0, 1, 2}


def test_a_folder_of_shards_is_read_by_the_names_of_its_splits(shards):
    path = shards().parent
    (path / "train-2.tar").rename(path / "test-0.tar")
    data = Images(0, path=str(path), size=8, val=0.25, **SHARD)
    data.setup("fit")
    data.setup("test")
    assert [data.count_samples(part) for part in ("train", "val", "test")] == [9, 3, 6]


@pytest.mark.parametrize("keep", [0.0, 1.0])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            {"broken": ["0009.png"]},
            r"row 9, .*train-1.tar, 0009.png: not an image of a known format",
        ),
        ({"lacking": ["0009.cls"]}, r"row 9, .*train-1.tar, 0009.png: there is no label"),
        ({"lacking": ["0009.png"]}, r"row 9, .*train-1.tar, 0009: there is no image"),
    ],
)
def test_a_corrupt_member_is_told_by_shard_and_key(shards, damage, message, keep, caplog):
    path = shards(**damage)
    with pytest.raises(DataError, match=message):
        read(path, keep=keep)
    assert len(read(path, keep=keep, skip=0.1)) == 13
    assert "train-1.tar, 0009" in caplog.text


def test_a_corrupt_member_of_a_stream_is_told_by_shard_and_key(shards):
    path = shards(broken=["0009.png"]).parent
    (path / "train-2.tar").rename(path / "test-0.tar")
    with pytest.raises(DataError, match=r"train-1.tar, 0009.png: not an image"):
        read(path, val="test", test="test", stream=StreamOptions(samples=2 * EACH, buffer=4))


def test_no_column_of_a_name_is_told_with_what_there_is(shards):
    with pytest.raises(DataError, match="no column jpg in train; there are png, cls"):
        read(shards(), image="jpg")


def test_shards_of_a_stream_are_read_by_turns():
    shards = (
        [f"{name}{n}" for n in range(count)] for name, count in (("a", 3), ("b", 1), ("c", 2))
    )
    assert list(interleave(shards, 2)) == ["a0", "b0", "a1", "a2", "c0", "c1"]
    assert list(interleave([[], [1], []], 2)) == [1]


def test_a_set_of_the_hub_is_asked_for_by_its_name(monkeypatch):
    from datasets import ClassLabel, Dataset, Features, Image

    rows = {
        "picture": [{"bytes": encode(n), "path": None} for n in range(8)],
        "kind": [n % 2 for n in range(8)],
    }
    table = Dataset.from_dict(
        rows, Features(picture=Image(), kind=ClassLabel(names=["cat", "dog"]))
    )
    asked = []
    builder = SimpleNamespace(
        download_and_prepare=lambda: None,
        as_dataset=lambda: {"train": table},
        as_streaming_dataset=lambda: {"train": table},
    )
    monkeypatch.setattr(
        "datasets.load_dataset_builder",
        lambda *words, **options: asked.append((words, options)) or builder,
    )
    data = Images(
        0, path="hub:someone/pets", image="picture", label="kind", size=8, val=0.25, test=0.25
    )
    assert data.spec.classes == 2
    data.setup("test")
    assert data.count_samples("test") == 2
    assert asked[-1] == (("someone/pets", None), {"data_files": None})


def test_a_set_of_the_hub_that_cannot_be_reached_is_told_with_what_to_do(monkeypatch):
    def unreachable(*words, **options):
        raise ConnectionError("Couldn't reach 'someone/pets' on the Hub\nand more")

    monkeypatch.setattr("datasets.load_dataset_builder", unreachable)
    with pytest.raises(DataError) as error:
        open_table.open_tables("hub:someone/pets")
    assert str(error.value) == (
        "hub:someone/pets: cannot be read: Couldn't reach 'someone/pets' on the Hub; is its name right, and is "
        "there a network? Else download it, and name its folder"
    )
    assert error.value.code == 4


@pytest.mark.robustness
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("whole", [True, False], ids=["glob", "folder"])
def test_a_shard_that_was_cut_off_is_told(shards, whole, streaming):
    """Its last samples would be missed by nobody."""
    path = shards()
    shard = path.parent / "train-1.tar"
    shard.write_bytes(shard.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"train-1.tar: the file is truncated"):
        open_table.open_tables(str(path if whole else path.parent), streaming)


@pytest.mark.robustness
def test_a_shard_with_a_damaged_header_is_told(shards):
    """Its checksum would end the archive, and all samples that follow would be missed by nobody."""
    path = shards()
    shard = path.parent / "train-1.tar"
    with tarfile.open(shard) as tar:
        places = [tar.getmembers()[number].offset for number in (0, 5)]
    content = shard.read_bytes()
    open_table._check_headers(shard)
    for place in places:
        damaged = bytearray(content)
        damaged[place + 3] ^= 1
        shard.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"train-1.tar: the header at byte {place:,} is dam"):
            open_table.open_tables(str(path))
