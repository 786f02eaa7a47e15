"""A `{name, options}` of a recipe against the class that is registered under the name."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from zoo.recipe.interpolation import is_open
from zoo.recipe.signature import extras, options
from zoo.recipe.tree import Node, join, plain
from zoo.recipe.words import nearest, value
from zoo.registry import Choice, Choices, find, names

if TYPE_CHECKING:
    from zoo.recipe.check import Check


def choices(check: Check, kind: str, node: Node, key: str) -> tuple[Any, ...]:
    """A list of choices; one alone is short for a list of it."""
    entries = node.value if isinstance(node.value, list) else [node]
    return tuple(choice(check, kind, entry, join(key, i)) for i, entry in enumerate(entries))


def choice(check: Check, kind: str, node: Node, key: str) -> Any:
    """A Choice with every option of its class; of an unknown name the options are not looked at."""
    check.places[key] = node.place
    given = node.value
    if is_open(node):
        return given
    if isinstance(given, str):
        given = {"name": node}
    if not isinstance(given, dict):
        return check.mismatch(Annotated[Choice, Choices(kind)], node, key)
    name = _name(check, kind, given, node, key)
    if name is None:
        return plain(node)
    own, extra = options(find(kind, name)), extras(kind)
    assert not {"name", *extra} & own.keys(), f"{name} takes an option that every member of {kind} has"
    rest = {word: child for word, child in given.items() if word != "name"}
    typed = check.fields({**own, **extra}, rest, node, key)
    return Choice(
        name, MappingProxyType({word: each for word, each in typed.items() if word in own or each is not None})
    )


def _name(check: Check, kind: str, given: dict[str, Node], node: Node, key: str) -> str | None:
    name, key = given.get("name"), join(key, "name")
    if name is None:
        if not check.partial:
            check.refuse(node, key, "missing", nearest("", names(kind)))
        return None
    check.places[key] = name.place
    if is_open(name):
        check.untyped.add(key)
        return None
    if isinstance(name.value, str) and name.value in names(kind):
        return name.value
    check.refuse(name, key, f"there is no {value(plain(name))} among {kind}", nearest(str(plain(name)), names(kind)))
    return None
