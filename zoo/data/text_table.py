"""Text in a column of a table: Parquet, JSON Lines, CSV, or a dataset of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from zoo.data.corpus.corpus import SPLITS, Document
from zoo.data.corpus.source import CorpusOptions, CorpusSource
from zoo.data.tables.open_table import (
    SplitOptions,
    find_files,
    iterate_texts,
    open_tables,
    select_text,
)
from zoo.errors import OptionError
from zoo.registry import register


@register
class TextTable(CorpusSource):
    """Windows of `length` tokens of the rows of `path`: a folder, a file or a glob of files.

    `hub:owner/name` or `hub:owner/name:configuration` is a dataset of the Hub. `train` names a
    split; `val` and `test` each name a split or are fractions of the rows of `train`, drawn from
    the seed. `text` names the column. Rows are joined in their order, each followed by `between`,
    which may be a special token of the tokenizer; rows without text are left out. Each row is a
    document. The other options are those of the source `text`. The text is encoded once and cached;
    `text_stream` is for text that does not fit into memory.
    """

    def __init__(
        self,
        seed: int,
        *,
        path: str | None = None,
        train: str = "train",
        val: float | str = "validation",
        test: float | str = "test",
        text: str = "text",
        between: str = "\n\n",
        **options: Unpack[CorpusOptions],
    ) -> None:
        if path is None:
            hint = "set it to the location of your table, or to a dataset as hub:owner/name"
            raise OptionError("path", f"missing: {hint}")
        rows = TableDocuments(path, text, between, SplitOptions(train, val, test), seed)
        super().__init__(seed, rows.read, rows, **options)
        self.path = path

    def check_source(self) -> None:
        find_files(self.path)


@dataclass
class TableDocuments:
    """The documents of a corpus that are rows of a table, and their splits."""

    path: str
    column: str
    separator: str
    """Text after each row."""
    splits: SplitOptions
    seed: int
    """Seed of the rows of a split that is a fraction of another."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of documents in each split of the table, after they were read."""

    def read(self) -> list[Document]:
        """Read the rows of all splits, without those that have no text."""
        tables = open_tables(self.path)
        # Splits that are fractions come from one table, which is read once.
        documents: list[Document] = []
        for name in dict.fromkeys(map(self.splits.find_table, SPLITS)):
            table = select_text(tables, name, self.column, self.path)
            rows = iterate_texts(table, self.separator, f"{self.path}, {name}")
            table_documents = [Document(title, text) for title, text in rows]
            self.counts[name] = len(table_documents)
            documents += table_documents
        return documents

    def split(self, documents: Sequence[Document]) -> dict[str, list[Document]]:
        """Distribute the documents. See `Splitter`."""
        # Documents are in the order of `read`: those of one table after those of another.
        parts, start = {}, 0
        for name, count in self.counts.items():
            for split in SPLITS:
                if self.splits.find_table(split) == name:
                    numbers = self.splits.draw_rows(split, count, self.seed)
                    parts[split] = [documents[start + number] for number in numbers]
            start += count
        return parts

    def cache_key(self) -> list[Any]:
        """Return everything that the split depends on. See `Splitter`."""
        names = [self.splits.train, self.splits.val, self.splits.test]
        return [*names, self.counts, self.seed if self.splits.is_drawn else None]
