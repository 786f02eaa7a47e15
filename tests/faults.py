"""Laws tried with encodings that have a planted fault."""

from __future__ import annotations

from typing import Any

from zoo.attention.encoding import Encoding
from zoo.laws import Case, Law
from zoo.laws.certificate import try_law


def name_parameter(value: Any) -> str:
    """Return the id of a law, or of a class with a planted fault, among parameters of a test."""
    return str(value.name if isinstance(value, Law) else value.__name__)


def make_case(cls: type[Encoding], axes: int | None = None) -> Case:
    """Make a case of a class, by default on the fewest axes that it accepts."""
    return Case(cls.__name__, axes or cls.axes[0], cls)


def check_fault_is_caught(law: Law, fault: type[Encoding], axes: int | None = None) -> None:
    """Assert that a law is broken by what it measures, and not by an exception of the encoding."""
    found = try_law(law, make_case(fault, axes or (2 if 2 in fault.axes else 1)))
    assert found.outcome == "broken", found
    assert "Error" not in found.detail
