"""The text column of a table, held as documents or streamed row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zoo.data.corpus.corpus import SPLITS, Document
from zoo.data.tables.open_table import TEXT_TYPES, SplitOptions, open_tables, select_split
from zoo.errors import DataError

MIXED_TYPE = "json"
"""The type of a column whose rows are of several types."""


def select_text(tables: Mapping[str, Any], split: str, column: str, path: str) -> Any:
    """Return a table of one column, `text`. Raises DataError if there is no such column of text."""
    table = select_split(tables, split, [column], path)
    check_text_column(table, column, f"{path}: column {column} of {split}")
    table = table.select_columns([column])
    return table if column == "text" else table.rename_column(column, "text")


def check_text_column(table: Any, column: str, title: str) -> None:
    """Raise DataError if a column is known to hold something other than text."""
    feature = (table.features or {}).get(column)
    kind = getattr(feature, "dtype", None) or type(feature).__name__.lower()
    if feature is not None and kind not in (*TEXT_TYPES, MIXED_TYPE):
        raise DataError(f"{title} holds {kind}, not text")


def check_text(value: Any) -> str:
    """Return the text of a row, empty if it has none. Raises ValueError if it is something else."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not text")
    return value or ""


def iterate_texts(table: Iterable[Any], separator: str, title: str) -> Iterator[tuple[str, str]]:
    """Yield name and text, with `separator` after it, of each row that has text.

    Raises:
        DataError: A row holds something other than text.
    """
    for number, row in enumerate(table):
        name = f"{title}, row {number}"
        try:
            text = check_text(row["text"])
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None
        if text:
            yield name, text + separator


@dataclass
class TableDocuments:
    """The rows of a table as documents, and their splits."""

    path: str
    column: str
    separator: str
    """Comes after each row."""
    splits: SplitOptions
    seed: int
    """Draws the rows of a split that is a fraction of another."""
    counts: dict[str, int] = field(default_factory=dict)
    """Documents of each split of the table, once they were read."""

    def read(self) -> list[Document]:
        """Read the rows of all splits; those without text are left out."""
        tables = open_tables(self.path)
        documents: list[Document] = []
        for name in dict.fromkeys(map(self.splits.find_table, SPLITS)):
            table = select_text(tables, name, self.column, self.path)
            rows = iterate_texts(table, self.separator, f"{self.path}, {name}")
            own = [Document(title, text) for title, text in rows]
            self.counts[name] = len(own)
            documents += own
        return documents

    def split(self, documents: Sequence[Document]) -> dict[str, list[Document]]:
        """Distribute the documents; see `Splitter`."""
        parts, first = {}, 0
        for name, count in self.counts.items():
            for split in SPLITS:
                if self.splits.find_table(split) == name:
                    numbers = self.splits.draw_rows(split, count, self.seed)
                    parts[split] = [documents[first + number] for number in numbers]
            first += count
        return parts

    def cache_key(self) -> list[Any]:
        """Return all that the split depends on; see `Splitter`."""
        names = [self.splits.train, self.splits.val, self.splits.test]
        return [*names, self.counts, self.seed if self.splits.is_drawn else None]
