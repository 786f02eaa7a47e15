"""What a vocabulary does not have, told so that a user finds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zoo.errors import Invalid

SHOWN = 3  # characters, or words, that a message names
LONGEST = 40  # characters of such a word


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, from a broken command line
        refuse_unknown(text, [error.start], "UTF-8")
        raise


def refuse_unknown(text: str, positions: Iterable[int], known: str) -> None:
    first: dict[str, int] = {}
    for at in positions:
        first.setdefault(text[at], int(at))
    _refuse([f"{symbol!r} at position {at}" for symbol, at in first.items()], known)


def refuse_unknown_words(words: Iterable[str], known: int) -> None:
    _refuse([repr(word[:LONGEST]) for word in dict.fromkeys(words)], f"{known} words")


def _refuse(unknown: Sequence[str], known: str) -> None:
    if unknown:
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise Invalid("prompt", f"the vocabulary of {known} has no {', '.join(unknown[:SHOWN])}{more}")
