"""Classes of labels: how many there are, their names, and what the numbers of a table mean by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.data.tables.opening import WORDS
from zoo.errors import Invalid

LEAST = 2


def refuse_few(classes: int | Sequence[str]) -> None:
    """Raises Invalid where there are not two classes to tell apart, or two of one name."""
    count = classes if isinstance(classes, int) else len(classes)
    if count < LEAST:
        named = f" ({', '.join(classes)})" if not isinstance(classes, int) and classes else ""
        raise Invalid("classes", f"{count}{named}, there must be at least two to tell apart")
    twice = [] if isinstance(classes, int) else sorted({name for name in classes if classes.count(name) > 1})
    if twice:
        raise Invalid("classes", f"{', '.join(twice)} is named twice; name each class once")


def declared(table: Any) -> tuple[str, ...]:
    """The names of the classes that the column `label` numbers, as far as a table tells them."""
    return tuple(getattr((table.features or {}).get("label"), "names", None) or ())


def names(table: Any, streaming: bool) -> tuple[str, ...]:
    """Those that a table declares, or the words that label its rows, sorted. Raises Invalid where it does not tell."""
    kind = getattr((table.features or {}).get("label"), "dtype", None)
    if found := declared(table):
        return found
    if streaming and kind in (None, *WORDS):
        raise Invalid("classes", "a stream does not tell the names of classes; list them as data.classes")
    if kind == "null":
        raise Invalid("classes", "no row has a label, so they do not tell; list the names of classes as data.classes")
    if kind not in WORDS:
        raise Invalid("classes", "the labels are plain numbers, which do not tell; say how many classes there are")
    return tuple(sorted({label for label in table["label"] if label is not None}))


def order(own: Sequence[str], known: Sequence[str], count: int, title: str) -> tuple[int, ...]:
    """The class that each number of a table means, where it calls them `own` and a model `known`, or numbers `count` of them.

    Names are empty where there are none. Raises Invalid where the classes are not the same.
    """
    if own and (len(own) != count or (known and set(own) != set(known))):
        asked = f"{', '.join(known)}" if known else f"{count} classes"
        raise Invalid("classes", f"{title} has the classes {', '.join(own)}, not {asked}")
    return tuple(map(list(known).index, own)) if own and known else tuple(range(count))
