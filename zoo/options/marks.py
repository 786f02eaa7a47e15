"""Marks that annotate options: bounds, patterns, and members of a kind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

COUNTED = 2**31 - 1  # as far as machines count one by one


@dataclass(frozen=True)
class Choice:
    """One `{name, options}` of a recipe: a member of a kind and the options it is made with."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> Choice:
        """Return the choice itself: it is frozen, and a read-only mapping cannot be copied."""
        return self


EncodingSpec = str | Mapping[str, Any] | Choice
"""One encoding: a name, or a mapping `{"name": "liere", "block": 4}`."""
ChainSpec = EncodingSpec | Sequence[EncodingSpec]
"""One encoding, or several that are applied in order."""


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
class Differences:
    """Marks a mapping from names to other values of some of the options beside it.

    Attributes:
        keys: The options that may differ, as far as the class has them.
        members: Options that only a name has, each with the kind of the member that is its value.
    """

    keys: tuple[str, ...]
    members: tuple[tuple[str, str], ...] = ()


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
        """Return what a value outside the bounds must be."""
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
        values: The default on one, two, and three or more axes.
    """

    values: tuple[float, float, float]

    def __str__(self) -> str:
        for_one, for_two, for_three = self.values
        return f"default {for_one:g} on one axis, {for_two:g} on two, {for_three:g} on three"

    def choose(self, value: float | None, axes: int) -> float:
        """Return the value that was given, or the default for so many axes."""
        return self.values[min(axes, len(self.values)) - 1] if value is None else value


@dataclass(frozen=True)
class Matches:
    """Marks the patterns of a string, and the problem and remedy to report for any other string."""

    patterns: tuple[re.Pattern[str], ...]
    problem: str
    remedy: str
