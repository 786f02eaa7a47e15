"""A law, the exception that reports a broken one, and the errors measured while it is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from zoo.laws.case import Case

ROUNDING = 1e-9  # largest error of the same numbers computed in another order, in float64
NOTICEABLE = 1e-6  # least difference that is not rounding, in float64


class LawBroken(Exception):
    """A law is broken; the message says what was measured and what would be right."""


@dataclass(frozen=True)
class Measurement:
    """A measured number and its bound: `most` so much, or `least`, more than that."""

    value: float
    bound: float
    kind: Literal["most", "least"] = "most"

    @property
    def is_within_bound(self) -> bool:
        # NaN is on neither side
        return self.value <= self.bound if self.kind == "most" else self.value > self.bound

    @property
    def bound_ratio(self) -> float:
        """Closeness to the bound; more than 1 means that the bound is broken."""
        if self.kind == "most":
            return self.value / self.bound
        return self.bound / self.value if self.value else float("inf")

    @property
    def bound_text(self) -> str:
        return f"{'at most' if self.kind == 'most' else 'more than'} {self.bound:.0e}"


class Recorder:
    """Checks measured numbers and keeps the measurement that is closest to its bound."""

    def __init__(self) -> None:
        self.measurement: Measurement | None = None

    def require_close(
        self, actual: Tensor, expected: Tensor, what: str, bound: float = ROUNDING
    ) -> None:
        """Raise LawBroken if an error relative to 1 + |expected| exceeds the bound."""
        shapes = f"shape {tuple(actual.shape)}, not {tuple(expected.shape)}"
        require(actual.shape == expected.shape, f"{what}: {shapes}")
        require(actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}")
        self._record(Measurement(relative_error(actual, expected), bound), f"{what}: off by")

    def require_above(self, value: float, bound: float, what: str) -> None:
        """Raise LawBroken if the value does not exceed the bound."""
        self._record(Measurement(value, bound, "least"), what)

    def _record(self, new: Measurement, what: str) -> None:
        if self.measurement is None or not new.bound_ratio <= self.measurement.bound_ratio:
            self.measurement = new
        require(new.is_within_bound, f"{what} {new.value:.1e}; {new.bound_text} would be right")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to 1 + |expected|; equal infinities do not differ."""
    errors = (actual - expected).abs() / (1 + expected.abs())
    errors = errors.masked_fill(actual == expected, 0)
    return float(errors.detach().max()) if errors.numel() else 0.0


def require(condition: bool | Tensor, message: str) -> None:
    """Raise LawBroken with the message unless the condition holds."""
    if not condition:
        raise LawBroken(message)


@dataclass(frozen=True)
class Law:
    """A property that every encoding has.

    Attributes:
        name: Name of the function that checks it.
        statement: The law in a sentence.
        check: Function that raises LawBroken where a case breaks the law.
        exempt: Function that returns why the law does not apply to a case, or "".
    """

    name: str
    statement: str
    check: Callable[[Case, Recorder], None]
    exempt: Callable[[Case], str]

    def __call__(self, case: Case) -> Recorder:
        """Check a case and return what was measured. Raises LawBroken."""
        recorder = Recorder()
        self.check(case, recorder)
        return recorder


def law(
    statement: str, exempt: Callable[[Case], str] = lambda case: ""
) -> Callable[[Callable[[Case, Recorder], None]], Law]:
    """Make a Law of the decorated function."""
    return lambda check: Law(check.__name__, statement, check, exempt)


def exempt_full_sequence(case: Case) -> str:
    """Exempt encodings that read the full sequence, which changes when the sequence grows."""
    if case.facts.needs_full_sequence:
        return "it needs the full sequence before the first layer, so no causal model has it"
    return ""
