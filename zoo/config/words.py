"""The words of a fault: what was expected, what was given, what is nearest."""

from __future__ import annotations

import dataclasses
import reprlib
import textwrap
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from zoo import registry

_TYPES = {
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    str: "a text",
    type(None): "null",
}
_YAML = {None: "null", True: "true", False: "false"}


def expected(annotation: Any) -> str:
    """An annotation in plain words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and isinstance(arguments[1], registry.Choices):
        known = textwrap.shorten(
            ", ".join(registry.names(arguments[1].kind)), 80, placeholder=" ..."
        )
        return f"{{name: ..., options}} with a name of {known}"
    if origin is Annotated:
        return expected(arguments[0])
    if origin is Literal:
        return textwrap.shorten(
            "one of " + ", ".join(map(value, arguments)), 80, placeholder=" ..."
        )
    if origin in (Union, types.UnionType):
        return " or ".join(map(expected, arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)} values"
    if dataclasses.is_dataclass(annotation) or origin is dict or origin is Mapping:
        return "a mapping"
    return _TYPES.get(annotation) or f"a list [{expected(arguments[0])}, ...]"


def value(given: object) -> str:
    """A value as YAML would have it, shortened."""
    return _YAML[given] if given is None or isinstance(given, bool) else reprlib.repr(given)


def nearest(word: str, known: Iterable[str], parent: str = "") -> str:
    """A hint that ends a fault: the nearest known word as a full key below `parent`, or the known words."""
    known = tuple(known)
    if not known:
        return "none is known here"
    asked = "did you mean "
    hint = registry.nearest(word, known)
    if hint.startswith(asked):
        return hint.replace(asked, f"{asked}{parent}." if parent else asked, 1)
    return textwrap.shorten(hint, 110, placeholder=" ...")
