"""Tokens as text: all of it, no character in halves, nothing of a stop."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from zoo.data.corpus.tokenizer import Bytes, Characters, Subwords, train_bpe
from zoo.models.generation import TextStreamer


def write_tokens(writer, tokens):
    """The pieces given for each token, and the rest."""
    return [writer.put(token) for token in tokens] + [writer.end()]


@pytest.mark.parametrize("seed", range(20))
def test_pieces_make_up_what_the_tokens_say(seed):
    draws = np.random.default_rng(seed)
    pool = [
        0x41,
        0x80,
        0x9F,
        0x98,
        0xC3,
        0xA9,
        0xE2,
        0x82,
        0xAC,
        0xF0,
        0xFF,
    ]  # pieces of characters of all lengths
    tokens = [int(token) for token in draws.choice(pool, 60)]
    assert "".join(write_tokens(TextStreamer(Bytes()), tokens)) == Bytes().decode(tokens)


def test_a_character_is_given_when_its_last_byte_has_come():
    text = "a\u00e9\u20ac\U0001f600"
    assert write_tokens(TextStreamer(Bytes()), text.encode()) == [
        "a",
        "",
        "\u00e9",
        "",
        "",
        "\u20ac",
        "",
        "",
        "",
        "\U0001f600",
        "",
    ]


def test_a_broken_character_does_not_break_the_next():
    tokens = "\u20ac".encode()[:2] + "\U0001f600".encode()
    assert "".join(write_tokens(TextStreamer(Bytes()), tokens)) == "\ufffd\U0001f600"


def test_a_vocabulary_may_have_the_replacement_character():
    vocabulary = Characters("ab\ufffd")
    assert (
        "".join(write_tokens(TextStreamer(vocabulary), [2, 0, 2, 2, 2, 2, 2]))
        == "\ufffda\ufffd\ufffd\ufffd\ufffd\ufffd"
    )


def test_subwords_of_bytes_are_given_whole():
    vocabulary, text = train_bpe(["abab" * 50], 258), "ab\U0001f600ab"
    pieces = write_tokens(TextStreamer(vocabulary), vocabulary.encode(text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def make_subwords(decoder, *words):
    """A vocabulary of words that puts spaces between them as its decoder does."""
    tokenizer = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=words[0])
    )
    tokenizer.decoder = decoder
    return Subwords(tokenizer.to_str())


@pytest.mark.parametrize(
    "vocabulary",
    [
        make_subwords(decoders.WordPiece(), "one", "two", "##s"),
        make_subwords(decoders.Metaspace(), "\u2581one", "\u2581two", "s"),
    ],
)
def test_spaces_between_words_are_kept(vocabulary):
    tokens = [1, 2, 0, 2, 2] + [1, 0, 2] * 8
    pieces = write_tokens(TextStreamer(vocabulary, prompt=[0]), tokens)
    assert "one" + "".join(pieces) == vocabulary.decode([0, *tokens])
    assert pieces[:2] == [" two", "s"]


def test_text_ends_before_the_stop_and_what_may_begin_one_waits():
    writer = TextStreamer(Characters("abc"), stop="aab")
    assert [writer.put(token) for token in (2, 0, 0, 0, 2, 0, 0, 1)] == [
        "c",
        "",
        "",
        "a",
        "aac",
        "",
        "",
        "",
    ]
    assert writer.stopped
    assert (writer.end(), writer.text) == ("", "caaac")


def test_what_waited_for_a_stop_that_did_not_come_is_given_at_the_end():
    assert write_tokens(TextStreamer(Characters("abc"), stop="abc"), [2, 0, 1]) == [
        "c",
        "",
        "",
        "ab",
    ]


def test_nothing_is_read_after_the_stop():
    writer = TextStreamer(Bytes(), stop="!")
    assert "".join(write_tokens(writer, b"a!b\xe2")) == writer.text == "a"
