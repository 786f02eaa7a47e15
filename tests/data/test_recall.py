"""Recall of keys bound anew: what each stream asks, found by looking back in it."""

from collections import Counter

import pytest
from generated import fetch

from zoo.data.synthetic.recall import Recall
from zoo.errors import OptionError


def streams(**options):
    data = Recall(0, **options)
    decode = data.spec.vocabulary.decode
    for inputs, targets in fetch(data):
        yield (
            decode(inputs).split(),
            [decode([target]) if target >= 0 else None for target in targets],
        )


def test_a_key_asks_for_its_latest_value_and_nothing_else_is_asked():
    for words, asked in streams(length=64, pairs=8, keys=16, values=16, test=40):
        assert len(words) == 64
        for at in range(64):
            if at % 2:
                assert (words[at][0], asked[at]) == ("v", None)
                continue
            assert words[at][0] == "k"
            before = [words[place + 1] for place in range(at) if words[place] == words[at]]
            assert asked[at] == (before[-1] if before else None)


def test_keys_are_few_of_many_and_values_are_any():
    own, all_keys, values = [], Counter(), Counter()
    for words, _ in streams(length=128, pairs=4, keys=12, values=8, test=300):
        own.append(len({*words[::2]}))
        all_keys.update({*words[::2]})
        values.update(words[1::2])
    assert max(own) == 4
    assert len(all_keys) == 12
    assert all(abs(count - 100) < 5 * (300 * 2 / 9) ** 0.5 for count in all_keys.values())
    total = values.total()
    assert len(values) == 8
    assert all(abs(count - total / 8) < 5 * (total * 7 / 64) ** 0.5 for count in values.values())


def test_what_could_ask_nothing_is_refused():
    for options, key, words in [
        ({"length": 65}, "length", "tokens are pairs of key and value; write 66"),
        ({"pairs": 65}, "pairs", "more than all 64 keys"),
        ({"length": 64, "pairs": 32}, "pairs", "none of 32 keys need repeat"),
    ]:
        with pytest.raises(OptionError, match=words) as caught:
            Recall(0, **options)
        assert caught.value.key == key
