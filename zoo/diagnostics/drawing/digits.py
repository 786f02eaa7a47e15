"""Numbers as people read them: with as many digits as say something."""

from __future__ import annotations

import math

MINUS = "\u2212"
NOTHING = "\u2013"  # where there is no number
RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def value(number: float, digits: int = 4) -> str:
    """With up to four digits that count: 0.9722, 12 340, 3.1 x 10^-5."""
    if not math.isfinite(number):
        return _infinite(number)
    size = abs(number)
    if size >= 1e7 or 0 < size < 1e-3:
        return _scientific(number, 2)
    if size >= 10 ** (digits - 1):
        return f"{number:,.0f}".replace(",", "\u202f").replace("-", MINUS)
    return f"{number:.{digits}g}".replace("-", MINUS)


def apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers, with as many digits as it takes to tell them apart."""
    for digits in range(4, 9):
        words = value(one, digits), value(other, digits)
        if words[0] != words[1]:
            break
    return words


def short(number: float) -> str:
    """In four or five letters, for the cells of a table."""
    if not math.isfinite(number):
        return _infinite(number)
    size = abs(number)
    for least, unit in ((1e6, "M"), (1e3, "k")):
        if size >= 0.9995 * least:
            return f"{number / least:.{1 if size < 10 * least else 0}f}{unit}".replace("-", MINUS)
    if 0 < size < 0.001:
        return f"{number:.0e}".replace("e-0", "e-").replace("-", MINUS)
    places = 0 if size >= 9.95 or size == 0 else 1 if size >= 0.995 else 2 if size >= 0.1 else 3
    return f"{number:.{places}f}".replace("-", MINUS)


def tick(number: float, step: float) -> str:
    """A label of an axis whose ticks are `step` apart."""
    if number == 0:
        return "0"
    if abs(number) >= 1e7 or step < 1e-4:
        return _scientific(number, 1)
    if step >= 1000 or abs(number) >= 10_000:
        return f"{number / 1000:g}k".replace("-", MINUS)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{number:.{places}f}".replace("-", MINUS)


def power(exponent: int) -> str:
    """A power of ten."""
    plain = {-2: "0.01", -1: "0.1", 0: "1", 1: "10", 2: "100", 3: "1000"}
    return plain.get(exponent) or "10" + str(exponent).translate(RAISED)


def _scientific(number: float, places: int) -> str:
    mantissa, exponent = f"{number:.{places}e}".split("e")
    return (
        f"{float(mantissa):g}".replace("-", MINUS)
        + "\u00d710"
        + str(int(exponent)).translate(RAISED)
    )


def _infinite(number: float) -> str:
    return NOTHING if math.isnan(number) else "\u221e" if number > 0 else MINUS + "\u221e"
