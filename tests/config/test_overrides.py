"""Arguments that change a recipe: which are understood, and what is told of the others."""

from __future__ import annotations

import pytest

from zoo.config.compose import parse_overrides
from zoo.config.tree import Tree
from zoo.errors import ARGUMENT, ConfigIssue


def refusal(argument: str) -> str:
    faults: list[ConfigIssue] = []
    assert parse_overrides([argument], faults) == []
    (fault,) = faults
    assert fault.origin == ARGUMENT
    assert len(str(fault)) < 200
    return str(fault)


@pytest.mark.parametrize(
    ("argument", "parts", "value"),
    [
        ("a.b=1", ("a", "b"), 1),
        ("a=[x, 1e-3]", ("a",), ["x", 1e-3]),
        ("a={b: yes}", ("a",), {"b": "yes"}),
        ("a='1'", ("a",), "1"),
        ("a=''", ("a",), ""),
        ("a=null", ("a",), None),
        ("a=x=y", ("a",), "x=y"),
        ("a.0.b=[{name: c, d: 4}]", ("a", "0", "b"), [{"name": "c", "d": 4}]),
        ("a=${b.c}", ("a",), "${b.c}"),
    ],
)
def test_a_value_is_read_as_yaml(argument: str, parts: tuple[str, ...], value: object) -> None:
    (override,) = parse_overrides([argument], [])
    assert override.value is not None
    assert (override.parts, override.value.data) == (parts, value)


def test_a_removal_has_no_value() -> None:
    (override,) = parse_overrides(["~a.b"], [])
    assert (override.parts, override.value) == (("a", "b"), None)
    assert override.apply(Tree({"a": {"b": 1}}, {})).data == {"a": {}}


@pytest.mark.parametrize(
    ("argument", "problem", "remedy"),
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
        ("a=", "'a=': no value", "write null for nothing, '' for an empty text"),
        ("a=[1", "'a=[1': bad YAML: while parsing a flow sequence", ""),
        ("a=!!int 1", "the tag '!!int' is refused", ""),
        ("a={b: 1, b: 2}", "'a={b: 1, b: 2}': given twice", "keep one of them"),
        ("a=\udc80", "not text", ""),
        ("extends=[b]", "extends is read from files only", "override the keys themselves"),
    ],
)
def test_anything_else_is_a_fault_that_shows_the_right_form(
    argument: str, problem: str, remedy: str
) -> None:
    message = refusal(argument)
    assert problem in message
    assert message.endswith(remedy)


def test_all_bad_arguments_are_told_and_the_good_ones_kept() -> None:
    faults: list[ConfigIssue] = []
    assert [override.parts for override in parse_overrides(["+a=1", "b=1", "c"], faults)] == [
        ("b",)
    ]
    assert len(faults) == 2


def test_one_string_is_not_taken_for_a_list_of_them() -> None:
    with pytest.raises(AssertionError):
        parse_overrides("a=1", [])
