"""Texts with labels: where they come from, what they become, and what is not tolerated."""

import re

import numpy as np
import pytest
import torch
from tables import corpus, jsonl, text

from zoo.data.corpus.tokenizer import Characters, train_bpe
from zoo.data.spec import TextClassificationSpec as Facts
from zoo.data.spec import TextSpec
from zoo.data.synthetic.marker_offset import MARKER, SYMBOLS, MarkerOffset
from zoo.data.tables.stream import StreamOptions
from zoo.data.text_classification import TextClassification
from zoo.errors import DataError, OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(corpus(tmp_path_factory.mktemp("passages") / "set"))


def passages(path, **options):
    data = TextClassification(
        0, path=str(path), **{"length": 40, "batch_size": 8, "val": "validation", **options}
    )
    data.setup("fit")
    data.setup("test")
    return data


def read_texts(loader):
    """Texts of bytes and labels of all batches."""
    return [
        (bytes(row[row >= 0].tolist()).decode(), int(label))
        for inputs, labels in loader
        for row, label in zip(inputs, labels, strict=True)
    ]


def test_texts_are_read_with_their_labels_and_cut(folder):
    data = passages(folder)
    assert data.spec.names == ("calm", "wild")
    assert [data.count_samples(part) for part in ("train", "val", "test")] == [60, 8, 10]
    assert read_texts(data.test_dataloader()) == [(text(n)[:40], n % 2) for n in range(48, 58)]


def test_rows_are_padded_to_the_longest(tmp_path):
    rows = [{"text": "ab" * (n + 1), "label": n % 2} for n in range(4)]
    data = passages(jsonl(tmp_path / "a.jsonl", rows), val=0.25, test=0.25, classes=2, batch_size=2)
    inputs, _ = next(iter(data.train_dataloader()))
    lengths = (inputs >= 0).sum(1)
    assert inputs.shape == (2, lengths.max())
    assert all((row[length:] == -1).all() for row, length in zip(inputs, lengths, strict=True))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_tables_of_other_kinds_are_read(tmp_path, kind):
    from datasets import ClassLabel, Dataset, Features, Value

    rows = {"words": [text(n) for n in range(8)], "kind": [n % 2 for n in range(8)]}
    table = Dataset.from_dict(
        rows, Features(words=Value("string"), kind=ClassLabel(names=["a", "b"]))
    )
    getattr(table, f"to_{kind}")(tmp_path / f"a.{kind}")
    data = passages(
        tmp_path / f"a.{kind}", text="words", label="kind", classes=("a", "b"), val=0.25, test=0.25
    )
    assert data.spec.names == ("a", "b")
    assert len(read_texts(data.train_dataloader())) == 4
    if kind == "parquet":
        assert TextClassification(
            0, path=str(tmp_path / "a.parquet"), text="words", label="kind"
        ).spec.names == ("a", "b")


