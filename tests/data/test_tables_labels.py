"""Cells are what the file says: words that programs take for nothing, and labels beside an empty cell."""

import csv
import json

import pytest
from tables import text

from zoo.data.tables.labelled_table import read_label
from zoo.data.tables.open_table import SplitOptions
from zoo.data.tables.stream import StreamOptions
from zoo.data.text_classification import TextClassification
from zoo.data.text_stream import TextStream
from zoo.data.text_table import TableDocuments
from zoo.errors import DataError, OptionError

WORDS = ("NA", "null", "None", "nan", "N/A", "inf", "true", "007", "1e3", " ", "2020-01-01", "#N/A")


def write_table(path, columns):
    """A table of a kind that the name says, as common programs write it."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([list(columns), *([row[key] for key in columns] for row in rows)])
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        from datasets import Dataset

        Dataset.from_dict(columns).to_parquet(path)
    return path


def read_training(path, **options):
    given = {"length": 40, "batch_size": 8, "val": 0.1, "test": 0.1, **options}
    data = TextClassification(0, path=str(path), **given)
    data.setup("fit")
    data.setup("test")
    found = {}
    for split in ("train", "val", "test"):
        for inputs, labels in data.build_loader(split):
            for row, label in zip(inputs, labels, strict=True):
                found[bytes(row[row >= 0].tolist()).decode()] = int(label)
    return data, found


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_all_words_are_text(tmp_path, kind):
    path = write_table(tmp_path / f"a.{kind}", {"id": [*range(24)], "text": [*WORDS, *[""] * 12]})
    source = TableDocuments(str(path), "text", "", SplitOptions("train", 0.2, 0.2), 0)
    assert [document.text for document in source.read()] == list(WORDS)


def test_all_words_are_text_in_folders_and_streams(tmp_path):
    for split in ("train", "validation", "test"):
        write_table(tmp_path / f"{split}.csv", {"text": [f"{word} " for word in WORDS], "n": WORDS})
    source = TableDocuments(str(tmp_path), "n", "", SplitOptions("train", "validation", "test"), 0)
    assert [document.text for document in source.read()] == [*WORDS] * 3
    read = "".join(f"{word} " for word in WORDS)
    stream = TextStream(0, path=str(tmp_path), length=len(read) - 1, between="")
    stream.setup("test")
    (batch,) = stream.test_dataloader()
    assert bytes(batch.inputs[0].tolist()).decode() == read[:-1]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_files_are_utf8_with_or_without_a_mark(tmp_path, kind, mark):
    path = write_table(tmp_path / f"a.{kind}", {"text": ["caf\u00e9"] * 9})
    content = path.read_bytes()
    path.write_bytes(mark + content)
    splits = SplitOptions("train", 0.2, 0.2)
    source = TableDocuments(str(path), "text", "", splits, 0)
    assert {document.text for document in source.read()} == {"caf\u00e9"}
    if kind == "csv":
        for encoding in ("latin-1", "utf-16"):
            other = tmp_path / f"{encoding}.csv"
            other.write_bytes(content.decode().encode(encoding))
            with pytest.raises(DataError, match=rf"{encoding}.csv.* is not UTF-8, .* save it as"):
                TableDocuments(str(other), "text", "", splits, 0).read()


@pytest.mark.parametrize("streaming", [False, True], ids=["held", "streamed"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("form", [int, float, bool], ids=["whole", "floating", "boolean"])
def test_an_empty_cell_changes_no_other_label(tmp_path, form, kind, streaming):
    labels = [form(number % 2) for number in range(20)]
    given = [None if number == 7 else label for number, label in enumerate(labels)]
    columns = {"text": [text(n) + str(n) for n in range(20)], "label": given}
    if kind in ("csv", "tsv"):
        columns["label"] = ["" if one is None else str(one).lower() for one in given]
    path = write_table(tmp_path / f"train.{kind}", columns)
    options = {"classes": 2, "length": 99}
    if form is bool and kind in ("csv", "tsv"):
        options["classes"] = ("false", "true")
    if streaming:
        options |= {"stream": StreamOptions(samples=20, buffer=1), "val": "train", "test": "train"}
        # the same rows are named as another split
        for split in ("validation", "test"):
            write_table(tmp_path / f"{split}.{kind}", columns)
        path, options = tmp_path, {**options, "val": "validation", "test": "test"}
    with pytest.raises(DataError, match=r"row 7: there is no label; corrupt: 1 of"):
        read_training(path, **options)
    _, found = read_training(path, skip=0.2, **options)
    assert found == {
        words: number % 2
        for number, words in enumerate(columns["text"])
        if given[number] is not None
    }


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_labels_are_the_names_that_the_file_has(tmp_path, kind):
    labels = ("007", "7", "NA", "null", "12345678901234567890")
    columns = {"text": [text(n) + str(n) for n in range(30)], "label": [*labels] * 6}
    data, found = read_training(write_table(tmp_path / f"a.{kind}", columns), length=99)
    assert data.spec.names == tuple(sorted(labels))
    expected = dict(zip(columns["text"], columns["label"], strict=True))
    assert {words: data.spec.names[label] for words, label in found.items()} == expected


def test_booleans_have_names(tmp_path):
    columns = {"text": [text(n) for n in range(20)], "label": [n % 3 == 0 for n in range(20)]}
    for kind in ("jsonl", "parquet"):
        data, _ = read_training(write_table(tmp_path / f"a.{kind}", columns))
        assert data.spec.names == ("false", "true")


def test_labels_that_cannot_be_told_are_asked_for(tmp_path):
    columns = {"text": ["a"] * 20, "label": ["1", "1.0"] * 10}
    path = write_table(tmp_path / "a.csv", columns)
    with pytest.raises(OptionError, match=r"1 and 1.0 are one number; list the names"):
        read_training(path)
    dates = write_table(tmp_path / "b.jsonl", {**columns, "label": ["2020-01-01"] * 20})
    with pytest.raises(OptionError, match=r"the labels are timestamp.*list their names"):
        read_training(dates)
    with pytest.raises(DataError, match="neither text nor a number; write it as text"):
        read_training(dates, classes=("2020-01-01", "2020-01-02"))


@pytest.mark.parametrize(
    ("value", "classes", "names", "expected"),
    [
        (1, 2, (), 1),
        (1.0, 2, (), 1),
        ("1", 2, (), 1),
        ("1.0", 2, (), 1),
        (True, 2, (), 1),
        ("b", 2, ("a", "b"), 1),
        (1, 2, ("a", "b"), 1),
        ("1.0", 2, ("1", "2"), 0),
        (2.0, 2, ("1", "2"), 1),
        (True, 2, ("false", "true"), 1),
        ("007", 2, ("7", "007"), 1),
        (0, 2, ("1", "2"), None),
        (True, 2, ("no", "yes"), None),
        (True, 3, (), None),
        ("007", 9, (), None),
        ("1.5", 2, (), None),
        (0.5, 2, (), None),
        (-1, 2, (), None),
        (2, 2, (), None),
        (float("inf"), 2, (), None),
        (10**30, 2, (), None),
        ("9" * 9999, 2, (), None),
    ],
)
def test_a_label_is_a_name_or_a_number(value, classes, names, expected):
    if expected is None:
        with pytest.raises(ValueError, match=f"is none of {classes} classes"):
            read_label(value, classes, names)
    else:
        assert read_label(value, classes, names) == expected


@pytest.mark.parametrize("value", [None, "", float("nan")])
def test_no_label_is_no_class(value):
    with pytest.raises(ValueError, match="there is no label"):
        read_label(value, 2, ("nan", "None"))
