"""What a vocabulary does not have, told so that a user finds it."""

from __future__ import annotations

from collections.abc import Iterable

from zoo.errors import Invalid

SHOWN = 3  # characters that a message names


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
    if first:
        shown = ", ".join(f"{symbol!r} at position {at}" for symbol, at in list(first.items())[:SHOWN])
        more = f" and {len(first) - SHOWN} more" if len(first) > SHOWN else ""
        raise Invalid("prompt", f"the vocabulary of {known} has no {shown}{more}")
