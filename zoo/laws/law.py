"""A law, the exception for a broken one, and the measurements of its check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from zoo.laws.case import Case

ROUNDING = 1e-9  # largest error of another order of operations in float64
FURTHEST = 6000  # position to which laws shift tokens, except where they try float32
NOTICEABLE = 1e-6  # smallest difference in float64 that is not rounding


class LawBroken(Exception):
    """A law is broken. The message has the measurement and its bound."""


@dataclass(frozen=True)
class Measurement:
    """A measured number and its bound: an upper bound (`most`) or a strict lower one (`least`)."""

    value: float
    bound: float
    kind: Literal["most", "least"] = "most"

    @property
    def is_within_bound(self) -> bool:
        # NaN is never within a bound.
        return self.value <= self.bound if self.kind == "most" else self.value > self.bound

    @property
    def bound_ratio(self) -> float:
        """Value relative to the bound; more than 1 means that the bound is exceeded."""
        if self.kind == "most":
            return self.value / self.bound
        return self.bound / self.value if self.value else float("inf")

    @property
    def bound_text(self) -> str:
        return f"{'at most' if self.kind == 'most' else 'more than'} {self.bound:.0e}"


class Recorder:
    """A checker of measured numbers that keeps the measurement closest to its bound."""

    def __init__(self) -> None:
        self.measurement: Measurement | None = None

    def require_close(
        self, actual: Tensor, expected: Tensor, what: str, bound: float = ROUNDING
    ) -> None:
        """Check that the error relative to 1 + |expected| is at most the bound.

        Raises:
            LawBroken: It is larger, or shapes or dtypes differ.
        """
        shapes = f"shape {tuple(actual.shape)}, not {tuple(expected.shape)}"
        require(actual.shape == expected.shape, f"{what}: {shapes}")
        require(actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}")
        self._record(Measurement(relative_error(actual, expected), bound), f"{what}: off by")

    def require_above(self, value: float, bound: float, what: str) -> None:
        """Check that a value exceeds the bound.

        Raises:
            LawBroken: It does not.
        """
        self._record(Measurement(value, bound, "least"), what)

    def _record(self, new: Measurement, quantity: str) -> None:
        if self.measurement is None or not new.bound_ratio <= self.measurement.bound_ratio:
            self.measurement = new
        require(new.is_within_bound, f"{quantity} {new.value:.1e}; {new.bound_text} would be right")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to 1 + |expected|; equal infinities have no error."""
    errors = (actual - expected).abs() / (1 + expected.abs())
    errors = errors.masked_fill(actual == expected, 0)
    return float(errors.detach().max()) if errors.numel() else 0.0


def require(condition: bool | Tensor, message: str) -> None:
    """Check a condition.

    Raises:
        LawBroken: The condition does not hold.
    """
    if not condition:
        raise LawBroken(message)


@dataclass(frozen=True)
class Law:
    """A property that every encoding must have.

    Attributes:
        name: Name of the function that checks it.
        statement: The law in one sentence.
        check: Function that raises LawBroken if a case breaks the law.
        exempt: Function that returns why the law does not apply to a case, or "".
    """

    name: str
    statement: str
    check: Callable[[Case, Recorder], None]
    exempt: Callable[[Case], str]

    def __call__(self, case: Case) -> Recorder:
        """Check a case, and return the recorder with its measurement.

        Raises:
            LawBroken: The case breaks the law.
        """
        recorder = Recorder()
        self.check(case, recorder)
        return recorder


def law(
    statement: str, exempt: Callable[[Case], str] = lambda case: ""
) -> Callable[[Callable[[Case, Recorder], None]], Law]:
    """Make a Law of the decorated function."""
    return lambda check: Law(check.__name__, statement, check, exempt)


def exempt_far(case: Case) -> str:
    """Exempt an encoding that refuses positions as far as laws shift tokens."""
    length = case.facts.text_length
    if length is None or length > FURTHEST:
        return ""
    return f"it refuses positions past length {length}; give it one above {FURTHEST:,}"


def exempt_full_sequence(case: Case) -> str:
    """Return the reason why encodings that read the full sequence are exempt, or ""."""
    if case.facts.needs_full_sequence:
        return "it needs the full sequence before the first layer, so no causal model has it"
    return ""
