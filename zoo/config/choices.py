"""A `{name, options}` of a recipe against the class that is registered under the name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Protocol, cast

from zoo.config.interpolation import is_open
from zoo.config.signature import Option, extras, options
from zoo.config.tree import Node, join, plain
from zoo.config.words import nearest, value
from zoo.registry import Choice, Choices, find, names


class Walk(Protocol):
    """The walk over a recipe that meets a choice on its way, as far as a choice needs it."""

    places: dict[str, str]
    untyped: set[str]

    def fields(
        self, schema: Mapping[str, Option], given: Mapping[str, Node], node: Node, key: str
    ) -> dict[str, Any]: ...

    def refuse(self, node: Node, key: str, problem: str, remedy: str = "") -> Any: ...

    def missing(self, node: Node, key: str, remedy: str) -> None: ...

    def mismatch(self, annotation: Any, node: Node, key: str, remedy: str = "") -> Any: ...


def choices(check: Walk, kind: str, node: Node, key: str) -> Any:
    """A list of choices; one alone is short for a list of it."""
    check.places[key] = node.place
    if is_open(node):
        check.untyped.add(key)
        return node.value
    if not isinstance(node.value, str | dict | list):
        return check.mismatch(Annotated[Choice, Choices(kind)], node, key)
    entries = node.value if isinstance(node.value, list) else [node]
    if not entries:
        return check.refuse(node, key, f"a list of no {kind}", nearest("", names(kind)))
    return tuple(choice(check, kind, entry, join(key, i)) for i, entry in enumerate(entries))


def choice(check: Walk, kind: str, node: Node, key: str) -> Any:
    """A Choice with every option of its class; of an unknown name the options are not looked at."""
    check.places[key] = node.place
    given = node.value
    if is_open(node):
        check.untyped.add(key)
        return given
    if isinstance(given, str):
        given = {"name": node}
    if not isinstance(given, dict):
        return check.mismatch(Annotated[Choice, Choices(kind)], node, key)
    name = given.get("name") or Node(None, node.place)
    cls = _named(check, kind, name, join(key, "name"))
    if cls is None:
        return plain(node)
    own, extra = options(cls), extras(kind)
    assert not {"name", *extra} & own.keys(), (
        f"{cls} takes an option that every member of {kind} has"
    )
    rest = {word: child for word, child in given.items() if word != "name"}
    typed = check.fields({**own, **extra}, rest, node, key)
    kept = {word: each for word, each in typed.items() if word in own or each is not None}
    return Choice(str(name.value), MappingProxyType(kept))


def _named(check: Walk, kind: str, name: Node, key: str) -> type | None:
    """The class of a name; None, and a fault, if there is none."""
    check.places[key] = name.place
    if is_open(name):
        check.untyped.add(key)
    elif name.value is None:
        check.missing(name, key, nearest("", names(kind)))
    elif (cls := _find(kind, str(plain(name)))) is None:
        problem = f"there is no {value(plain(name))} among {kind}"
        check.refuse(name, key, problem, nearest(str(plain(name)), names(kind)))
    else:
        return cls
    return None


def _find(kind: str, name: str) -> type | None:
    try:
        return cast(type, find(kind, name))
    except KeyError:
        if name in names(kind):  # an error of the file that the name stands for
            raise
        return None
