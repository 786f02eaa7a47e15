"""What is kept of a table belongs to that table: its rows, and the errors of its rows."""

import os

import numpy as np
import pytest
from PIL import Image

from zoo.data.cache import cache_folder
from zoo.data.images import DecodedRows, ImageRowReader, Images
from zoo.data.tables.open_table import open_tables


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("table.csv", ("text\nold\n", "text\nnew\n")),
        ("table.jsonl", ('{"text": "old"}\n', '{"text": "new"}\n')),
        ("folder/train.csv", ("text\nold\n", "text\nnew\n")),
    ],
)
def test_a_table_that_takes_the_name_and_the_time_of_another_is_read(name, texts, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    given = str(path if path.parent == tmp_path else path.parent)
    for text, expected in zip(texts, ("old", "new"), strict=True):
        path.write_text(text)
        # as a copy or an archive may leave it
        os.utime(path, (1e9, 1e9))
        assert [*open_tables(given)["train"]["text"]] == [expected]


def test_an_error_that_is_kept_names_the_row_of_its_own_table(tmp_path):
    import datasets

    sound = tmp_path / "sound.png"
    Image.new("L", (8, 8)).save(sound)
    source = Images(seed=0, path=str(tmp_path), size=8, classes=2)
    access = source.build_reader(None, "train", "t").access

    def read(image):
        table = datasets.Dataset.from_dict({"image": [str(sound), str(image)], "label": [0, 1]})
        table = table.cast_column("image", datasets.Image(decode=False))
        reader = ImageRowReader(source.decoder, 2, "table, train", access)
        return DecodedRows(table, reader, np.arange(2)).errors[1]

    for name in ("first.png", "second.png"):
        # missing, and then no image
        assert name in read(tmp_path / name)
        (tmp_path / name).write_text("none")
        assert f"{name}: not an image of a known format" in read(tmp_path / name)
    # outside the folder of the table, which is refused for another reason
    assert "/elsewhere/third.png" in read("/elsewhere/third.png")


def test_a_fifo_in_the_cache_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = Images(seed=0, path=str(tmp_path), size=8, classes=2)
    reader = source.build_reader(None, "train", "t")
    import datasets

    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    table = datasets.Dataset.from_dict({"image": [str(tmp_path / "a.png")], "label": [0]})
    table = table.cast_column("image", datasets.Image(decode=False))
    DecodedRows(table, reader, np.arange(1))
    (kept,) = cache_folder().glob("*.tokens")
    kept.unlink()
    os.mkfifo(kept)
    assert DecodedRows(table, reader, np.arange(1)).problem is None
    assert kept.is_file()
