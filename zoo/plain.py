"""Plain data, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any


def finite(value: Any) -> Any:
    """The same, with None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
