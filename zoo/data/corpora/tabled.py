"""Texts in a column of a table, as documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zoo.data.corpora.corpus import PARTS
from zoo.data.corpora.files import Document
from zoo.data.tables import opening
from zoo.data.tables.parts import Parts
from zoo.errors import DataError


def texts(opened: Any, split: str, column: str, path: str) -> Any:
    """A table of one column, `text`. Raises DataError where there is no such split or column, or no text in it."""
    table = opening.split(opened, split, [column], path)
    kind = getattr((table.features or {}).get(column), "dtype", "string")
    if kind not in ("string", "large_string"):
        raise DataError(f"{path}: column {column} of {split} holds {kind}, not text")
    table = table.select_columns([column])
    return table if column == "text" else table.rename_column(column, "text")


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
        opened = opening.opened(self.path)
        documents: list[Document] = []
        for split in dict.fromkeys(map(self.parts.split, PARTS)):
            found = self._read(texts(opened, split, self.column, self.path), split)
            self.counts[split] = len(found)
            documents += found
        return documents

    def _read(self, table: Any, split: str) -> list[Document]:
        rows = enumerate(row["text"] for row in table)
        return [Document(f"{self.path}, {split}, row {at}", text + self.between) for at, text in rows if text]

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
