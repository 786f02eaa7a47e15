"""Vocabularies: round trips, equality, and what they do not have."""

import pytest

from zoo.data.corpus.tokenizer import (
    Bytes,
    Characters,
    Subwords,
    Words,
    train_bpe,
    vocabulary_from_dict,
)
from zoo.errors import OptionError

TEXT = "naïve café: 日本語 🦓 and the rest of the rest\n\n"
EVERY = [Characters("".join(sorted(set(TEXT)))), Bytes(), train_bpe([TEXT], 270)]


@pytest.mark.parametrize("vocabulary", EVERY, ids=lambda v: v.unit)
def test_text_comes_back(vocabulary):
    tokens = vocabulary.encode(TEXT)
    assert all(type(token) is int and token < len(vocabulary) for token in tokens)
    assert vocabulary.decode(tokens) == TEXT
    assert vocabulary.encode("") == []


@pytest.mark.parametrize("vocabulary", EVERY, ids=lambda v: v.unit)
def test_vocabularies_come_back_from_plain_data(vocabulary):
    again = vocabulary_from_dict(vocabulary.to_dict())
    assert again == vocabulary
    assert hash(again) == hash(vocabulary)
    assert again.encode(TEXT) == vocabulary.encode(TEXT)
    assert again.unit == vocabulary.unit


def test_other_vocabularies_differ():
    assert Characters("ab") != Characters("ba")
    assert len({*EVERY, Bytes()}) == 3


def test_unknown_characters_are_named_with_their_positions():
    with pytest.raises(
        OptionError, match=r"2 characters has no 'é' at position 1, '日' at position 4$"
    ) as caught:
        Characters("ab").encode("aébé日")
    assert caught.value.key == "prompt"
    with pytest.raises(
        OptionError, match="'x' at position 0, 'y' at position 1, 'z' at position 2 and 2 more"
    ):
        Characters("ab").encode("xyzuv")


@pytest.mark.parametrize("vocabulary", EVERY, ids=lambda v: v.unit)
def test_half_a_surrogate_pair_is_unknown(vocabulary):
    with pytest.raises(OptionError, match=r"'\\udce9' at position 1"):
        vocabulary.encode("n\udce9")


def test_broken_bytes_decode_to_a_replacement():
    assert Bytes().decode([97, 0xC3, 98]) == "a\ufffdb"


def test_subwords_know_their_length_in_bytes():
    vocabulary = EVERY[2]
    assert vocabulary.lengths.min() == 1
    assert vocabulary.lengths[vocabulary.encode(TEXT)].sum() == len(TEXT.encode())
    assert len(vocabulary.encode(TEXT)) < len(TEXT.encode())


def test_words_come_back_and_unknown_ones_are_named():
    words = Words(("x", "=", "0", ";"))
    assert words.encode(" x =  0\n;") == [0, 1, 2, 3]
    assert words.decode([0, 1, 2, 3]) == "x = 0 ;"
    assert words.encode_array("0 x").tolist() == [2, 0]
    assert vocabulary_from_dict(words.to_dict()) == words
    with pytest.raises(OptionError, match=r"4 words has no 'y', 'zz', '1' and 1 more$") as caught:
        words.encode("y = zz y 1 2 ;")
    assert caught.value.key == "prompt"


def test_a_tokenizer_of_words_names_what_it_lacks():
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"the": 0, "zoo": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(1)
    vocabulary = Subwords(tokenizer.to_str())
    assert vocabulary.encode("the zoo the") == [0, 1, 0]
    assert vocabulary.lengths.tolist() == [3, 3, 1]
    with pytest.raises(OptionError, match="'g' at position 4"):
        vocabulary.encode("the gnu")


def test_an_unknown_kind_is_refused():
    with pytest.raises(OptionError, match="called 'runes'"):
        vocabulary_from_dict({"kind": "runes"})
