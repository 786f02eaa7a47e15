"""What is wrong with tables and class folders: told with the place, never a traceback, and never taken for something else."""

import os

import pytest
import torch
from PIL import Image
from tables import jsonl, text

from zoo.data.corpus.tokenizer import Bytes
from zoo.data.spec import TextClassificationSpec as Facts
from zoo.data.tables.open_table import iterate_rows, open_tables
from zoo.data.tables.stream import StreamOptions
from zoo.data.text_classification import TextClassification
from zoo.data.text_stream import TextStream
from zoo.data.text_table import TextTable
from zoo.errors import DataError, OptionError

STREAM = StreamOptions(samples=8, buffer=4)
SPLITS = ("train", "validation", "test")


def stream(path, **options):
    return TextStream(
        0, path=str(path), **{"length": 8, "batch_size": 4, "samples": 400, "buffer": 4, **options}
    )


def passages(path, **options):
    return TextClassification(
        0, path=str(path), **{"length": 40, "batch_size": 4, "val": "validation", **options}
    )


def list_batches(data):
    data.setup("fit")
    return list(data.train_dataloader())


def files(folder, content, kind="csv"):
    """A folder with the three splits, of which train has this content."""
    folder.mkdir()
    for split in SPLITS:
        (folder / f"{split}.{kind}").write_bytes(
            content if split == "train" else b"text,label\nrow,calm\n"
        )
    return folder


def rows(folder, *texts):
    for split in SPLITS:
        jsonl(
            folder / f"{split}.jsonl",
            [{"text": words, "label": ("calm", "wild")[n % 2]} for n, words in enumerate(texts)],
        )
    return folder


