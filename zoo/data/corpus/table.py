"""Texts in a column of a table, as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zoo.data.corpus.corpus import PARTS, Document
from zoo.data.tables import open_table
from zoo.data.tables.open_table import Parts
from zoo.errors import DataError

MIXED = "json"  # the kind of a column whose rows are of several


def texts(opened: Any, split: str, column: str, path: str) -> Any:
    """A table of one column, `text`. Raises DataError where there is no such split or column, or no text in it."""
    table = open_table.split(opened, split, [column], path)
    refuse_others(table, column, f"{path}: column {column} of {split}")
    table = table.select_columns([column])
    return table if column == "text" else table.rename_column(column, "text")


def refuse_others(table: Any, column: str, named: str) -> None:
    """Raises DataError where a column is known to hold something other than text."""
    feature = (table.features or {}).get(column)
    kind = getattr(feature, "dtype", None) or type(feature).__name__.lower()
    if feature is not None and kind not in (*open_table.WORDS, MIXED):
        raise DataError(f"{named} holds {kind}, not text")


def text_of(text: Any) -> str:
    """The text of a row, empty where it has none. Raises ValueError where it is something else."""
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{text!r:.40} is no text")
    return text or ""


def joined(text: Any, between: str, named: str) -> str:
    """The text of a row and what comes after it, empty where it has none. Raises DataError where it is something else."""
    try:
        found = text_of(text)
    except ValueError as error:
        raise DataError(f"{named}: {error}") from None
    return found + between if found else ""


@dataclass
class Tabled:
    """The rows of a path's splits as documents, `between` after each, and the parts that they belong to.

    Rows without text are left out. `seed` draws those of a part that is a share.
    """

    path: str
    column: str
    between: str
    parts: Parts
    seed: int
    counts: dict[str, int] = field(default_factory=dict)  # documents by split, once they were read

    def read(self) -> list[Document]:
        opened = open_table.opened(self.path)
        documents: list[Document] = []
        for split in dict.fromkeys(map(self.parts.split, PARTS)):
            found = self._read(texts(opened, split, self.column, self.path), split)
            self.counts[split] = len(found)
            documents += found
        return documents

    def _read(self, table: Any, split: str) -> list[Document]:
        named = ((f"{self.path}, {split}, row {at}", row["text"]) for at, row in enumerate(table))
        return [
            Document(name, words)
            for name, text in named
            if (words := joined(text, self.between, name))
        ]

    def split(self, documents: Sequence[Document]) -> dict[str, list[Document]]:
        found, first = {}, 0
        for split, count in self.counts.items():
            for part in (part for part in PARTS if self.parts.split(part) == split):
                numbers = self.parts.numbers(part, count, self.seed)
                found[part] = [documents[first + number] for number in numbers]
            first += count
        return found

    def plain(self) -> list[Any]:
        named = [self.parts.train, self.parts.val, self.parts.test]
        return [*named, self.counts, self.seed if self.parts.drawn else None]
