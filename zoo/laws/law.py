"""What a law is, what breaks it, and the figures that it has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from zoo.laws.case import Case

EXACT = 1e-9  # the same numbers in another order, in float64
SEEN = 1e-6  # a difference, not rounding, in float64


class LawBroken(Exception):
    """A law is broken; the message says what was seen, and what would be right."""


@dataclass(frozen=True)
class Measurement:
    """A measured number and its bound: at `most` so much, or more than that."""

    value: float
    bound: float
    kind: Literal["most", "least"] = "most"

    @property
    def kept(self) -> bool:
        return (
            self.value <= self.bound if self.kind == "most" else self.value > self.bound
        )  # NaN is neither

    @property
    def share(self) -> float:
        """How near it is to its bound: more than 1 where that is broken."""
        return (
            self.value / self.bound
            if self.kind == "most"
            else self.bound / self.value
            if self.value
            else float("inf")
        )

    @property
    def limit(self) -> str:
        """The bound in words."""
        return f"{'at most' if self.kind == 'most' else 'more than'} {self.bound:.0e}"


class Recorder:
    """Takes down what a law measures, and keeps the figure that comes nearest to its bound."""

    def __init__(self) -> None:
        self.figure: Measurement | None = None

    def near(self, actual: Tensor, expected: Tensor, what: str, bound: float = EXACT) -> None:
        """Raises Broken unless they are the same but for `bound`, relative to 1 and the expected number."""
        require(
            actual.shape == expected.shape,
            f"{what}: shaped {tuple(actual.shape)}, not {tuple(expected.shape)}",
        )
        require(actual.dtype == expected.dtype, f"{what}: in {actual.dtype}, not {expected.dtype}")
        self._enter(Measurement(error(actual, expected), bound), f"{what}: off by")

    def above(self, value: float, bound: float, what: str) -> None:
        """Raises Broken unless the number is more than its bound."""
        self._enter(Measurement(value, bound, "least"), what)

    def _enter(self, figure: Measurement, what: str) -> None:
        if self.figure is None or not figure.share <= self.figure.share:
            self.figure = figure
        require(figure.kept, f"{what} {figure.value:.1e}; {figure.limit} would be right")


def error(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to 1 + |expected|; infinities that are equal do not differ."""
    apart = (actual - expected).abs() / (1 + expected.abs())
    apart = apart.masked_fill(actual == expected, 0)
    return float(apart.detach().max()) if apart.numel() else 0.0


def require(kept: bool | Tensor, otherwise: str) -> None:
    """Raises Broken, saying what was seen, unless it is kept."""
    if not kept:
        raise LawBroken(otherwise)


@dataclass(frozen=True)
class Law:
    """`says` states it; `exempt` says why it does not apply to a member, or nothing; `check` raises Broken."""

    name: str
    says: str
    check: Callable[[Case, Recorder], None]
    exempt: Callable[[Case], str]

    def __call__(self, member: Case) -> Recorder:
        """What was seen of a member. Raises Broken."""
        seen = Recorder()
        self.check(member, seen)
        return seen


def law(
    says: str, exempt: Callable[[Case], str] = lambda member: ""
) -> Callable[[Callable[[Case, Recorder], None]], Law]:
    """The function below as a law of its name."""
    return lambda check: Law(check.__name__, says, check, exempt)


def grows(member: Case) -> str:
    """Exempts what reads the whole text before the first layer: it is another beside a longer text."""
    return (
        "it reads the whole text before the first layer, so no causal model has it"
        if member.facts.needs_full_sequence
        else ""
    )