def write_classes(folder, names, splits=SPLITS, count=4):
    for number in range(count * len(splits)):
        file = folder / splits[number // count] / names[number % len(names)] / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{names[number % len(names)]} {text(number)}")
    return folder


# streams


@pytest.mark.parametrize(
    "make", [stream, lambda path: passages(path, stream=STREAM, classes=("calm", "wild"))]
)
def test_a_stream_draws_nothing_from_the_random_state_of_the_model(tmp_path, make):
    data = make(rows(tmp_path / "set", *map(text, range(12))))
    before = torch.get_rng_state()
    list_batches(data)
    list(data.val_dataloader())
    assert torch.equal(before, torch.get_rng_state())


BROKEN = {
    "rows": (
        b"text,label\n" + b"row boat row boat,calm\n" * 9 + b"a,b,c,d\n",
        "Expected 2 fields in line 11",
    ),
    "words": (
        b"text,label\n" + b"row boat row boat,calm\n" * 9 + b"caf\xe9,calm\n",
        "train.csv is not UTF-8",
    ),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_breaks_off_a_stream_is_told(tmp_path, kind, workers, caplog):
    content, message = BROKEN[kind]
    with pytest.raises(DataError, match=message) as error:
        list_batches(stream(files(tmp_path / "set", content), workers=workers))
    assert str(error.value).startswith(f"{tmp_path}/set")
    assert "Traceback" not in str(error.value)
    assert "Failed to" not in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_in_the_middle_of_a_stream_is_told(tmp_path, monkeypatch, workers):
    def break_off(self):
        yield from [{"text": text(n)} for n in range(3)]
        raise ConnectionError("the network went away\nand more")

    monkeypatch.setattr("datasets.IterableDataset.__iter__", break_off)
    data = stream(rows(tmp_path / "set", *map(text, range(12))), workers=workers)
    with pytest.raises(DataError) as error:
        list_batches(data)
    assert (
        str(error.value)
        == f"{tmp_path}/set, stream of train: cannot be read: the network went away"
    )


def test_a_faulty_row_of_labelled_texts_breaks_off_a_stream(tmp_path):
    data = passages(
        files(tmp_path / "set", BROKEN["rows"][0]), stream=STREAM, classes=("calm", "wild")
    )
    with pytest.raises(DataError, match="Expected 2 fields"):
        list_batches(data)


def test_a_row_that_holds_no_text_is_told(tmp_path, monkeypatch):
    path = rows(tmp_path / "set", text(0), text(1), None, 7, text(4))
    monkeypatch.setattr("zoo.data.tables.stream.shuffle", lambda rows, *_: iter(rows))
    with pytest.raises(DataError, match="set, train, row 3: 7 is not text"):
        TextTable(0, path=str(path)).spec  # noqa: B018
    with pytest.raises(DataError, match="set, stream of train, row 3: 7 is not text"):
        list_batches(stream(path))


@pytest.mark.parametrize("make", [stream, lambda path: TextTable(0, path=str(path)), passages])
def test_a_column_of_lists_is_told(tmp_path, make):
    data = make(rows(tmp_path / "set", ["row", "boat"], ["life"]))
    with pytest.raises(DataError, match="column text of train holds list, not text"):
        data.setup("fit") if isinstance(data, TextStream) else data.spec


@pytest.mark.parametrize(("content", "kind"), [(b"", "jsonl"), (b"text,label\n", "csv")])
@pytest.mark.parametrize("make", [stream, passages])
def test_a_file_without_rows_is_told(tmp_path, make, content, kind):
    with pytest.raises(DataError, match="is empty"):
        list_batches(make(files(tmp_path / "set", content, kind)))


@pytest.mark.parametrize(
    "options", [{"text": "words"}, {"val": "dev"}, {"test": "dev"}, {"path": "nowhere"}]
)
def test_what_a_stream_lacks_is_told_before_it_is_read(tmp_path, options):
    path = rows(tmp_path / "set", "row", "boat")
    with pytest.raises(DataError, match=r"no (column words|split dev|such file)"):
        stream(**{"path": path, **options}).check_source()


# classes


def test_class_folders_are_streamed(tmp_path):
    path = write_classes(tmp_path / "set", ("calm", "wild"), count=6)
    data = passages(path, stream=STREAM, workers=1)
    assert data.spec.names == ("calm", "wild")
    found = [
        (bytes(row.tolist()[:4]).decode(), int(label))
        for inputs, labels in list_batches(data)
        for row, label in zip(inputs, labels, strict=True)
    ]
    assert sorted(set(found)) == [("calm", 0), ("wild", 1)]
    assert len(found) == 6


@pytest.mark.parametrize("stream", [None, STREAM])
def test_classes_keep_their_names_in_another_order(tmp_path, stream):
    data = passages(
        write_classes(tmp_path / "set", ("calm", "wild")), classes=("wild", "calm"), stream=stream
    )
    data.check_source()
    pairs = {
        (chr(row[0]), int(label))
        for inputs, labels in list_batches(data)
        for row, label in zip(inputs, labels, strict=True)
    }
    assert pairs == {("w", 0), ("c", 1)}


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (("a", "b"), "not a, b"),
        (("calm", "wild", "odd"), "not calm, wild, odd"),
        (3, "not 3 classes"),
    ],
)
def test_other_classes_than_those_of_a_table_are_refused(tmp_path, classes, message):
    data = passages(write_classes(tmp_path / "set", ("calm", "wild")), classes=classes)
    with pytest.raises(OptionError, match=f"train, has the classes calm, wild, {message}") as error:
        data.check_source()
    assert error.value.key == "classes"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (1, "1, expected at least 2"),
        ((), "0, expected at least 2"),
        (("a",), r"1 \(a\), expected at least 2"),
        (("a", "b", "a"), "a is named twice"),
    ],
)
def test_classes_that_cannot_be_told_apart_are_refused(classes, message):
    with pytest.raises(OptionError, match=message) as error:
        passages("set", classes=classes)
    assert error.value.key == "classes"


def test_labels_all_alike_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"1 \(calm\), expected at least 2"):
        passages(write_classes(tmp_path / "set", ("calm",))).spec  # noqa: B018


def test_labels_that_are_all_missing_are_told(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"text": text(n), "label": None} for n in range(4)])
    with pytest.raises(OptionError, match="no row has a label"):
        passages(path).spec  # noqa: B018


@pytest.mark.parametrize("other", ["notes/readme.txt", "train/odd.txt"])
def test_a_folder_of_two_kinds_is_refused(tmp_path, other):
    path = tmp_path / "set"
    rows(path, "row", "boat") if other.startswith("notes") else write_classes(
        path, ("calm", "wild")
    )
    (path / other).parent.mkdir(exist_ok=True)
    (path / other).write_text("read me")
    with pytest.raises(DataError, match=rf"set: contains both .*{other}.*keep one kind"):
        passages(path).spec  # noqa: B018


