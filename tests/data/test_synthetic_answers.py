"""Tasks with answers of several letters or digits, each worked out anew from its question."""

import re
from collections import Counter

import numpy as np
import pytest
from generated import read_answers

from zoo.data.synthetic.addition import Addition
from zoo.data.synthetic.common_words import CommonWords
from zoo.data.synthetic.copying import Copying
from zoo.data.synthetic.multikey_passkey import MultikeyPasskey
from zoo.data.synthetic.parity import Parity
from zoo.data.synthetic.passkey import FILLER, QUESTION, STATEMENT, WORDS, Passkey
from zoo.data.synthetic.selective_copy import SelectiveCopy
from zoo.data.synthetic.variable_tracking import VariableTracking
from zoo.errors import OptionError


def near(count, total, share):
    return abs(count - total * share) <= 5 * (total * share * (1 - share)) ** 0.5


def test_sums_are_right():
    for question, answer in read_answers(Addition(0, digits=20, test=150)):
        one, two = re.fullmatch(r"(\d+)\+(\d+)=", question).groups()
        assert answer == str(int(one[::-1]) + int(two[::-1]))[::-1] + "."
        for number in (one, two):
            assert len(number) <= 20
            assert number == "0" or number[-1] != "0"


def test_numbers_of_digits_are_equally_likely_and_independent():
    pairs = [
        question.rstrip("=").split("+")
        for question, _ in read_answers(Addition(0, digits=4, test=1600))
    ]
    counts = Counter((len(one), len(two)) for one, two in pairs)
    assert len(counts) == 16
    assert all(near(count, 1600, 1 / 16) for count in counts.values())
    digits = Counter(one[0] for one, _ in pairs if len(one) > 1)
    assert all(near(digits[digit], digits.total(), 0.1) for digit in "0123456789")
    leading = Counter(one[-1] for one, _ in pairs if len(one) > 1)
    assert all(near(leading[digit], leading.total(), 1 / 9) for digit in "123456789")


def test_the_depth_of_a_key_is_where_the_text_states_it():
    data = Passkey(0, length=80, test=40)
    batch = next(iter(data.build_loader("test")))
    text = batch.inputs.tolist()
    statement, question = WORDS.encode(STATEMENT), WORDS.encode(QUESTION)
    for row, depth in zip(text, batch.answer_depths.tolist(), strict=True):
        starts = [n for n in range(len(row)) if row[n : n + len(statement)] == statement]
        filler = len(row) - len(question) - len(statement) - 1 - 2 * data.digits + 1
        assert depth == pytest.approx(starts[0] / filler)
    edges = [Passkey(0, length=80, test=2, depth=depth) for depth in (0.0, 1.0)]
    found = [next(iter(one.build_loader("test"))).answer_depths.tolist() for one in edges]
    assert found == [[0, 0], [1, 1]]


def test_longer_sums_can_be_asked_alone():
    for question, _ in read_answers(Addition(0, digits=40, least=21, test=50)):
        assert all(21 <= len(number) <= 40 for number in question.rstrip("=").split("+"))


@pytest.mark.parametrize(
    ("order", "put"),
    [
        ("same", str),
        ("reversed", lambda text: text[::-1]),
        ("sorted", lambda text: "".join(sorted(text))),
    ],
)
def test_letters_come_in_the_order_asked(order, put):
    for question, answer in read_answers(Copying(0, order=order, test=100)):
        assert answer == put(question.rstrip("=")) + "."


def test_letters_and_lengths_are_drawn_evenly():
    texts = [
        question.rstrip("=")
        for question, _ in read_answers(Copying(0, symbols=8, least=3, test=900))
    ]
    lengths = Counter(map(len, texts))
    assert sorted(lengths) == [3, 4, 5, 6, 7, 8]
    assert all(near(count, 900, 1 / 6) for count in lengths.values())
    letters = Counter("".join(texts))
    assert all(
        near(letters[letter], letters.total(), 1 / 26) for letter in "abcdefghijklmnopqrstuvwxyz"
    )


def test_parity_counts_ones():
    answers = Counter()
    for question, answer in read_answers(Parity(0, test=1000)):
        bits = re.fullmatch(r"([01]{1,20})=", question)[1]
        assert int(answer) == bits.count("1") % 2
        answers[answer] += 1
    assert near(answers["1"], 1000, 0.5)


@pytest.mark.parametrize(("symbols", "blanks"), [(8, 8), (8, 4), (8, 16), (5, 0)])
def test_symbols_are_those_that_are_no_blanks(symbols, blanks):
    for question, answer in read_answers(
        SelectiveCopy(0, symbols=symbols, blanks=blanks, test=100)
    ):
        text = re.fullmatch(r"([a-p_]+)\|", question)[1]
        assert (len(text), text.count("_")) == (symbols + blanks, blanks)
        assert answer == text.replace("_", "")


def test_symbols_lie_anywhere():
    questions = [
        question for question, _ in read_answers(SelectiveCopy(0, symbols=4, blanks=12, test=1000))
    ]
    here = [sum(question[place] != "_" for question in questions) for place in range(16)]
    assert all(near(count, 1000, 1 / 4) for count in here)
    letters = Counter("".join(questions).replace("_", "").replace("|", ""))
    assert all(near(letters[letter], 4000, 1 / 16) for letter in "abcdefghijklmnop")


