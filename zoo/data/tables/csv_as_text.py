"""CSV files whose cells are read as they stand: every column is text, and nothing is missing.

pandas takes NA, null and None for missing cells, 007 for 7, and labels beside an empty cell for
floating-point numbers. Only a feature that a dataset declares gives a column another type.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from datasets.builder import Key
from datasets.packaged_modules.csv.csv import Csv
from datasets.streaming import extend_dataset_builder_for_streaming

from zoo.data.tables.separators import explain_separator
from zoo.utils import describe_cause

OPTIONS = {"keep_default_na": False, "na_filter": False, "encoding": "utf-8-sig"}
"""Options of the builder; the encoding drops the mark that some programs put before UTF-8."""


class WidthError(ValueError):
    """Rows have more cells than the header has names."""


def _check_width(chunk: pd.DataFrame, separator: str) -> None:
    """Raise WidthError where pandas took the first cells of rows for their names."""
    if not isinstance(chunk.index, pd.RangeIndex):
        message = f"rows have {chunk.index.nlevels + len(chunk.columns)} cells"
        hint = f"put text with {separator!r} in it in double quotes"
        raise WidthError(f"{message}, and the header has {len(chunk.columns)}; {hint}")


def become_text(builder: Csv) -> None:
    """Make a builder of CSV files, which was made with OPTIONS, infer no types."""
    builder.__class__ = TextCsv
    # as its constructor has done with the module of its class
    extend_dataset_builder_for_streaming(builder)


class TextCsv(Csv):  # type: ignore[misc]
    """The builder of `datasets` for CSV files, which infers no types."""

    def _generate_tables(self, base_files: Any, files_iterables: Any) -> Iterator[Any]:
        options = self.config.pd_read_csv_kwargs
        for number, files in enumerate(files_iterables):
            for file in files:
                try:
                    # `datasets` replaces open by a function that reads compressed and remote files
                    with (
                        open(file, "rb") as content,
                        pd.read_csv(content, iterator=True, dtype=str, **options) as chunks,
                    ):
                        for at, chunk in enumerate(chunks):
                            _check_width(chunk, self.config.sep)
                            table = pa.Table.from_pandas(chunk, preserve_index=False)
                            yield Key(number, at), self._cast_table(self._clear_empty(table))
                # the file is one of many, and the message is shown without its cause
                except UnicodeDecodeError as error:
                    message = f"{error.reason} at byte {error.start}"
                    name = Path(str(file)).name
                    raise ValueError(f"{name} is not UTF-8, {message}; save it as UTF-8") from None
                except (pd.errors.ParserError, WidthError) as error:
                    with open(file, "rb") as content:
                        header = content.readline().decode(errors="replace").strip()
                    names = header.split(self.config.sep or ",")
                    message = f"{Path(str(file)).name}: {describe_cause(error)}"
                    raise ValueError(f"{message}{explain_separator(names)}") from None

    def _clear_empty(self, table: Any) -> Any:
        """Return a table without values in empty cells of columns that are declared as no text."""
        for name, feature in (self.info.features or {}).items():
            if name in table.column_names and getattr(feature, "dtype", "string") not in (
                "string",
                "large_string",
            ):
                column = table[name]
                cleared = pc.if_else(pc.equal(column, ""), None, column)
                table = table.set_column(table.column_names.index(name), name, cleared)
        return table
