"""Sizes that a model is evaluated at: numbers, `HxW`, and multiples `Nx` of the size that it was trained at."""

from __future__ import annotations

import re
from fractions import Fraction

from zoo.errors import OptionError
from zoo.registry import Matches

MULTIPLE = re.compile(r"\d{1,6}(\.\d{1,6})?x")
SHAPE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})")

LENGTH = Matches(
    (MULTIPLE,), "no length", "write a number of tokens, or 2x for twice the length of training"
)
RESOLUTION = Matches(
    (MULTIPLE, SHAPE),
    "no resolution",
    "write pixels as 24, height and width as 16x32, or 2x for twice the size of training",
)

Sides = tuple[int, int]


def length(word: int | str, trained: int, key: str) -> int:
    """In tokens. Raises OptionError for `key` where it would be no whole number."""
    return word if isinstance(word, int) else _times(word, trained, key)


def sides(word: int | str, trained: Sides, key: str) -> Sides:
    """Height and width in pixels. Raises OptionError for `key` where they would be no whole numbers."""
    if isinstance(word, int):
        return word, word
    if found := SHAPE.fullmatch(word):
        return int(found[1]), int(found[2])
    return _times(word, trained[0], key), _times(word, trained[1], key)


def titled(size: int | Sides) -> str:
    """A size as the key of a result: 24, or 16x32 where the sides are not equal."""
    if isinstance(size, int) or size[0] == size[1]:
        return str(size if isinstance(size, int) else size[0])
    return "x".join(map(str, size))


def _times(word: str, trained: int, key: str) -> int:
    size = Fraction(word.removesuffix("x")) * trained
    if size.denominator != 1 or not size:
        raise OptionError(
            key, f"{word} of {trained} is {float(size):g}, no whole number of at least 1"
        )
    return int(size)
