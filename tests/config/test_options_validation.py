"""Values against annotations: what each accepts, and what is told otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

import pytest

from zoo.errors import OptionError
from zoo.options import Between, Choice, Choices
from zoo.options.plain import format_call, format_label, to_plain
from zoo.options.signature import Option, options, read_options
from zoo.options.validation import Validator, type_default
from zoo.registry import KINDS, find, names
from zoo.suggestions import join_words, nearest

Encodings = Annotated[tuple[Choice, ...], Choices("encodings")]


@dataclass(frozen=True)
class Inner:
    rate: float
    sizes: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if self.rate > 1:
            raise OptionError("rate", "must not exceed 1")


def read_value(annotation: Any, value: object) -> Any:
    validator = Validator({"": "here"})
    found = validator.validate(annotation, value, "k")
    assert not validator.issues
    return found


def list_issues(annotation: Any, value: object) -> list[str]:
    validator = Validator({"": "here"})
    validator.validate(annotation, value, "k")
    return [str(issue).removeprefix("here: ") for issue in validator.issues]


@pytest.mark.parametrize(
    ("annotation", "value", "result"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (float, 0.5, 0.5),
        (bool, True, True),
        (str, "a", "a"),
        (int | None, None, None),
        (int | None, 2, 2),
        (int | str, "a", "a"),
        (bool | int, 1, 1),
        (int | bool, True, True),
        (float | str, 1, 1.0),
        (Literal["a", 1], 1, 1),
        (list[int], [1, 2], (1, 2)),
        (tuple[int, ...], [], ()),
        (Sequence[str], ["a"], ("a",)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (list[list[float]], [[1]], ((1.0,),)),
        (Inner, {"rate": 1}, Inner(1.0)),
        (Mapping[str, float], {"a": 1}, {"a": 1.0}),
        (Inner | None, {"rate": 0, "sizes": [2]}, Inner(0.0, (2,))),
        (list[int] | list[str], ["a"], ("a",)),
        (Annotated[int, Between(1)], 1, 1),
        (Annotated[int, "a remark"], -1, -1),
    ],
)
def test_a_fitting_value_is_typed(annotation: Any, value: object, result: object) -> None:
    found = read_value(annotation, value)
    assert found == result
    assert isinstance(found, type(result) | MappingProxyType)


@pytest.mark.parametrize(
    ("annotation", "value", "line"),
    [
        (int, "ten", "k: expected an integer, got 'ten'"),
        (int, True, "k: expected an integer, got true"),
        (int, 1e5, "k: expected an integer, got 100000.0; write 100000"),
        (int | None, 1e5, "k: expected an integer or null, got 100000.0; write 100000"),
        (int, None, "k: expected an integer, got null"),
        (float, True, "k: expected a finite number, got true"),
        (float, "1", "k: expected a finite number, got '1'; write it without quotes"),
        (float, float("nan"), "k: expected a finite number, got nan"),
        (float, float("-inf"), "k: expected a finite number, got -inf"),
        (
            float,
            10**400,
            "k: expected a finite number, got 100000000000000000...0000000000000000000",
        ),
        (list[int], None, "k: expected a list [an integer, ...], got null"),
        (list[int], {"a": 1}, "k: expected a list [an integer, ...], got {'a': 1}"),
        (bool | int, 1e5, "k: expected a boolean or an integer, got 100000.0; write 100000"),
        (int, 1.5, "k: expected an integer, got 1.5"),
        (int, "yes", "k: expected an integer, got 'yes'"),
        (str, 5.0, "k: expected a string, got 5.0; put it in quotes"),
        (bool, 1, "k: expected a boolean, got 1; write true"),
        (bool, "yes", "k: expected a boolean, got 'yes'; write true"),
        (str, 5, "k: expected a string, got 5; put it in quotes"),
        (
            Literal["mean", "class"],
            "men",
            "k: expected one of 'mean', 'class', got 'men'; did you mean mean?",
        ),
        (Literal[1, 2], True, "k: expected one of 1, 2, got true"),
        (list[int], 3, "k: expected a list [an integer, ...], got 3; write [3]"),
        (list[int], [1, "a"], "k.1: expected an integer, got 'a'"),
        (Sequence[str], "abc", "k: expected a list [a string, ...], got 'abc'; write ['abc']"),
        (tuple[int, int], [1], "k: expected a list of 2 values, got [1]"),
        (tuple[int, int] | None, [1, "a"], "k.1: expected an integer, got 'a'"),
        (Mapping[str, int], {"a": "b"}, "k.a: expected an integer, got 'b'"),
        (Mapping[str, int], [1], "k: expected a mapping, got [1]"),
        (int | str, [1], "k: expected an integer or a string, got [1]"),
        (Annotated[int, Between(1)], 0, "k: must be at least 1, got 0"),
        (Annotated[int, Between(1)] | None, 0, "k: must be at least 1, got 0"),
        (Annotated[int, Between(0, 9)], 10, "k: must be from 0 to 9, got 10"),
        (Annotated[int, Between(1)], "a", "k: expected an integer, got 'a'"),
        (Inner, 3, "k: expected a mapping, got 3; give its keys, such as rate, sizes"),
        (Inner, {}, "k.rate: missing; expected a finite number"),
        (Inner, {"rate": 1, "size": [2]}, "k.size: unknown key; did you mean k.sizes?"),
        (Inner | None, {"rate": 1, "size": [2]}, "k.size: unknown key; did you mean k.sizes?"),
        (Inner, {"rate": 2}, "k.rate: must not exceed 1"),
        (str, list(range(100)), "k: expected a string, got [0, 1, 2, 3, 4, 5, ...]"),
    ],
)
def test_a_value_that_does_not_fit_is_one_fault(annotation: Any, value: object, line: str) -> None:
    (found,) = list_issues(annotation, value)
    assert found == line
    assert len(found) < 200


def test_all_faults_of_a_mapping_are_told() -> None:
    # not a fourth for the rate, whose key is misspelt
    assert len(list_issues(Inner, {"rat": 1, "sizes": ["a", 1, "b"]})) == 3


def test_an_annotation_that_no_recipe_can_hold_is_our_fault() -> None:
    with pytest.raises(AssertionError):
        list_issues(complex, 1)


@pytest.mark.parametrize(
    "value", ["toy_rope", {"name": "toy_rope"}, ["toy_rope"], [{"name": "toy_rope", "base": 100}]]
)
def test_a_choice_is_a_name_a_mapping_or_a_list(value: object) -> None:
    assert read_value(Encodings, value) == (Choice("toy_rope", {"base": 100.0, "block": 8}),)


def test_a_single_choice_is_not_a_list() -> None:
    assert read_value(Annotated[Choice, Choices("optim")], "toy_sgd") == Choice(
        "toy_sgd", {"lr": 0.1, "momentum": 0.9}
    )


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("toy_rop", "k.0.name: there is no 'toy_rop' among encodings; did you mean toy_rope?"),
        (
            {"name": "toy_rop", "bas": 1},
            "k.0.name: there is no 'toy_rop' among encodings; did you mean toy_rope?",
        ),
        (
            ["toy_liere", {"name": "toy_rope", "blok": 1}],
            "k.1.blok: unknown key; did you mean k.1.block?",
        ),
        ({"name": "toy_rope", "block": "x"}, "k.0.block: expected an integer, got 'x'"),
        ({"base": 1}, "k.0.name: missing; known are "),
        ({"name": 3}, "k.0.name: there is no 3 among encodings"),
        ([3], "k.0: expected {name: ..., options} with a name of "),
        (None, "k: expected {name: ..., options} with a name of "),
        (
            {"name": "toy_rope", "coordinates": "grid"},
            "k.0.coordinates: expected one of 'index', 'fraction'",
        ),
    ],
)
def test_a_bad_choice_is_one_fault(value: object, line: str) -> None:
    (found,) = list_issues(Encodings, value)
    assert found.startswith(line)


def test_every_encoding_takes_shared_and_coordinates() -> None:
    (choice,) = read_value(
        Encodings, {"name": "toy_liere", "shared": False, "coordinates": "growing"}
    )
    assert choice.options == {"block": 2, "shared": False, "coordinates": "growing"}
    assert "shared" not in read_value(Encodings, {"name": "toy_liere", "shared": None})[0].options


def test_options_of_other_kinds_are_their_own() -> None:
    (found,) = list_issues(Annotated[Choice, Choices("optim")], {"name": "toy_sgd", "shared": True})
    assert found.startswith("k.shared: unknown key")


class Plain:
    def __init__(self, size: int, *, dim: int, scale: float | None = None) -> None: ...


@dataclass
class Data:
    folder: str
    size: "int" = field(default=8, kw_only=True)  # noqa: UP037
    splits: list[str] = field(default_factory=list, kw_only=True)


def test_the_schema_of_a_class_is_its_keyword_only_arguments() -> None:
    assert options(Plain) == {"dim": Option(int), "scale": Option(float | None, None)}
    assert options(Plain)["dim"].is_required
    assert not options(Plain)["scale"].is_required


def test_the_schema_of_a_dataclass_is_its_keyword_only_fields() -> None:
    assert options(Data) == {"size": Option(int, 8), "splits": Option(list[str], [])}


def test_defaults_are_typed_like_given_values() -> None:
    assert type_default(Option(list[float], [1])) == (1.0,)
    assert type_default(Option(Encodings, "toy_liere")) == (Choice("toy_liere", {"block": 2}),)
    with pytest.raises(AssertionError):
        type_default(Option(int, "a"))


def test_typed_values_become_plain_again() -> None:
    value = {"a": (Choice("b", MappingProxyType({"c": (1, 2)})), Inner(0.5))}
    assert to_plain(value) == {"a": [{"name": "b", "c": [1, 2]}, {"rate": 0.5, "sizes": [1]}]}


def test_where_no_key_is_known_none_is_proposed() -> None:
    assert nearest("entropy", ()) == "none is known here"


def test_options_are_read_from_the_text_of_members_as_python_has_them() -> None:
    for kind in KINDS:
        for name in names(kind):
            assert read_options(kind, name) == options(find(kind, name))


def test_words_are_joined_as_in_a_sentence():
    assert join_words([]) == ""
    assert join_words(["a"]) == "a"
    assert join_words((1, 2)) == "1 and 2"
    assert join_words(iter("abc"), "or") == "a, b or c"
    assert join_words("abcdef", most=4) == "a, b, c and 3 others"
    assert join_words("abcd", most=4) == "a, b, c and d"


def test_calls_are_written_with_their_arguments():
    assert format_call("rope", []) == "rope"
    assert format_call("rope", ["base=100", "shared=true"]) == "rope(base=100, shared=true)"
    assert format_label({"name": "rope", "base": 100}) == "rope(base=100)"
    assert format_label([{"name": "alibi"}, {"name": "rope"}]) == "alibi+rope"