def test_folders_of_classes_are_read(tmp_path):
    for number in range(12):
        file = (
            tmp_path
            / "set"
            / ("train", "test")[number // 8]
            / ("calm", "wild")[number % 2]
            / f"{number:02}.txt"
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text(number))
    data = passages(tmp_path / "set", val=0.25, length=100)
    assert data.spec.names == ("calm", "wild")
    assert [data.count_samples(part) for part in ("train", "val", "test")] == [6, 2, 4]
    assert dict(read_texts(data.test_dataloader())) == {text(n): n % 2 for n in range(8, 12)}


def test_tokens_are_those_of_a_tokenizer(folder, tmp_path):
    (tmp_path / "words.json").write_text(train_bpe([text(n) for n in range(9)], 300).json)
    data = passages(folder, tokenizer=str(tmp_path / "words.json"))
    inputs, _ = next(iter(data.test_dataloader()))
    assert data.spec.vocabulary.decode(inputs[0][inputs[0] >= 0].tolist()) == text(48)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_of_texts_goes_on(folder, workers):
    options = {
        "stream": StreamOptions(samples=30, buffer=8),
        "classes": ("calm", "wild"),
        "workers": workers,
    }
    whole = read_texts(passages(folder, **options).train_dataloader())
    loader = passages(folder, **options).train_dataloader()
    loader.load_state_dict({"consumed": 16})
    assert read_texts(loader) == whole[16:]
    assert len({words for words, _ in whole}) > 5


@pytest.mark.parametrize(
    ("words", "label", "message"),
    [
        ("", "calm", "there is no text"),
        (None, "calm", "there is no text"),
        (7, "calm", "7 is not text"),
        ("abc", "odd", r"label 'odd' is none of 2 classes \(calm, wild\)"),
        ("abc", None, "there is no label"),
        ("abc", "", "there is no label"),
    ],
)
def test_a_row_that_is_no_sample_is_told_or_skipped(tmp_path, words, label, message, caplog):
    rows = [{"text": text(n), "label": ("calm", "wild")[n % 2]} for n in range(19)]
    path = jsonl(tmp_path / "a.jsonl", [*rows[:5], {"text": words, "label": label}, *rows[5:]])
    options = {"classes": ("calm", "wild"), "val": 0.05, "test": 0.05}
    with pytest.raises(DataError, match=rf"a.jsonl, train, row 5: {message}; corrupt: 1 of"):
        [
            read_texts(passages(path, **options).build_loader(part))
            for part in ("train", "val", "test")
        ]
    found = [
        read_texts(passages(path, skip=1.0, **options).build_loader(part))
        for part in ("train", "val", "test")
    ]
    assert sum(map(len, found)) == 19
    assert re.search(message, caplog.text)


def test_labels_that_do_not_tell_are_asked_for(tmp_path, folder):
    path = jsonl(tmp_path / "a.jsonl", [{"text": text(n), "label": n % 2} for n in range(9)])
    with pytest.raises(OptionError, match="set the number of classes"):
        TextClassification(0, path=str(path)).spec  # noqa: B018
    with pytest.raises(
        OptionError, match="a stream does not determine the names of classes; list them"
    ):
        TextClassification(0, path=folder, val="validation", stream=StreamOptions(samples=8)).spec  # noqa: B018


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"path": None}, "path"),
        ({"stream": StreamOptions(samples=8)}, "stream"),
        ({"stream": StreamOptions(samples=8), "val": "test", "workers": 2}, "workers"),
    ],
)
def test_options_that_cannot_work_are_refused(options, key):
    with pytest.raises(OptionError) as error:
        TextClassification(0, **{"path": "set", **options})
    assert error.value.key == key


def test_what_a_model_knows_is_adopted(folder):
    data = passages(folder)
    known = Facts(12, Characters("abc"), 2, ("wild", "calm"))
    data.adopt_spec(known)
    assert data.spec == Facts(40, Characters("abc"), 2, ("wild", "calm"))
    with pytest.raises(OptionError, match="was not trained on texts with labels"):
        data.adopt_spec(TextSpec(12, Characters("abc")))


# marked


def list_samples(part="train", **options):
    data = MarkerOffset(0, train=200, val=50, test=50, **options)
    return [pair for batch in data.build_loader(part) for pair in zip(*batch, strict=True)]


def test_the_class_is_the_letter_after_the_mark():
    pairs = list_samples(offset=3)
    for row, label in pairs:
        (place,) = torch.nonzero(row == MARKER)[:, 0]
        assert row[place + 3] == label
        assert 12 <= (row >= 0).sum() <= 24
    assert len(pairs) == 200
    assert np.bincount([int(label) for _, label in pairs]).min() > 10


def test_marked_texts_are_new_in_each_epoch_and_part():
    loader = MarkerOffset(0, train=64).build_loader("train")
    firsts = []
    for epoch in (0, 1, 0):
        loader.epoch_sampler.set_epoch(epoch)
        firsts.append(next(iter(loader))[0])
    assert torch.equal(firsts[0], firsts[2])
    assert not torch.equal(firsts[0][:, :12], firsts[1][:, :12])
    assert SYMBOLS.decode(list_samples("val")[0][0][:8].tolist()) != SYMBOLS.decode(
        list_samples("test")[0][0][:8].tolist()
    )


@pytest.mark.parametrize(("options", "key"), [({"least": 25}, "least"), ({"offset": 12}, "offset")])
def test_marks_that_cannot_be_are_refused(options, key):
    with pytest.raises(OptionError) as error:
        MarkerOffset(0, **options)
    assert error.value.key == key
