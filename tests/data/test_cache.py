"""Encoded texts on disk: mapped again, rebuilt when damaged, and not needed."""

import hashlib
import logging
import mmap

import numpy as np
import pytest

from zoo.data.cache import CacheEntry, load_or_make
from zoo.data.corpus import corpus
from zoo.data.text import Text


def never():
    raise AssertionError("made again")


def entry(size=1000):
    return CacheEntry({"name": "é"}, np.arange(size, dtype=np.uint16))


def test_an_entry_is_made_once_and_mapped(cache):
    made = load_or_make("key", entry)
    again = load_or_make("key", never)
    for found in (made, again):
        assert found.metadata == {"name": "é"}
        assert np.array_equal(found.array, np.arange(1000))
        assert found.problem is None
    assert isinstance(again.array.base.obj, mmap.mmap)
    assert [path.name for path in cache.iterdir()] == ["key.tokens"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:500] + b"x" + b[501:], lambda b: b[1:]]
)
def test_a_damaged_entry_is_made_anew(cache, damage):
    load_or_make("key", entry)
    path = cache / "key.tokens"
    path.write_bytes(damage(path.read_bytes()))
    assert load_or_make("key", lambda: entry(5)).array.tolist() == [0, 1, 2, 3, 4]
    assert load_or_make("key", never).array.tolist() == [0, 1, 2, 3, 4]


def test_an_entry_of_an_earlier_version_is_made_anew(cache):
    content = b'{"facts": {}, "type": "<u2"}\n' + np.arange(5, dtype=np.uint16).tobytes()
    cache.mkdir(parents=True)
    digest = hashlib.sha256(content).hexdigest().encode()
    (cache / "key.tokens").write_bytes(digest + content)
    assert len(load_or_make("key", entry).array) == 1000


def test_a_text_is_encoded_once(text, monkeypatch):
    first = text().corpus.tokens
    monkeypatch.setattr(corpus, "_encode", never)
    again = text().corpus.tokens
    assert again.vocabulary == first.vocabulary
    assert np.array_equal(again.splits["val"].tokens, first.splits["val"].tokens)
    assert again.splits["val"].tokens.dtype == np.uint8


def test_what_an_encoding_depends_on_gives_entries_of_their_own(text, cache):
    letters = "abcdefgh" * 100
    for options in ({}, {"tokens": "byte"}, {"val": 0.2}, {"content": letters + "a"}):
        _ = text(**{"content": letters, **options}).spec
    assert len(list(cache.iterdir())) == 4
    _ = text(letters, length=4, stride=2, windows="random").spec
    assert len(list(cache.iterdir())) == 4


def test_files_that_end_elsewhere_are_other_documents(write):
    for first, second in (("ab" * 50, "ab" * 50), ("ab" * 60, "ab" * 40)):
        files = [write(first, "1.txt"), write(second, "2.txt")]
        data = Text(0, files=files, length=4, val=0.1, test=0.1, documents=True)
        assert data.corpus.tokens.splits["train"].starts.tolist() == [0, len(first)]


def test_where_nothing_can_be_kept_memory_serves_and_the_log_says_so_once(text, cache, caplog):
    cache.parent.write_text("a file where the folder should be")
    with caplog.at_level(logging.INFO, "zoo"):
        data = text()
        assert data.spec.vocabulary.decode(data.corpus.tokens.splits["val"].tokens[:3].tolist())
        data.setup("fit")
        data.setup("test")
    assert len(caplog.messages) == 1
    assert "cannot be cached" in caplog.messages[0]


def test_wide_vocabularies_take_wider_tokens(text):
    data = text("".join(map(chr, range(0x4E00, 0x4E00 + 400))))
    stream = data.corpus.tokens.splits["train"]
    assert stream.tokens.dtype == np.uint16
    assert data.spec.vocabulary.decode(stream.tokens.tolist()[-1:]) == chr(0x4E00 + 319)