def passkeys(**options):
    """(words of filler before, words after, key) of each text, its answer having been found in it."""
    for question, answer in read_answers(Passkey(0, **options)):
        found = re.fullmatch(r"(.*?) ?the key is ((?:\d )+)\. ?(.*?) ?what is the key \?", question)
        before, key, after = found.groups()
        assert answer == key.strip()
        filler = f"{before} {after}".strip()
        assert not re.search(r"\d", filler)
        assert all(
            any(known.endswith(one.strip()) for known in (f[:-2] for f in FILLER))
            for one in filler.split(".")
            if one
        )
        yield len(before.split()), len(after.split()), answer.split()


@pytest.mark.parametrize("length", [21, 22, 64, 100])
def test_the_key_is_in_the_text_and_the_text_is_as_long_as_said(length):
    data = Passkey(0, length=length, test=50)
    assert {batch.inputs.shape[1] for batch in data.build_loader("test")} == {length}
    for before, after, key in passkeys(length=length, test=50):
        assert before + after == length + 1 - 4 - 5 - 2 * 5
        assert before == 0 or after % 6 == 0
        assert len(key) == 5


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_key_stands_at_its_depth(depth):
    found = {
        before / (before + after) for before, after, _ in passkeys(length=258, depth=depth, test=20)
    }
    assert len(found) == 1
    assert found.pop() == pytest.approx(depth, abs=0.02)


def test_the_key_stands_anywhere_and_its_digits_are_any():
    drawn = list(passkeys(length=66, test=900))  # eight sentences, so nine places
    places = Counter(before for before, _, _ in drawn)
    assert len(places) == 9
    assert all(near(count, 900, 1 / 9) for count in places.values())
    digits = np.bincount([int(digit) for _, _, key in drawn for digit in key])
    assert all(near(count, 4500, 0.1) for count in digits)


def test_a_text_without_room_for_the_key_is_refused():
    with pytest.raises(
        OptionError, match="a key of 5 digits and the question take 18; write that or more"
    ) as caught:
        Passkey(0, length=17)
    assert caught.value.key == "length"
    assert Passkey(0, length=18, test=3).spec.length == 18


@pytest.mark.parametrize("source", [Addition, Copying, Parity])
def test_bounds_that_cross_are_refused(source):
    (key,) = {"digits", "symbols", "bits"} & source.__init__.__kwdefaults__.keys()
    with pytest.raises(OptionError, match=f"21 {key} are more than the maximum of 20") as caught:
        source(0, least=21)
    assert caught.value.key == "least"


def test_the_key_of_the_name_asked_for_is_the_answer():
    for question, answer in read_answers(MultikeyPasskey(0, length=120, keys=3, test=100)):
        stated = re.findall(r"the key of (n\d+) is ((?:\d )+)\.", question)
        keys = {name: key.strip() for name, key in stated}
        asked = re.search(r"what is the key of (n\d+) \?$", question)[1]
        assert len(keys) == 3
        assert keys[asked] == answer
        assert len(question.split()) + len(answer.split()) == 121


def test_variables_are_followed_through_their_chain():
    options = {"length": 120, "chains": 2, "hops": 3}
    firsts = Counter()
    for question, answer in read_answers(VariableTracking(0, test=100, **options)):
        values = {}
        for name, first, value in re.findall(r"var (x\d+) = (?:(x\d+)|((?:\d )+))", question):
            assert name not in values
            values[name] = values[first] if first else value.strip()
        asked = re.search(r"var = ((?:\d )+)\?$", question)[1].strip()
        assert [name for name, value in values.items() if value == asked] == answer.split()
        assert len(values) == 8
        assert len(question.split()) + len(answer.split()) == 121
        firsts[next(iter(values)) == answer.split()[0]] += 1
    assert near(firsts[True], 100, 0.5)  # either chain may come first


def test_common_words_stand_most_often():
    options = {"length": 100, "common": 3, "common_repeats": 9, "other_repeats": 4, "words": 64}
    for question, answer in read_answers(CommonWords(0, test=100, **options)):
        *listed, asked = question.split()
        counts = Counter(listed)
        common = sorted(answer.split(), key=lambda word: int(word[1:]))
        assert asked == "?"
        assert common == answer.split()
        assert {word for word, count in counts.items() if count == 9} == set(common)
        assert sorted(counts.values())[1:-3] == [4] * (len(counts) - 4)
        assert len(listed) + 1 + 3 == 101


@pytest.mark.parametrize(
    ("source", "options", "problem"),
    [
        (MultikeyPasskey, {"length": 64}, "4 keys of 7 digits and the question take 65"),
        (VariableTracking, {"length": 40}, "1 chains of 4 hops and the question take 41"),
        (VariableTracking, {"chains": 13}, "13 chains of 4 hops take more than 64 variables"),
        (CommonWords, {"length": 309}, "10 words 30 times, with the answer, take 310"),
        (CommonWords, {"other_repeats": 30}, "other words would occur as often, 30 times"),
        (CommonWords, {"words": 50}, "has 78 different words, not 50"),
    ],
)
def test_a_text_without_room_for_what_is_asked_is_refused(source, options, problem):
    with pytest.raises(OptionError, match=problem):
        source(0, **options)