@pytest.mark.parametrize("options", [{}, {"classes": ("calm", "wild")}, {"classes": 2}])
def test_a_model_keeps_the_order_of_its_classes(tmp_path, options):
    data = passages(write_classes(tmp_path / "set", ("calm", "wild"), splits=("test",)), **options)
    data.adopt_spec(Facts(12, Bytes(), 2, ("wild", "calm")))
    data.setup("test")
    pairs = {
        (chr(row[0]), int(label))
        for inputs, labels in data.test_dataloader()
        for row, label in zip(inputs, labels, strict=True)
    }
    assert pairs == {("w", 0), ("c", 1)}
    assert data.spec.names == ("wild", "calm")


def test_plain_numbers_mean_what_the_recipe_lists(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"text": "cw"[n % 2], "label": n % 2} for n in range(4)])
    data = passages(path, classes=("calm", "wild"), test="train", train="none")
    data.adopt_spec(Facts(12, Bytes(), 2, ("wild", "calm")))
    data.setup("test")
    ((inputs, labels),) = data.test_dataloader()
    assert inputs[:, 0].tolist() == [99, 119, 99, 119]
    assert labels.tolist() == [1, 0, 1, 0]


@pytest.mark.robustness
def test_damaged_pages_of_parquet_are_noticed_where_they_have_checksums(tmp_path):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "tables" / "train.parquet"
    path.parent.mkdir()
    table = pyarrow.table({"number": torch.rand(10_000).numpy()})
    parquet.write_table(
        table, path, write_page_checksum=True, compression="none", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 500] = bytes(500)
    path.write_bytes(content)
    parquet.read_table(path)  # nothing would be noticed
    for name in (path, path.parent):
        with pytest.raises(DataError, match="CRC checksum verification failed"):
            open_tables(str(name))


@pytest.mark.robustness
def test_a_file_whose_name_is_not_text_is_named(tmp_path):
    for label in ("cat", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "train" / label / "a.png")
    os.rename(tmp_path / "train/cat/a.png", os.fsencode(tmp_path) + b"/train/cat/caf\xe9.png")
    with pytest.raises(DataError, match=r"train/cat/caf\\udce9\.png is not UTF-8"):
        list(iterate_rows(open_tables(str(tmp_path))["train"], "images"))


@pytest.mark.robustness
def test_a_byte_order_mark_is_no_part_of_a_column_and_other_encodings_are_told(tmp_path):
    rows = {
        "csv": "text,label\ncaf\u00e9,cat\n",
        "jsonl": '{"text": "caf\u00e9", "label": "cat"}\n',
    }
    for kind, content in rows.items():
        path = tmp_path / f"marked.{kind}"
        path.write_text(content, encoding="utf-8-sig")
        assert list(open_tables(str(path))["train"]) == [{"text": "caf\u00e9", "label": "cat"}]
        path = tmp_path / f"latin.{kind}"
        path.write_text(content, encoding="latin-1")
        with pytest.raises(DataError, match=rf"latin\.{kind}: cannot be read: .*(?i:utf-?8)"):
            open_tables(str(path))


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"text;label\nrow boat,calm\n", "separated by semicolons"),
        (b"text;label\nrow boat;calm\nrow, boat;wild\n", "line 3, saw 2.*by semicolons"),
        (b"text;label\nrow, boat;calm\n", "2 cells, and the header has 1.*by semicolons"),
        (b"text\tlabel\nrow boat\tcalm\n", "separated by tabs, and zoo reads commas in"),
        (b"text|label\nrow boat|calm\n", "separated by bars"),
        (b"text,label\nrow,boat,calm\nlife,boat,wild\n", "3 cells, and the header has 2"),
        (b"words\nrow boat\n", "text, label, and one before it words$"),
    ],
)
def test_a_separator_that_is_not_read_is_named(tmp_path, content, message):
    path = files(tmp_path / "set", content)
    with pytest.raises(DataError, match=message):
        passages(path, classes=2).setup("fit")
