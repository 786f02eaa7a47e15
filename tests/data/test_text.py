"""Text: splits, options that clash, files that cannot be read, adopted vocabularies."""

import hashlib
import os

import pytest

from zoo.data.corpus.corpus import read_document, read_documents
from zoo.data.corpus.tokenizer import Bytes, Characters, train_bpe
from zoo.data.spec import TextSpec as Facts
from zoo.data.text import Text
from zoo.errors import DataError, OptionError

LETTERS = "the zoo is " * 90 + "at rest..."


def tokens(data, part):
    return data.corpus.tokens.splits[part].tokens.tolist()


def whole(data):
    """What all tokens say."""
    return data.spec.vocabulary.decode(
        [token for part in ("train", "val", "test") for token in tokens(data, part)]
    )


def test_facts_need_no_setup(text):
    data = text()
    assert data.spec == Facts(8, Characters("abcdefgh"))
    assert data.spec is data.spec


def test_parts_follow_each_other_in_the_text(text):
    data = text(LETTERS, val=0.2, test=0.1)
    assert [len(tokens(data, part)) for part in ("train", "val", "test")] == [700, 200, 100]
    assert whole(data) == LETTERS


def test_globs_and_lists_are_read_in_order(write, tmp_path):
    for name, letter in (("b.txt", "b"), ("a.txt", "a"), ("c.md", "c")):
        write(letter * 50, name)
    data = Text(0, files=[f"{tmp_path}/c.md", f"{tmp_path}/*.txt", f"{tmp_path}/a.txt"], length=4)
    assert whole(data) == "c" * 50 + "a" * 50 + "b" * 50


def test_the_digest_is_that_of_the_content(text):
    content = "zoo \u2026 " * 50
    assert text(content).digest == hashlib.sha256(content.encode()).hexdigest()[:12]


def test_a_byte_of_a_character_is_never_cut_off(text):
    data = text("é" * 305, tokens="byte")
    assert len(data.spec.vocabulary) == 256
    for part in ("train", "val", "test"):
        assert set(data.spec.vocabulary.decode(tokens(data, part))) == {"é"}


def test_subwords_are_trained_on_the_training_share(text):
    content = "the rest of the zoo " * 40 + "xyxyxyxy" * 25
    data = text(content, tokens="subword", vocabulary=262)
    pieces = data.spec.vocabulary.tokenizer.get_vocab()
    assert len(pieces) == len(data.spec.vocabulary) == 262
    assert "xy" not in pieces
    assert whole(data) == content


def test_training_subwords_again_gives_the_same(text, cache):
    options = {
        "content": "the rest of the zoo is at rest " * 40,
        "tokens": "subword",
        "vocabulary": 270,
    }
    first = text(**options).spec
    (entry,) = cache.iterdir()
    entry.unlink()
    assert text(**options).spec == first


def test_sizes_of_subwords_must_agree(text, write):
    path = write(train_bpe(["the rest of the rest"], 260).json, "tokenizer.json")
    assert len(text(tokens="subword", tokenizer=path, vocabulary=260).spec.vocabulary) == 260
    with pytest.raises(OptionError, match=r"expected 300 subwords, .*tokenizer.json has 260"):
        _ = text(tokens="subword", tokenizer=path, vocabulary=300).spec
    with pytest.raises(OptionError, match="expected 100 subwords, the training text gives 256"):
        _ = text(tokens="subword", vocabulary=100).spec


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"tokenizer": "t.json"}, "tokenizer"),
        ({"vocabulary": 300, "tokens": "byte"}, "vocabulary"),
        ({"tokens": "subword"}, "vocabulary"),
        ({"stride": 9}, "stride"),
        ({"streams": True, "stride": 4}, "stride"),
        ({"streams": True, "windows": "random"}, "windows"),
        ({"streams": True, "documents": True}, "documents"),
        ({"val": 0.6, "test": 0.5}, "val"),
        ({"test": 0.0}, "test"),
        ({"files": ()}, "files"),
    ],
)
def test_options_that_cannot_work_are_refused(options, key):
    with pytest.raises(OptionError) as caught:
        Text(0, **{"files": "missing.txt", "length": 8, **options})
    assert caught.value.key == key


def test_a_part_shorter_than_a_window_is_refused(text):
    assert text(length=99).spec.length == 99
    with pytest.raises(
        OptionError, match="a window of 100 needs 101 tokens, val has 100"
    ) as caught:
        _ = text(length=100).spec
    assert caught.value.key == "length"
    with pytest.raises(OptionError, match="13 streams of 8 needs 105 tokens, val has 100"):
        _ = text(batch_size=13, streams=True).spec


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "book.txt: empty"), (b"caf\xc3\xa9 \xe9", "book.txt: not UTF-8 at byte 6: 0xe9")],
)
def test_files_that_hold_no_text_are_named(text, content, message):
    with pytest.raises(DataError, match=message):
        _ = text(content).spec


def test_files_that_cannot_be_read_are_named(tmp_path):
    for pattern, message in (
        ("none.txt", "no such file"),
        ("*.md", "no file matches"),
        ("", "a folder, not a file"),
    ):
        with pytest.raises(DataError, match=message):
            _ = Text(0, files=f"{tmp_path}/{pattern}").spec


@pytest.mark.skipif(os.geteuid() == 0, reason="everything can be read by root")
def test_a_file_without_permission_is_named(text):
    data = text()
    os.chmod(data.corpus._read.args[0][0], 0)
    with pytest.raises(DataError, match=r"book.txt: cannot be read: Permission denied"):
        _ = data.spec


def test_a_tokenizer_that_is_none_is_named(text, write):
    for path, message in (
        (write("{}", "t.json"), "t.json: not the JSON of a tokenizer"),
        ("gone.json", "gone.json"),
    ):
        with pytest.raises(DataError, match=message):
            _ = text(tokens="subword", tokenizer=path).spec


def test_a_trained_vocabulary_is_adopted(text):
    data, trained = text(), Facts(64, Characters("hgfedcbaxyz"))
    own = tokens(data, "test")
    data.adopt_spec(trained)
    assert data.spec == Facts(8, trained.vocabulary)
    assert tokens(data, "test") == [7 - token for token in own]
    data.adopt_spec(Facts(64, Bytes()))
    assert tokens(data, "test") == [104 - 7 + token for token in own]


def test_text_that_an_adopted_vocabulary_lacks_is_refused(text):
    with pytest.raises(DataError, match=r"book.txt: .* has no 'h' at position"):
        text().adopt_spec(Facts(8, Characters("abcdefg")))


def test_a_name_that_no_file_can_have_is_told():
    with pytest.raises(DataError, match="cannot be read: embedded null byte"):
        read_documents(["a\0b"])


def test_a_byte_order_mark_is_no_character_of_the_text(tmp_path):
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_document(path).text == "abc"
