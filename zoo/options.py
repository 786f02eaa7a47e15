"""Options: the marks that annotate them, and how their values are read and checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from zoo.errors import OptionError, nearest

COUNTED = 2**31 - 1  # as far as machines count one by one


@dataclass(frozen=True)
class Choice:
    """One `{name, options}` of a recipe: a member of a kind and the options it is made with."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Choice:
        """Return the choice itself: it is frozen, and a read-only mapping cannot be copied."""
        return self


@dataclass(frozen=True)
class Choices:
    """Marks an option that holds members of a kind: `Annotated[..., Choices(kind)]`.

    Attributes:
        kind: The kind.
        may_be_empty: Whether a list may hold none.
    """

    kind: str
    may_be_empty: bool = False


@dataclass(frozen=True)
class Between:
    """Marks the bounds of an option, both included: `Annotated[int, Between(1)]`."""

    low: float
    high: float = float("inf")

    def __str__(self) -> str:
        if 0 < self.low < 1e-6 and self.high > COUNTED:
            return "positive"
        if self.high > COUNTED:
            return f"at least {self.low}"
        return f"from {self.low} to {self.high}"

    def explain(self, value: float) -> str:
        """Say what a value outside the bounds must be."""
        if value > self.high >= COUNTED:
            return f"at most {self.high:.0f}"
        if self.high == COUNTED or 0 < value < self.low:
            return f"at least {self.low}"
        return str(self)


Count = Annotated[int, Between(1, COUNTED)]


@dataclass(frozen=True)
class ByAxes:
    """Marks an option whose default, in place of None, depends on the number of axes.

    Attributes:
        values: The default on one, two and three axes.
    """

    values: tuple[float, float, float]

    def __str__(self) -> str:
        one, two, three = self.values
        return f"default {one:g} on one axis, {two:g} on two, {three:g} on three"

    def choose(self, value: float | None, axes: int) -> float:
        """Return the value that was given, or the default for so many axes."""
        return self.values[axes - 1] if value is None else value


@dataclass(frozen=True)
class Matches:
    """Marks the patterns of a text, and problem and remedy to report for any other text."""

    patterns: tuple[re.Pattern[str], ...]
    problem: str
    remedy: str


def convert_option(key: str, hint: Any, value: Any) -> Any:
    """Convert an option's value to its declared type: a mapping to a dataclass, others unchanged.

    Raises:
        OptionError: The value is an unknown choice, or a number out of bounds.
    """
    if value is None:
        return None
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if get_origin(kind) is Literal and value not in get_args(kind):
            suggestion = nearest(str(value), map(str, get_args(kind)))
            raise OptionError(key, f"{key} {value!r} is not known; {suggestion}")
        for bound in getattr(kind, "__metadata__", ()):
            if not isinstance(bound, Between):
                continue
            if not isinstance(value, int | float):
                raise OptionError(key, f"{key} must be a number, got {value!r}")
            if not bound.low <= value <= bound.high:
                raise OptionError(key, f"{key} must be {bound.explain(value)}, got {value}")
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
            return _build_dataclass(key, kind, value)
    return value


def _build_dataclass(key: str, kind: Any, values: Mapping[str, Any]) -> Any:
    """Build a dataclass option from a mapping, with each key known and each value within bounds."""
    hints = get_type_hints(kind, include_extras=True)
    for name in values:
        if name not in hints:
            raise OptionError(key, f"{key} has no {name!r}; {nearest(str(name), hints)}")
    for one in dataclasses.fields(kind):
        is_required = one.default is one.default_factory is dataclasses.MISSING
        if is_required and one.name not in values:
            raise OptionError(key, f"{key} needs {one.name}")
    return kind(
        **{
            name: convert_option(f"{key}.{name}", hints[name], value)
            for name, value in values.items()
        }
    )
