"""Trees over trees: what is merged, what is replaced, what is dropped."""

from __future__ import annotations

import pytest

from zoo.config.compose import merge
from zoo.config.overrides import remove_key, set_key
from zoo.config.tree import Tree, parse
from zoo.errors import ARGUMENT, RecipeError


def tree(text: str, place: str = "file:1") -> Tree:
    return parse(text, lambda line: place, [])


def merge_texts(base: str, top: str) -> object:
    return merge(tree(base), tree(top)).data


def change_text(text: str, key: str, value: str) -> object:
    return set_key(tree(text), key.split("."), tree(value).data).data


def remove_from_text(text: str, key: str) -> object:
    return remove_key(tree(text), key.split(".")).data


@pytest.mark.parametrize(
    ("base", "top", "result"),
    [
        ("{a: 1, b: {c: 2}}", "{b: {d: 3}}", {"a": 1, "b": {"c": 2, "d": 3}}),
        ("{a: [1, 2, 3]}", "{a: [4]}", {"a": [4]}),
        ("{a: {b: 1}}", "{a: 2}", {"a": 2}),
        ("{a: 2}", "{a: {b: 1}}", {"a": {"b": 1}}),
        ("{o: {name: adam, lr: 1}}", "{o: {lr: 2}}", {"o": {"name": "adam", "lr": 2}}),
        ("{o: {name: adam, lr: 1}}", "{o: {name: sgd}}", {"o": {"name": "sgd"}}),
        (
            "{o: {name: adam, lr: 1}}",
            "{o: {name: adam, eps: 2}}",
            {"o": {"name": "adam", "lr": 1, "eps": 2}},
        ),
        ("{o: {lr: 1}}", "{o: {name: sgd}}", {"o": {"lr": 1, "name": "sgd"}}),
        ("{o: adam}", "{o: {lr: 1}}", {"o": {"name": "adam", "lr": 1}}),
        ("{o: {name: adam, lr: 1}}", "{o: adam}", {"o": "adam"}),
    ],
)
def test_mappings_merge_and_all_else_is_replaced(base: str, top: str, result: object) -> None:
    assert merge_texts(base, top) == result


@pytest.mark.parametrize(
    ("text", "key", "value", "result"),
    [
        ("{a: {b: 1}}", "a.c", "2", {"a": {"b": 1, "c": 2}}),
        ("{}", "a.b.c", "1", {"a": {"b": {"c": 1}}}),
        ("{a: null}", "a.b", "1", {"a": {"b": 1}}),
        ("{a: [1, 2]}", "a.1", "3", {"a": [1, 3]}),
        ("{e: rope}", "e.0.block", "4", {"e": [{"name": "rope", "block": 4}]}),
        (
            "{e: {name: rope, base: 9}}",
            "e.0.block",
            "4",
            {"e": [{"name": "rope", "base": 9, "block": 4}]},
        ),
        ("{e: [a, rope]}", "e.1.block", "4", {"e": ["a", {"name": "rope", "block": 4}]}),
        ("{e: [{name: rope, base: 9}]}", "e.0.name", "liere", {"e": [{"name": "liere"}]}),
        ("{e: [{name: rope, base: 9}]}", "e.0.name", "rope", {"e": [{"name": "rope", "base": 9}]}),
        ("{e: [{name: rope, base: 9}]}", "e", "[a, b]", {"e": ["a", "b"]}),
        ("{m: {'0': a}}", "m.0", "b", {"m": {"0": "b"}}),
        ("{m: {'1': a}}", "m.0", "b", {"m": {"0": "b", "1": "a"}}),
        ("{m: {name: a, '0': b}}", "m.0", "c", {"m": {"name": "a", "0": "c"}}),
    ],
)
def test_a_key_is_put_where_it_belongs(text: str, key: str, value: str, result: object) -> None:
    assert change_text(text, key, value) == result


