"""Your own labelled texts: Parquet, JSON Lines, CSV, class folders, or a dataset of the Hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from zoo.data.base import FileBatch
from zoo.data.corpus.classification import TextRowReader, open_class_folders, read_text_files
from zoo.data.corpus.tokenizer import Bytes, CorpusVocabulary, load_tokenizer, vocabulary_from_dict
from zoo.data.spec import DataSpec, TextClassificationSpec
from zoo.data.tables.labelled_table import (
    LabelledTable,
    LabelledTableOptions,
    check_classes,
    list_classes,
    list_declared_classes,
    map_classes,
)
from zoo.data.tables.open_table import check_text_column, open_tables, rename_columns, select_split
from zoo.errors import OptionError
from zoo.options import Count
from zoo.registry import register


@register
class TextClassification(LabelledTable):
    """Texts of `path`: class folders of .txt files, or a folder, a file or a glob of tables.

    `hub:owner/name` or `hub:owner/name:configuration` is a dataset of the Hub. Texts are cut after
    `length` tokens. `train` names a split; `val` and `test` each name a split or are fractions of
    `train`. `text` and `label` name columns. Tokens are bytes, or those of `tokenizer`: a file of
    the library tokenizers, or `hub:owner/name`. `classes` is the number of classes, or their names
    in the model's order; by default the names of the table. It is required only if labels are plain
    integers, or strings in a stream. Up to a fraction `skip` of rows may lack text or have another
    label and are skipped. `stream` and the order are as in the source `images`.
    """

    def __init__(
        self,
        seed: int,
        *,
        text: str = "text",
        classes: Count | tuple[str, ...] | None = None,
        tokenizer: str | None = None,
        length: Count = 256,
        batch_size: Count = 32,
        **options: Unpack[LabelledTableOptions],
    ) -> None:
        super().__init__(seed, "texts", batch_size, **options)
        if classes is not None:
            check_classes(classes)
        self.tokenizer, self.classes = tokenizer, classes
        self.columns, self.length = (text, self.label), length

    @cached_property
    def vocabulary(self) -> CorpusVocabulary:
        return Bytes() if self.tokenizer is None else load_tokenizer(self.tokenizer)

    @cached_property
    def spec(self) -> TextClassificationSpec:  # type: ignore[override]
        if isinstance(self.classes, int):
            return TextClassificationSpec(self.length, self.vocabulary, self.classes)
        names = self._read_classes() if self.classes is None else self.classes
        check_classes(names)
        return TextClassificationSpec(self.length, self.vocabulary, len(names), names)

    def _read_classes(self) -> tuple[str, ...]:
        streaming = self.stream is not None
        return list_classes(self.select_table(self.open_tables(streaming), "train"), streaming)

    def check_source(self) -> None:
        # Streaming opens a table without reading it.
        tables = self.open_tables(streaming=True)
        for split in ("train", "val", "test"):
            table = self.select_table(tables, split)
            if self.classes is not None:
                self._map_labels(table, split)

    def adopt_spec(self, spec: DataSpec) -> None:
        if not isinstance(spec, TextClassificationSpec):
            raise OptionError("", "the model was not trained on texts with labels")
        names = self.classes if isinstance(self.classes, tuple) else ()
        count = len(names) or self.classes or spec.classes
        if count != spec.classes:
            message = f"{count} classes, but the model was trained with {spec.classes}"
            raise OptionError("classes", message)
        # The names must be those of the model; their order may differ.
        map_classes(names, spec.names, spec.classes, "data.classes")
        self.vocabulary = vocabulary_from_dict(spec.vocabulary.to_dict())
        # Readers were made for the classes before.
        self.subsets.clear()
        self.spec = TextClassificationSpec(
            self.length, self.vocabulary, spec.classes, spec.names or names
        )

    def read_files(self, paths: Sequence[Path], spec: DataSpec) -> Iterator[FileBatch]:
        return read_text_files(paths, spec, self.length, self.batch_size)

    def open_tables(self, streaming: bool) -> Mapping[str, Any]:
        return open_class_folders(self.path, streaming) or open_tables(self.path, streaming)

    def select_table(self, tables: Mapping[str, Any], split: str) -> Any:
        name = self.splits.find_table(split)
        table = select_split(tables, name, self.columns, self.path)
        column, label = self.columns
        check_text_column(table, column, f"{self.path}: column {column} of {name}")
        return rename_columns(table, {column: "text", label: "label"})

    def build_reader(self, table: Any, split: str, title: str) -> TextRowReader:
        order = self._map_labels(table, split)
        # labels of declared classes are their numbers, whatever their names are
        names = () if list_declared_classes(table) else self.spec.names
        return TextRowReader(self.vocabulary, self.length, order, names, title)

    def _map_labels(self, table: Any, split: str) -> tuple[int, ...]:
        """Return the model's class for each integer label of a table."""
        listed = self.classes if isinstance(self.classes, tuple) else ()
        names = list_declared_classes(table) or listed
        title = f"{self.path}, {self.splits.find_table(split)},"
        return map_classes(names, self.spec.names, self.spec.classes, title)
