"""Numbers and names as text, with as many digits as are meaningful, and as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any

from zoo.utils import escape_text

EXACT = frozenset({str, int, bool, type(None)})
"""Types of values that are finite, or no numbers."""
MINUS = "\u2212"
NOTHING = "\u2013"  # shown for a missing number
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
# Characters that HTML, XML or UTF-8 cannot represent.
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


LONG_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "ece": "calibration error",
        "exact": "exact answers",
        "f1": "F1",
        "mae": "mean absolute error",
        "miou": "mean IoU",
        "rmse": "root mean squared error",
    }
)
"""Names of metrics that are abbreviated in files."""
SPLITS: Mapping[str, str] = MappingProxyType({"train": "training", "val": "validation"})
LOWER = frozenset({"loss", "perplexity", "bits_per_character", "ece", "mae", "rmse"})
HIGHER = frozenset({"accuracy", "exact", "f1", "miou", "solved"})


def name_metric(metric: str, *, arrow: bool = False) -> str:
    """Return a metric as people say it: bits per character for test/bits_per_character.

    Args:
        metric: The metric as files name it; test/ is left out, as pages are of the test.
        arrow: Whether an arrow follows to where it is better, if that is known.
    """
    split, _, name = metric.rpartition("/")
    words = LONG_NAMES.get(name, name.replace("_", " "))
    if split not in ("", "test"):
        words = f"{SPLITS.get(split, split)} {words}"
    side = "\u2193" if name in LOWER else "\u2191" if name in HIGHER else ""
    return f"{words} {side}" if arrow and side else words


def format_alike(values: Sequence[float], digits: int = 4) -> list[str]:
    """Format numbers of a column with equal decimals, so many that the largest has `digits` digits.

    Numbers of which the smallest would vanish keep decimals of their own.
    """
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    if not sizes or max(sizes) >= 10**digits or min(sizes) < max(sizes) * 10.0 ** (1 - digits):
        return [format_number(value, digits) for value in values]
    decimals = digits - 1 - max(-1, math.floor(math.log10(max(sizes))))
    return [format_fixed(value, decimals) for value in values]


def format_number(number: float, digits: int = 4) -> str:
    """Format a number with up to `digits` significant digits: 0.9722, 12 340, 3.1x10^-5."""
    if not math.isfinite(number):
        return _format_infinite(number)
    size = abs(number)
    # beyond this zeros have to be counted
    if size >= 1e7 or 0 < size < 1e-3:
        mantissa, exponent = f"{number:.2e}".split("e")
        scientific = f"{float(mantissa):g}\u00d710{str(int(exponent)).translate(SUPERSCRIPTS)}"
        return scientific.replace("-", MINUS)
    if size >= 10 ** (digits - 1):
        return f"{number:,.0f}".replace(",", "\u202f").replace("-", MINUS)
    return f"{number:.{digits}g}".replace("-", MINUS)


def format_pair(one: float, other: float) -> tuple[str, str]:
    """Format two numbers with as many digits as they need to differ."""
    for digits in range(4, 9):
        texts = format_number(one, digits), format_number(other, digits)
        if texts[0] != texts[1]:
            break
    return texts


def format_short(number: float) -> str:
    """Format a number in four or five characters, for table cells."""
    if not math.isfinite(number):
        return _format_infinite(number)
    # Each bound is half a unit of the last digit below the power, where rounding would add a digit.
    size = abs(number)
    for least, unit in ((1e6, "M"), (1e3, "k")):
        if size >= 0.9995 * least:
            decimals = 1 if size < 10 * least else 0
            return f"{number / least:.{decimals}f}{unit}".replace("-", MINUS)
    if 0 < size < 0.001:
        return f"{number:.0e}".replace("e-0", "e-").replace("-", MINUS)
    decimals = 0 if size >= 9.95 or size == 0 else 1 if size >= 0.995 else 2 if size >= 0.1 else 3
    return f"{number:.{decimals}f}".replace("-", MINUS)


def format_fixed(number: float | None, decimals: int, *, sign: bool = False) -> str:
    """Format a number with a fixed number of decimals. A missing number is a dash."""
    if number is None:
        return NOTHING
    if not math.isfinite(number) or abs(number) >= 1e5:
        return format_number(number)
    return format(number, f"{'+' if sign else ''}.{decimals}f").replace("-", MINUS)


def _format_infinite(number: float) -> str:
    if math.isnan(number):
        return NOTHING
    return "\u221e" if number > 0 else f"{MINUS}\u221e"


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, in nested data."""
    if isinstance(value, Mapping):
        return {
            key: child if type(child) in EXACT else finite(child) for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [item if type(item) in EXACT else finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def as_json(result: Mapping[str, Any]) -> str:
    """Encode a mapping as JSON, with null for NaN and infinity.

    Characters that control a terminal, such as direction marks, are escaped.
    """
    encoded = json.dumps(finite(result), indent=1, allow_nan=False, ensure_ascii=False)
    for character in {
        letter for letter in set(encoded) if letter != "\n" and escape_text(letter) != letter
    }:
        encoded = encoded.replace(character, json.dumps(character)[1:-1])
    return encoded


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: 1 core, 2 cores."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_p_value(p_value: float) -> str:
    """Format a p-value as people write it: p = 0.031, or p < 0.001."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
