"""Words that change a recipe: how they are parsed, and what is reported for the others."""

from __future__ import annotations

import pytest

from zoo.config import Change, Removal
from zoo.config.command_line import parse_overrides
from zoo.errors import ARGUMENT, RecipeError


def refuse(word: str) -> str:
    """Return the one issue of a word."""
    with pytest.raises(RecipeError) as caught:
        parse_overrides([word])
    (issue,) = caught.value.issues
    assert issue.origin == ARGUMENT
    assert len(str(issue)) < 200
    return str(issue)


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("a.b=1", "a.b", 1),
        ("a=[x, 1e-3]", "a", ["x", 1e-3]),
        ("a={b: yes}", "a", {"b": "yes"}),
        ("a='1'", "a", "1"),
        ("a=''", "a", ""),
        ("a=null", "a", None),
        ("a=x=y", "a", "x=y"),
        ("a.0.b=[{name: c, d: 4}]", "a.0.b", [{"name": "c", "d": 4}]),
        ("a=${b.c}", "a", "${b.c}"),
    ],
)
def test_a_value_is_read_as_yaml(word: str, key: str, value: object) -> None:
    assert parse_overrides([word]) == [Change(key, value)]


def test_a_tilde_removes_a_key() -> None:
    assert parse_overrides(["~a.b"]) == [Removal("a.b")]


@pytest.mark.parametrize(
    ("word", "problem", "remedy"),
    [
        ("+a=1", "'+a=1': keys take no +", "write a=1"),
        ("++a=1", "a: '++a=1': keys take no +", "write a=1"),
        ("a", "'a': not an override", "write key=value, or ~key to remove a key"),
        ("=1", "'=1': not a key", "write section.key=value"),
        ("a[0]=1", "'a[0]=1': not a key", "write section.key=value"),
        ("a..b=1", "'a..b=1': not a key", "write section.key=value"),
        ("~", "'~': not a key", "write section.key=value"),
        (".".join("a" * 999) + "=1", "not a key", "write section.key=value"),
        ("~a=1", "'~a=1': a removal takes no value", "write ~a or a=value"),
        ("a=", "'a=': no value", "write null for nothing, '' for an empty string"),
        ("a=[1", "'a=[1': bad YAML: the [ of line 1 is not closed", ""),
        ("a=!!int 1", "the tag '!!int' is refused", ""),
        ("a={b: 1, b: 2}", "'a={b: 1, b: 2}': given twice", "keep one of them"),
        ("a=\udc80", "not text", ""),
        ("extends=[b]", "extends is read from files only", "override the keys themselves"),
    ],
)
def test_an_issue_shows_the_right_form(word: str, problem: str, remedy: str) -> None:
    message = refuse(word)
    assert problem in message
    assert message.endswith(remedy)


def test_the_issues_of_all_words_are_reported() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_overrides(["+a=1", "b=1", "c"])
    assert len(caught.value.issues) == 2


def test_one_string_is_not_taken_for_a_list_of_them() -> None:
    with pytest.raises(AssertionError):
        parse_overrides("a=1")
