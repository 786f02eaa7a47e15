"""Values taken from other keys, and the interpolations that are refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from zoo import config
from zoo.config.compose import resolve_interpolations
from zoo.config.tree import Tree, read_plain
from zoo.errors import ConfigIssue, RecipeError

DATA = {
    "size": 8,
    "rate": 0.5,
    "list": [1, 2],
    "name": "digits",
    "odd": "???",
    "dollar": "$",
    "brace": "{a}",
}


def load_key(text: str, **more: object) -> Any:
    found, faults = attempt(text, **more)
    assert not faults
    return found


def attempt(text: str, **more: object) -> tuple[Any, list[str]]:
    whole = {"a": text, "data": DATA, **more}
    tree, issues = resolve(whole)
    return tree.data["a"], [str(issue) for issue in issues]


def resolve(whole: dict[str, Any], partial: bool = False) -> tuple[Tree, list[ConfigIssue]]:
    issues: list[ConfigIssue] = []
    tree = read_plain(whole, "here", issues)
    return resolve_interpolations(tree, whole, issues, partial), issues


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${data.size}", 8),
        ("${data.rate}", 0.5),
        ("${data.size}px", "8px"),
        ("${data.size}x${data.name}", "8xdigits"),
        ("${data.list.1}", 2),
        ("${data.list}", [1, 2]),
        ("no $ {here}", "no $ {here}"),
    ],
)
def test_a_value_is_taken_from_another_key(text: str, value: object) -> None:
    found = load_key(text)
    assert found == value
    assert type(found) is type(value)


def test_references_are_followed() -> None:
    assert load_key("${b}", b="${c.0}", c=["${data.size}"]) == 8


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "${oc.env:HOME}",
            "here: a: resolvers are refused: '${oc.env:HOME}'; write the value itself",
        ),
        ("${x:}", "here: a: resolvers are refused"),
        ("${data.size", "here: a: malformed interpolation '${data.size'; write ${section.key}"),
        ("${}", "here: a: malformed"),
        ("${.size}", "here: a: malformed"),
        ("${data.${b}}", "here: a: malformed"),
        ("\\${data.size}", "here: a: malformed"),
        (
            "${data.siz}",
            "here: a: '${data.siz}' takes the value of data.siz, which is no key; did you mean data.size?",
        ),
        (
            "${data.list.2}",
            "here: a: '${data.list.2}' takes the value of data.list.2, which is no key",
        ),
        (
            "${data.list.x}",
            "here: a: '${data.list.x}' takes the value of data.list.x, which is no key",
        ),
        (
            "${data.size.x}",
            "here: a: '${data.size.x}' takes the value of data.size.x, which is no key",
        ),
        ("${data}", "here: a: data is not a single value"),
        ("${data.list}px", "here: a: data.list is not a single value"),
        ("${data.odd}", "here: a: '${data.odd}' takes the value of data.odd, which is '???'"),
        ("${a}", "here: a: an interpolation of itself: a -> a"),
        ("${data.dollar}${data.brace}", "here: a: makes a new interpolation of its parts"),
    ],
)
def test_what_cannot_be_resolved_is_one_fault(text: str, problem: str) -> None:
    _, (fault,) = attempt(text)
    assert fault.startswith(problem)
    assert len(fault) < 200


def test_a_cycle_is_told_as_a_chain() -> None:
    _, faults = attempt("${b}", b="${c}", c="${a}")
    assert "here: a: an interpolation of itself: b -> c -> a -> b" in faults


@pytest.mark.parametrize("wrong", ["${data.siz}", "${data}", "${data.list} "])
def test_a_reference_to_a_faulty_one_is_not_a_second_fault(wrong: str) -> None:
    _, (fault,) = attempt("${b}", b=wrong)
    assert fault.startswith("here: b: ")


def test_a_number_may_be_the_key_of_a_mapping() -> None:
    assert load_key("${b.0}", b={"0": "x"}) == "x"


def test_what_an_earlier_fault_may_have_taken_away_is_not_told() -> None:
    whole = {"a": "${gone}", "b": "${oc.env:HOME}"}
    tree, (fault,) = resolve(whole, partial=True)
    assert tree.data["a"] == "${gone}"
    assert fault.key == "b"
    lone = Tree({"a": "${gone}"}, {"": "here", "a": "here"})
    assert resolve({"a": "${gone}"}, partial=True) == (lone, [])


@pytest.mark.parametrize("width", [1, 4])
def test_a_long_chain_or_a_bomb_is_refused_at_once(width: int) -> None:
    start = time.perf_counter()
    _, faults = attempt(
        "${k0}", **{f"k{i}": f"${{k{i + 1}}}" * width for i in range(500)}, k500="x"
    )
    assert "takes too many steps" in faults[0]
    assert time.perf_counter() - start < 5


def test_a_value_that_refers_to_what_contains_it_is_refused():
    with pytest.raises(RecipeError, match=r"seed\.0: refers to a value that contains it"):
        config.load("vit_comrope", {"seed": ["${seed}"], "model.dim": 16})
