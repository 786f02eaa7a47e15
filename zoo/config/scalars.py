"""Which scalar fits which annotation, and what to write instead of one that does not."""

from __future__ import annotations

import sys
from typing import Any, Literal, get_args, get_origin

from zoo.config.words import nearest

_BOOLEANS = {"yes": "write true", "on": "write true", "no": "write false", "off": "write false"}


def fits(annotation: Any, given: object) -> bool:
    """Whether a scalar has the type of its annotation: true is no number, 1 is a float, 1.0 is no int."""
    if get_origin(annotation) is Literal:
        return any(type(given) is type(each) and given == each for each in get_args(annotation))
    assert annotation in (int, float, bool, str, type(None)), f"no recipe can hold {annotation}"
    if annotation is float:
        return type(given) in (int, float) and abs(given) <= sys.float_info.max  # type: ignore[arg-type]
    return type(given) is annotation


def instead(annotation: Any, given: object) -> str:
    """What would be right, where it can be guessed."""
    if get_origin(annotation) is Literal:
        hint = nearest(str(given), map(str, get_args(annotation)))
        return hint if hint.startswith("did") else ""
    if annotation is int and isinstance(given, float) and given.is_integer():
        return f"write {given:.0f}" if abs(given) < 1e15 else ""
    if annotation is bool and isinstance(given, str):
        return _BOOLEANS.get(given.lower(), "")
    return "put it in quotes" if annotation is str and isinstance(given, int | float) else ""
