"""How options and their types read in messages and in `--help`."""

from __future__ import annotations

import dataclasses
import textwrap
import types
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from zoo.options.marks import COUNTED, Between, Choice, Choices
from zoo.options.plain import format_value
from zoo.options.signature import Option, read_class
from zoo.registry import names

WIDTH = 100
INDENT = 4

# how each type reads in --help, and in messages
TYPES: Mapping[Any, tuple[str, str]] = MappingProxyType(
    {
        int: ("int", "an integer"),
        float: ("float", "a finite number"),
        bool: ("bool", "a boolean"),
        str: ("str", "a string"),
        type(None): ("null", "null"),
    }
)


def describe_type(annotation: Any) -> str:
    """Return an annotation as a noun: an integer, a list of 2 values."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated and isinstance(arguments[1], Choices):
        listed = textwrap.shorten(", ".join(names(arguments[1].kind)), 80, placeholder=" ...")
        return f"{{name: ..., options}} with a name of {listed}"
    if origin is Annotated:
        return describe_type(arguments[0])
    if origin is Literal:
        listed = ", ".join(map(format_value, arguments))
        return textwrap.shorten(
            listed if len(arguments) == 1 else f"one of {listed}", 80, placeholder=" ..."
        )
    if origin in (Union, types.UnionType):
        return " or ".join(map(describe_type, arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)} values"
    if dataclasses.is_dataclass(annotation) or origin is dict or origin is Mapping:
        return "a mapping"
    if annotation in TYPES:
        return TYPES[annotation][1]
    return f"a list [{describe_type(arguments[0])}, ...]"


def format_type(annotation: Any) -> str:
    """Return an annotation as `--help` shows it: `int >= 1 or null`, `auto|cpu`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in TYPES:
        return TYPES[annotation][0]
    if origin is Annotated:
        marks = (_format_bounds(mark) for mark in arguments[1:] if isinstance(mark, Between))
        return "".join((format_type(arguments[0]), *marks))
    if origin is Literal:
        return "|".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(format_type, arguments)))
    if annotation is Choice:
        return "name or mapping"
    if origin in (list, tuple, Sequence):
        return f"list of {format_type(arguments[0])}"
    return "mapping"


def _format_bounds(bounds: Between) -> str:
    if bounds.high in (COUNTED, float("inf")):
        return f" >= {bounds.low}"
    return f" from {bounds.low} to {bounds.high}"


def format_options(sources: Sequence[tuple[str, str]]) -> str:
    """List the options of several dataclasses for `--help`; empty if there are none.

    Args:
        sources: Pairs of a key prefix (`trainer.`, or nothing) and the class, `module:Class`.
    """
    lines = [
        _format_option(prefix + key, option)
        for prefix, path in sources
        for key, option in read_class(path).items()
    ]
    return "\n".join(["options, written key=value:", *lines]) if lines else ""


def _format_option(key: str, option: Option) -> str:
    default = "" if option.is_required else format_word(option.default)
    head = f"{'':{INDENT}}{key}={default}  ({format_type(option.annotation)})"
    body = textwrap.wrap(option.comment, WIDTH - 2 * INDENT)
    return "\n".join([head, *(f"{'':{2 * INDENT}}{line}" for line in body)])


def format_word(value: Any) -> str:
    """Write a value as a user types it after `key=`: null, true, [a,b]."""
    if value is None or isinstance(value, bool):
        return format_value(value)
    if isinstance(value, Choice):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_word, value))}]"
    return str(value)
