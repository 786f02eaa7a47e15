"""Text in the columns of tables, held or streamed: what is read, in what order, and what is told where it is missing."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tables import corpus, jsonl, text

from zoo.data.corpus import encoded_rows
from zoo.data.corpus.encoded_rows import EncodedRows, EncodingJobs
from zoo.data.corpus.tokenizer import Bytes, Characters, Subwords, train_bpe
from zoo.data.corpus.windows import Cursor, Packing
from zoo.data.sampler import ProcessShare
from zoo.data.tables import open_table
from zoo.data.text_stream import TextStream
from zoo.data.text_table import TextTable
from zoo.errors import DataError, OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(corpus(tmp_path_factory.mktemp("corpus") / "set"))


def hold(path, **options):
    return TextTable(0, path=str(path), **{"length": 16, "batch_size": 4, **options})


def stream(path, **options):
    data = TextStream(
        0, path=str(path), **{"length": 16, "batch_size": 4, "samples": 30, "buffer": 8, **options}
    )
    data.setup("fit")
    data.setup("test")
    return data


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True) if a is not None)


# held


def test_parts_are_splits_and_rows_are_joined(folder):
    data = hold(folder, between="|")
    stream = data.corpus.tokens.splits["test"]
    assert data.spec.vocabulary.decode(stream.tokens) == "".join(
        text(n) + "|" for n in range(48, 58)
    )
    assert len(stream.starts) == 10


def test_shares_are_rows_drawn_from_the_seed(folder):
    data = hold(folder, val=0.1, test=0.2)
    parts = data.corpus.splitter.split(data.corpus.documents)
    assert {part: len(found) for part, found in parts.items()} == {
        "train": 42,
        "val": 6,
        "test": 12,
    }
    names = [document.name for found in parts.values() for document in found]
    assert len(set(names)) == 60


def test_rows_without_text_are_left_out(tmp_path):
    rows = [{"text": text(n)} if n % 3 else {"text": (None, "")[n % 2]} for n in range(30)]
    data = hold(jsonl(tmp_path / "a.jsonl", rows), val=0.2, test=0.2)
    assert len(data.corpus.documents) == 20


def test_a_table_is_kept_for_the_next_time(folder, cache):
    hold(folder).corpus.tokens  # noqa: B018
    (file,) = cache.glob("*.tokens")
    before = file.stat().st_mtime_ns
    assert hold(folder).corpus.tokens.problem is None
    assert file.stat().st_mtime_ns == before
    hold(folder, val="test").corpus.tokens  # noqa: B018
    assert len(list(cache.glob("*.tokens"))) == 2


@pytest.mark.parametrize("make", [hold, stream])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nowhere"}, "nowhere: no such file or folder"),
        ({"text": "words"}, "no column words in train; there are text, label"),
        ({"val": "dev"}, "no split dev; there are train, validation, test"),
    ],
)
def test_what_is_not_there_is_told(make, folder, options, message):
    with pytest.raises(DataError) as error:
        make(**{"path": folder, **options}).spec.vocabulary  # noqa: B018
    assert message in str(error.value)
    assert error.value.code == 4


def test_a_column_that_holds_no_text_is_told(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"text": n} for n in range(9)])
    with pytest.raises(DataError, match="column text of train holds int64, not text"):
        hold(path, val=0.2, test=0.2).spec  # noqa: B018


def test_a_tokenizer_that_is_not_there_is_told(folder, monkeypatch):
    def unreachable(name):
        raise ConnectionError(f"no {name}")

    monkeypatch.setattr("tokenizers.Tokenizer.from_pretrained", unreachable)
    with pytest.raises(
        DataError,
        match="hub:someone/words: the tokenizer could not be downloaded: no someone/words; is its name",
    ):
        TextStream(0, path=folder, tokenizer="hub:someone/words").spec  # noqa: B018
    with pytest.raises(DataError, match=r"nowhere.json: no such file in"):
        TextStream(0, path=folder, tokenizer="nowhere.json").spec  # noqa: B018


def test_a_configuration_of_a_set_of_the_hub_is_named_after_a_colon(monkeypatch):
    asked = []
    builder = SimpleNamespace(download_and_prepare=lambda: None, as_dataset=dict)
    monkeypatch.setattr(
        "datasets.load_dataset_builder", lambda *words, **options: asked.append(words) or builder
    )
    open_table.open_tables("hub:someone/texts:english")
    assert asked == [("someone/texts", "english")]


def test_a_configuration_that_is_missing_is_told(monkeypatch):
    def several(*words, **options):
        raise ValueError(
            "Config name is missing.\nPlease pick one among the available configs: ['raw', 'clean']\nExample"
        )

    monkeypatch.setattr("datasets.load_dataset_builder", several)
    with pytest.raises(
        DataError, match=r"name one as hub:a/b:CONFIGURATION; Please pick .*\['raw', 'clean'\]$"
    ):
        open_table.open_tables("hub:a/b")


@pytest.mark.parametrize("source", [TextTable, TextStream])
@pytest.mark.parametrize(
    ("options", "key"), [({"path": None}, "path"), ({"val": "train"}, "train")]
)
def test_options_that_cannot_work_are_refused(source, options, key):
    with pytest.raises(OptionError) as error:
        source(0, **{"path": "set", **options})
    assert error.value.key == key


# streamed


START = Cursor()


def pack_texts(texts, length=4, keep_rest=False, first=START):
    packing = Packing(
        lambda number, text: np.array([ord(letter) for letter in text]), length, keep_rest
    )
    return list(packing.pack(texts, first))


def letters(window):
    return "".join(map(chr, window.tokens))


def test_windows_are_side_by_side_across_rows():
    found = pack_texts(["abc", "defghijkl", "m"])
    assert [letters(window) for window in found] == ["abcde", "efghi", "ijklm"]
    assert found[0].rows.tolist() == [0, 0, 0, 1, 1]
    assert [window.end for window in found] == [(1, 1), (1, 5), (2, 0)]


def test_packing_goes_on_from_the_place_after_any_window():
    texts = [text(n) for n in range(6)]
    found = pack_texts(texts)
    for at, window in enumerate(found):
        assert [letters(w) for w in pack_texts(texts, first=window.end)] == [
            letters(w) for w in found[at + 1 :]
        ]


@pytest.mark.parametrize("size", [5, 6, 8, 9, 10])
def test_each_target_of_a_whole_text_is_asked_once(size):
    rows = ["abcdefghijkl"[:2], "abcdefghijkl"[2:size]]
    found = pack_texts(rows, keep_rest=True)
    asked = "".join(letters(window)[-window.num_targets :] for window in found)
    assert asked == "abcdefghijkl"[1:size]
    assert all(len(window.tokens) == 5 for window in found)


def test_a_row_is_made_tokens_only_when_it_is_needed():
    seen = []
    packing = Packing(lambda number, text: seen.append(number) or np.arange(3), 2, keep_rest=False)
    next(packing.pack(["abc"] * 9, Cursor(4, 1)))
    assert seen == [4, 5]


def test_an_evaluation_of_a_stream_is_that_of_the_table(folder):
    data = stream(folder)
    windows = list(data.test_dataloader())
    whole = "".join(text(n) + "\n\n" for n in range(48, 58))
    asked = torch.cat([batch.targets[batch.targets >= 0] for batch in windows])
    assert bytes(asked.tolist()).decode() == whole[1:]
    assert data.count_samples("test") == sum(len(batch.inputs) for batch in windows)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_a_function_of_seed_and_epoch(folder, workers):
    one, two = (
        stream(folder).train_dataloader(),
        stream(folder, workers=workers).train_dataloader(),
    )
    firsts = []
    for epoch in (0, 1):
        one.set_epoch(epoch)
        two.set_epoch(epoch)
        found = list(one)
        assert all(same(a, b) for a, b in zip(found, two, strict=True))
        firsts.append(found[0].inputs)
    assert sum(len(batch.inputs) for batch in found) == 30
    assert len(one) == len(found) == 8
    assert not torch.equal(*firsts)


def test_a_stream_goes_on_in_the_middle_of_an_epoch(folder):
    loader = stream(folder).train_dataloader()
    states, whole = [], []
    for batch in loader:
        states.append(loader.state_dict())
        whole.append(batch)
    for at in (0, 3, 6):
        again = stream(folder).train_dataloader()
        again.load_state_dict(states[at])
        assert all(same(a, b) for a, b in zip(again, whole[at + 1 :], strict=True))
        assert again.state_dict() == {"consumed": 0, "row": 0, "offset": 0}


def test_an_epoch_that_was_broken_off_begins_anew(folder):
    loader = stream(folder).train_dataloader()
    first = next(iter(loader))
    assert same(next(iter(loader)), first)


def test_processes_share_each_batch(folder):
    whole = list(stream(folder, batch_size=6).train_dataloader())
    parts = []
    for rank in range(2):
        data = stream(folder, batch_size=3)
        type(data).share = property(lambda self, rank=rank: ProcessShare(rank, 2))
        try:
            data.setup("fit")
        finally:
            del type(data).share
        parts.append(list(data.build_loader("train")))
    joined = [torch.cat([a.inputs, b.inputs]) for a, b in zip(*parts, strict=True)]
    assert all(torch.equal(found, batch.inputs) for found, batch in zip(joined, whole, strict=True))


def test_documents_of_a_stream_are_kept_apart(folder):
    batch = next(iter(stream(folder, documents=True, length=200).train_dataloader()))
    ends = batch.documents[:, 1:] != batch.documents[:, :-1]
    assert ends.any()
    assert (batch.targets[:, :-1][ends] == -100).all()
    assert next(iter(stream(folder, length=200).train_dataloader())).documents is None


def test_tokens_of_a_stream_are_those_of_a_tokenizer(folder, tmp_path):
    (tmp_path / "words.json").write_text(train_bpe([text(n) for n in range(9)], 300).json)
    data = stream(folder, tokenizer=str(tmp_path / "words.json"))
    batch = next(iter(data.test_dataloader()))
    assert data.spec.vocabulary.decode(batch.inputs[0].tolist()).startswith(text(48)[:20])
    assert batch.target_bytes.sum() > batch.inputs.numel()


def test_a_stream_of_less_than_a_window_is_told(folder):
    with pytest.raises(
        DataError,
        match=r"stream of test: lacks the 9001 tokens of a window .*choose a smaller data.length",
    ):
        list(stream(folder, length=9000).test_dataloader())


@pytest.fixture
def numbered(tmp_path):
    """Rows that differ; two of them have no text."""
    counts = {"train-0": 40, "train-1": 20, "validation": 8, "test": 10}
    for split, count in counts.items():
        rows = [{"text": f"{split} {n} {text(n)}"} for n in range(count)]
        rows[3] = {"text": ("", None)[split == "train-0"]}
        jsonl(tmp_path / "numbered" / f"{split}.jsonl", rows)
    return str(tmp_path / "numbered")


def list_batches(data, split="train"):
    loader = data.train_dataloader() if split == "train" else data.val_dataloader()
    return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_that_were_encoded_before_give_the_same_batches(
    numbered, cache, tmp_path, workers, monkeypatch
):
    monkeypatch.setattr(encoded_rows, "NUM_ROWS", 7)
    (tmp_path / "words.json").write_text(train_bpe(["0123456789", *map(text, range(9))], 300).json)
    options = {"tokenizer": str(tmp_path / "words.json"), "documents": True}
    plain = stream(numbered, **options)
    data = stream(numbered, **options, tokenizer_workers=workers)
    for split in ("train", "val"):
        pairs = zip(list_batches(plain, split), list_batches(data, split), strict=True)
        assert all(same(one, two) for one, two in pairs)
    assert len(list(cache.glob("*.tokens"))) == 6 + 3 + 2 + 2

    def fail(self, text):
        raise AssertionError("encoded again")

    monkeypatch.setattr(Subwords, "encode_array", fail)
    again = stream(numbered, **options, tokenizer_workers=workers)
    assert all(map(same, list_batches(again), list_batches(data)))


def test_files_of_the_cache_that_are_missing_or_damaged_are_made_again(
    numbered, cache, monkeypatch
):
    monkeypatch.setattr(encoded_rows, "NUM_ROWS", 7)
    data = stream(numbered, tokenizer_workers=1)
    expected = list_batches(data)
    first, second, *others = sorted(cache.glob("*.tokens"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    assert all(map(same, list_batches(data), expected))
    stream(numbered, tokenizer_workers=2)
    assert sorted(cache.glob("*.tokens")) == [first, second, *others]


def test_processes_divide_the_rows_to_encode(numbered, cache, monkeypatch):
    """All of them together encode each row once."""
    monkeypatch.setattr(encoded_rows, "NUM_ROWS", 7)
    table = stream(numbered).loaders["train"].table
    sizes = []
    for rank in range(3):
        rows = EncodedRows(Bytes(), "\n\n", "rows")
        jobs = EncodingJobs(rows, table, 2, ProcessShare(rank, 3))
        for own in (2 * rank, 2 * rank + 1):
            sizes += jobs._encode(own, 6)
    assert len(sizes) == len(list(cache.glob("*.tokens"))) == 9
    files = [path.read_text() for path in Path(numbered).glob("train-*.jsonl")]
    texts = [json.loads(line)["text"] for file in files for line in file.splitlines()]
    assert sum(sizes) == sum(len(text or "") + 2 * bool(text) for text in texts)


def test_what_cannot_be_kept_or_encoded_is_refused(folder, tmp_path, monkeypatch):
    numbers = jsonl(tmp_path / "numbers.jsonl", [{"text": 7}, {"text": "row"}])
    title = "numbers"
    rows = EncodedRows(Bytes(), "", title)
    with pytest.raises(DataError, match="numbers: 7 is not text"):
        list(rows.read(map(json.loads, numbers.read_text().splitlines())))
    with pytest.raises(DataError, match="numbers: the vocabulary of 2 characters has no 'r'"):
        list(EncodedRows(Characters("ab"), "", title).read([{"text": "row"}]))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be cached: .*; set XDG_CACHE_HOME to a folder"):
        stream(folder, tokenizer_workers=1)
