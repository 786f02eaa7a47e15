"""A tree against annotations: typed values, and a fault for everything that does not fit."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Union, get_args, get_origin

from zoo.config.choices import choice, choices
from zoo.config.interpolation import is_open
from zoo.config.scalars import fits, instead
from zoo.config.signature import Option, fields
from zoo.config.tree import Node, join, plain, plant, unfrozen, upward
from zoo.config.words import expected, nearest, value
from zoo.errors import ConfigIssue, OptionError
from zoo.registry import Between, Choice, Choices, Matches


class Check:
    """One walk over a tree. What does not fit is reported and kept as it is, so that the walk goes on.

    What is missing at or below a key that was `told` to be at fault is not reported again.
    """

    def __init__(self, told: frozenset[str] = frozenset()) -> None:
        self.told = told
        self.faults: list[ConfigIssue] = []
        self.places: dict[str, str] = {}
        self.untyped: set[str] = (
            set()
        )  # keys whose value has the wrong type, or waits for an interpolation

    def value(self, annotation: Any, node: Node, key: str) -> Any:
        """The value of a node as its annotation has it."""
        self.places[key] = node.place
        origin = get_origin(annotation)
        if is_open(node):
            self.untyped.add(key)
            return node.value
        if origin is Annotated:
            return self.marked(annotation, node, key)
        if origin in (Union, types.UnionType):
            return self.union(annotation, node, key)
        if dataclasses.is_dataclass(annotation):
            return self.dataclass(annotation, node, key)
        if origin in (list, tuple, Sequence):
            return self.sequence(annotation, node, key)
        if origin in (dict, Mapping):
            return self.mapping(annotation, node, key)
        if not fits(annotation, node.value):
            return self.mismatch(annotation, node, key, instead(annotation, node.value))
        return float(plain(node)) if annotation is float else node.value

    def fields(
        self, schema: Mapping[str, Option], given: Mapping[str, Node], node: Node, key: str
    ) -> dict[str, Any]:
        """The typed values of a mapping, every option of the schema among them with its default."""
        typed = {}
        for word, child in given.items():
            if word not in schema:
                typed[word] = self.refuse(
                    child, join(key, word), "unknown key", nearest(word, schema, key)
                )
        for word, option in schema.items():
            if word in given:
                typed[word] = self.value(option.annotation, given[word], join(key, word))
            elif not option.required:
                typed[word] = default(option)
            else:
                self.missing(node, join(key, word), f"expected {expected(option.annotation)}")
        return typed

    def refuse(self, node: Node, key: str, problem: str, remedy: str = "") -> Any:
        self.faults.append(ConfigIssue(node.place, key, problem, remedy))
        return plain(node)

    def missing(self, node: Node, key: str, remedy: str) -> None:
        if self.told.isdisjoint(upward(key)):
            self.refuse(node, key, "missing", remedy)

    def mismatch(self, annotation: Any, node: Node, key: str, remedy: str = "") -> Any:
        self.untyped.add(key)
        return self.refuse(
            node, key, f"expected {expected(annotation)}, got {value(plain(node))}", remedy
        )

    def marked(self, annotation: Any, node: Node, key: str) -> Any:
        inner, *marks = get_args(annotation)
        for mark in marks:
            if isinstance(mark, Choices):
                return (choice if inner is Choice else choices)(self, mark.kind, node, key)
        typed = self.value(inner, node, key)
        for mark in marks:
            if (
                isinstance(mark, Between)
                and key not in self.untyped
                and not mark.low <= typed <= mark.high
            ):
                self.refuse(node, key, f"must be {mark.explain(typed)}, got {value(typed)}")
            if (
                isinstance(mark, Matches)
                and key not in self.untyped
                and not any(p.fullmatch(typed) for p in mark.patterns)
            ):
                self.refuse(node, key, f"{value(typed)} is {mark.problem}", mark.remedy)
        return typed

    def union(self, annotation: Any, node: Node, key: str) -> Any:
        """The first member that fits; if none does, the faults of the one that came closest."""
        checks = [(Check(self.told), member) for member in get_args(annotation)]
        trials = [(check, check.value(member, node, key)) for check, member in checks]
        fitting = [each for each in trials if not each[0].faults]
        closest = fitting or [each for each in trials if key not in each[0].untyped]
        if not closest:
            remedies = (
                fault.remedy for check, _ in trials for fault in check.faults if fault.remedy
            )
            return self.mismatch(annotation, node, key, next(remedies, ""))
        check, typed = closest[0]
        self.faults += check.faults
        self.places |= check.places
        self.untyped |= check.untyped
        return typed

    def sequence(self, annotation: Any, node: Node, key: str) -> Any:
        members = get_args(annotation)
        if not isinstance(node.value, list):
            trial = Check(self.told)
            trial.value(annotation, Node([node], node.place), key)
            alone = node.value is not None and not trial.faults
            return self.mismatch(
                annotation, node, key, f"write [{value(node.value)}]" if alone else ""
            )
        if get_origin(annotation) is not tuple or members[-1] is Ellipsis:
            members = members[:1] * len(node.value)
        if len(members) != len(node.value):
            return self.mismatch(annotation, node, key)
        pairs = enumerate(zip(members, node.value, strict=True))
        return tuple(self.value(member, item, join(key, i)) for i, (member, item) in pairs)

    def mapping(self, annotation: Any, node: Node, key: str) -> Any:
        if not isinstance(node.value, dict):
            return self.mismatch(annotation, node, key)
        member = get_args(annotation)[1]
        return MappingProxyType(
            {word: self.value(member, item, join(key, word)) for word, item in node.value.items()}
        )

    def dataclass(self, cls: Any, node: Node, key: str) -> Any:
        if not isinstance(node.value, dict | None):
            return self.mismatch(cls, node, key)
        before = len(self.faults) + len(self.untyped)
        typed = self.fields(fields(cls), node.value or {}, node, key)
        if len(self.faults) + len(self.untyped) > before:
            return typed
        try:
            return cls(**typed)
        except OptionError as invalid:
            return self.refuse(node, join(key, invalid.key), str(invalid))


def default(option: Option) -> Any:
    """The default of an option, typed as if it had been written in the recipe."""
    check = Check()
    typed = check.value(option.annotation, plant(unfrozen(option.default), "signature"), "")
    assert not check.faults, f"a default that its own annotation refuses: {check.faults}"
    return typed