def test_a_new_name_keeps_what_was_given_on_the_same_command_line() -> None:
    given = set_key(tree("{o: {name: adam, lr: 1}}"), ["o", "momentum"], 2)
    assert set_key(given, ["o", "name"], "sgd").data == {"o": {"name": "sgd", "momentum": 2}}


@pytest.mark.parametrize(
    ("text", "key", "result"),
    [
        ("{a: 1, b: 2}", "a", {"b": 2}),
        ("{a: {b: 1, c: 2}}", "a.b", {"a": {"c": 2}}),
        ("{a: [1, 2, 3]}", "a.1", {"a": [1, 3]}),
        ("{a: [{b: 1, c: 2}]}", "a.0.b", {"a": [{"c": 2}]}),
        ("{e: {name: rope, base: 9}}", "e.0.base", {"e": [{"name": "rope"}]}),
    ],
)
def test_a_key_is_removed_and_nothing_else(text: str, key: str, result: object) -> None:
    assert remove_from_text(text, key) == result


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (
            "{a: {bcd: 1}}",
            "a.bce",
            "a.bce: cannot be removed, it is not there; did you mean a.bcd?",
        ),
        ("{a: 1}", "a.b", "a.b: cannot be removed"),
        ("{a: [1]}", "a.1", "a.1: a has 1 entry, counted from 0"),
        ("{a: [{b: 1}]}", "a.b", "did you mean a.0.b?"),
    ],
)
def test_what_is_not_there_cannot_be_removed(text: str, key: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        remove_from_text(text, key)
    assert message in str(caught.value)
    assert caught.value.issues[0].origin == ARGUMENT


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (
            "{a: [1, 2]}",
            "a.2",
            "a.2: a has 2 entries, counted from 0; write the whole list to add one",
        ),
        ("{a: [1]}", "a.b", "a.b: a has 1 entry, counted from 0; did you mean a.0.b?"),
        ("{a: []}", "a.b", "a.b: a has no entry, counted from 0"),
        ("{a: 1}", "a.b", "a.b: a is 1 and has no keys"),
        ("{a: 1}", "a.0", "a.0: a is 1 and has no keys"),
        ("{a: null}", "a.0", "a.0: a has no entry, counted from 0"),
    ],
)
def test_what_has_no_such_key_cannot_be_stepped_into(text: str, key: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        change_text(text, key, "1")
    assert str(caught.value.issues[0]) == f"argument: {message}"


def test_every_value_keeps_the_place_it_came_from() -> None:
    both = merge(tree("{a: 1, b: {c: 1, d: 2}}", "base:1"), tree("{b: {c: 3}}", "top:2"))
    last = set_key(both, ["b", "e"], 4)
    found = {key: last.locate(key) for key in ("a", "b.c", "b.d", "b.e")}
    assert found == {"a": "base:1", "b.c": "top:2", "b.d": "base:1", "b.e": ARGUMENT}


def test_a_bare_name_keeps_its_place_beside_options() -> None:
    both = merge(tree("{o: adam}", "base:1"), tree("{o: {lr: 1}}", "top:2"))
    assert (both.locate("o.name"), both.locate("o.lr")) == ("base:1", "top:2")


def test_entries_after_a_removed_one_keep_their_places() -> None:
    text = "a:\n- {b: 1}\n- {b: 2}\n- {b: 3,\n   c: 4}\n"
    remove_from_text = remove_key(parse(text, str, []), ["a", "0"])
    assert remove_from_text.data == {"a": [{"b": 2}, {"b": 3, "c": 4}]}
    assert [remove_from_text.locate(key) for key in ("a", "a.0.b", "a.1", "a.1.c")] == [
        "1",
        "3",
        "4",
        "5",
    ]


def test_options_of_a_replaced_list_keep_no_place() -> None:
    change_text = set_key(tree("{e: [{name: rope, base: 9}]}"), ["e"], ["alibi"])
    assert "e.0.base" not in change_text.locations
    assert change_text.locate("e.0.base") == ARGUMENT
