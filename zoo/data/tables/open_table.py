"""Open tables with Hugging Face's `datasets`, which is imported when it is needed."""

from __future__ import annotations

import glob
import hashlib
import logging
import os
import tarfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.data.tables.separators import explain_separator
from zoo.errors import DataError, OptionError
from zoo.packages import explain_imports
from zoo.utils import MAX_CAUSE, describe_absence, describe_damage, guard_reading

HUB = "hub:"
HUB_REMEDY = "; is its name right, and is there a network? Else download it, and name its folder"
BUILDERS = {
    ".parquet": "parquet",
    ".tar": "webdataset",
    ".arrow": "arrow",
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
}
"""Names of file formats in `datasets`, by suffix."""
COMPRESSIONS = (".gz", ".zst")
TEXT_TYPES = ("string", "large_string")
MIXED_TYPE = "json"
"""The type of a column with rows of several types."""
END_OF_TAR = bytes(1024)
"""Two empty blocks, with which a tar archive ends."""
# Parts of error messages of `datasets`.
NO_CONFIGURATION = "Config name is missing"
NO_ROWS = ("StopIteration", "corresponds to no data", "the first 0 values")


def open_tables(path: str, streaming: bool = False) -> Mapping[str, Any]:
    """Open the tables of a path.

    Args:
        path: A folder, a file or a glob of files, `hub:owner/name` or
            `hub:owner/name:configuration`. A folder contains class folders of images, or files in
            one of the formats of BUILDERS.
        streaming: Read rows only when they are needed.

    Returns:
        The tables by split.

    Raises:
        DataError: There is no such path, or `datasets` cannot read it.
    """
    # a wrong path is named before a missing package
    name, files = find_files(path)
    with explain_imports():
        import datasets

    datasets.disable_progress_bars()
    _silence_datasets()
    configuration = None
    if path.startswith(HUB):
        name, _, configuration = name.partition(":")
    # `datasets` silently ignores the rest of a damaged archive.
    for shard in _list_tar_files(name, files):
        with guard_reading(shard):
            _check_complete(shard)
            if not streaming:
                _check_headers(shard)
    if files is None and Path(name, "state.json").is_file():
        hint = "write it as Parquet, with to_parquet of each split"
        raise DataError(f"was written by save_to_disk; {hint}", place=path)
    options = _verify_checksums() if _is_parquet(name, files) else {}
    if files is not None and _find_format(files["train"][0]) == ".tsv":
        options["sep"] = "\t"
    with guard_reading(path, partial(_describe, path)):
        builder = _make_builder(name, configuration or None, files, options)
        if streaming:
            return dict(builder.as_streaming_dataset())
        # `datasets` keeps what it has read by the names and times of files, which a copy or an
        # archive may give to others.
        arguments = (
            [] if path.startswith(HUB) else [f"{builder.cache_dir}-{_digest_sources(builder)}"]
        )
        builder.download_and_prepare(*arguments)
        tables = dict(builder.as_dataset())
        for table in tables.values():
            # JSON is not checked when it is read; text that is not UTF-8 would fail at a later use.
            table.data.validate(full=True)
        return tables


def _make_builder(
    name: str,
    configuration: str | None,
    files: Mapping[str, list[str]] | None,
    options: Mapping[str, Any],
) -> Any:
    """Return the builder of `datasets` for a format, a folder or a dataset of the Hub."""
    from datasets import load_dataset_builder
    from datasets.packaged_modules.csv.csv import Csv

    builder = load_dataset_builder(name, configuration, data_files=files, **options)
    if not isinstance(builder, Csv):
        return builder
    from zoo.data.tables.csv_as_text import OPTIONS, become_text

    # made anew, because what is cached depends on the options
    builder = load_dataset_builder(name, configuration, data_files=files, **options, **OPTIONS)
    become_text(builder)
    return builder


def _digest_sources(builder: Any) -> str:
    """Return a digest of the sizes and times of the files that a builder reads.

    No program can set the time of the last change of a file's status, unlike that of its content.
    """
    digest = hashlib.sha256()
    for files in (builder.config.data_files or {}).values():
        for file in files:
            # A file may be within an archive, or elsewhere.
            with suppress(OSError, ValueError):
                status = os.stat(file)
                times = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
                digest.update(f"{file}\0{times}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def iterate_rows(table: Iterable[Any], title: str) -> Iterator[Any]:
    """Yield the rows of a table.

    Raises:
        DataError: Reading fails. The message begins with `title`.
    """
    with guard_reading(title, partial(_describe, title)):
        yield from table


def _silence_datasets() -> None:
    """Hide log messages about unreadable files, which DataError reports."""
    for kind in BUILDERS.values():
        logging.getLogger(f"datasets.packaged_modules.{kind}.{kind}").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Failed to ")


def _describe(path: str, error: BaseException) -> str:
    """Return the problem with a path that the library could not read, and a remedy."""
    from datasets.table import CastError

    origin = error.__cause__ or error
    # The first line of the underlying error usually names the cause.
    if isinstance(origin, UnicodeEncodeError):
        if any(unicodedata.category(letter) == "Cs" for letter in path):
            return "its name is not UTF-8; rename it"
        return f"the name of {origin.object} is not UTF-8; rename the file"
    if isinstance(origin, UnicodeDecodeError):
        fault = f"{origin.reason} at byte {origin.start}"
        return f"cannot be read: it is not UTF-8, {fault}; save it as UTF-8"
    cause = str(origin) or type(origin).__name__
    if NO_CONFIGURATION in cause:
        names = " ".join(cause.strip().splitlines()[1:2])[:MAX_CAUSE]
        return f"has several configurations, name one as {path}:CONFIGURATION; {names}"
    if isinstance(origin, CastError):
        before, present = origin.requested_column_names, origin.table_column_names
        hint = explain_separator(before) or explain_separator(present)
        columns = f"the columns {', '.join(present)}, and one before it {', '.join(before)}"
        return f"one of its files has {columns}{hint}"
    if any(phrase in cause for phrase in NO_ROWS):
        return "is empty, or one of its files is"
    advice = HUB_REMEDY if path.startswith(HUB) else ""
    return f"{describe_damage(origin)}{advice}"


def select_split(tables: Mapping[str, Any], name: str, columns: Iterable[str], path: str) -> Any:
    """Return the table of a split.

    Raises:
        DataError: There is no such split, or it lacks one of the columns.
    """
    if name not in tables:
        raise DataError(f"no split {name}; there are {', '.join(tables)}", place=path)
    table = tables[name]
    # The columns of a stream may be known only from its first row.
    features: Mapping[str, Any] = table.features or next(iterate_rows(table, path), {})
    if not features:
        raise DataError(f"{name} is empty", place=path)
    for column in columns:
        if column not in features:
            listed = f"{', '.join(features)}{explain_separator([*features])}"
            raise DataError(f"no column {column} in {name}; there are {listed}", place=path)
    return table


def rename_columns(table: Any, columns: Mapping[str, str], keep: Iterable[str] = ()) -> Any:
    """Return a table with renamed columns, {old name: new name}, and those of `keep` it has."""
    extra = [column for column in keep if column in table.features]
    table = table.select_columns([*columns, *extra])
    return table.rename_columns({old: new for old, new in columns.items() if old != new})


def select_text(tables: Mapping[str, Any], split: str, column: str, path: str) -> Any:
    """Return a table with one column, `text`.

    Raises:
        DataError: There is no such split or column, or the column does not hold text.
    """
    table = select_split(tables, split, [column], path)
    check_text_column(table, column, f"{path}: column {column} of {split}")
    table = table.select_columns([column])
    return table if column == "text" else table.rename_column(column, "text")


def check_text_column(table: Any, column: str, title: str) -> None:
    """Check that a column holds text, as far as its type is known.

    Raises:
        DataError: It holds something else.
    """
    feature = (table.features or {}).get(column)
    kind = getattr(feature, "dtype", None) or type(feature).__name__.lower()
    if feature is not None and kind not in (*TEXT_TYPES, MIXED_TYPE):
        raise DataError(f"{title} holds {kind}, not text")


def check_text(value: Any) -> str:
    """Check that the value of a row is text, and return it; an empty string if there is none.

    Raises:
        ValueError: The value is something else.
    """
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not text")
    return value or ""


def iterate_texts(table: Iterable[Any], separator: str, title: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each row that has text, with `separator` after the text.

    Raises:
        DataError: A row holds something other than text, or cannot be read.
    """
    for number, row in enumerate(iterate_rows(table, title)):
        name = f"{title}, row {number}"
        try:
            content = check_text(row["text"])
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None
        if content:
            yield name, content + separator


def find_files(path: str) -> tuple[str, dict[str, list[str]] | None]:
    """Return the arguments of `datasets` for a path: a name or format, and the list of files.

    The list is None for a folder or a dataset of the Hub.

    Raises:
        DataError: No file exists there, or files have an unknown format.
    """
    if path.startswith(HUB):
        return path.removeprefix(HUB), None
    expanded = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(expanded):
        return expanded, None
    files = [expanded] if os.path.exists(expanded) else sorted(glob.glob(expanded, recursive=True))
    if not files:
        message = "no file matches" if glob.has_magic(path) else describe_absence(expanded)
        raise DataError(message, place=path)
    # a FIFO without a writer would let `datasets` wait for ever
    for file in files:
        if not os.path.isfile(file):
            raise DataError("it is a folder, a FIFO or a device, not a file", place=file)
    formats = {_find_format(file) for file in files}
    if len(formats) > 1 or not formats <= BUILDERS.keys():
        listed = ", ".join(sorted(formats))
        expected = f"one of {', '.join(BUILDERS)}, or a folder"
        raise DataError(f"files of {listed}; expected {expected}", place=path)
    return BUILDERS[formats.pop()], {"train": files}


def is_table(path: Path) -> bool:
    """Return whether a path is a file in one of the formats of BUILDERS."""
    return _find_format(str(path)) in BUILDERS and path.is_file()


def _find_format(file: str) -> str:
    path = Path(file)
    return Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def _list_tar_files(name: str, files: Mapping[str, list[str]] | None) -> list[Path]:
    """List the tar archives among files, or in a folder of that name."""
    if files is None:
        return sorted(Path(name).rglob("*.tar")) if os.path.isdir(name) else []
    return [Path(file) for file in files["train"] if file.endswith(".tar")]


def _is_parquet(name: str, files: Mapping[str, list[str]] | None) -> bool:
    """Return whether a table consists of Parquet files, or a folder contains one."""
    if files is not None:
        return name == BUILDERS[".parquet"]
    return os.path.isdir(name) and next(Path(name).rglob("*.parquet"), None) is not None


def _verify_checksums() -> dict[str, Any]:
    """Return the option of `datasets` that verifies the checksums of Parquet pages, if present."""
    from pyarrow.dataset import ParquetFragmentScanOptions  # type: ignore[import-untyped]

    return {"fragment_scan_options": ParquetFragmentScanOptions(page_checksum_verification=True)}


def _check_complete(shard: Path) -> None:
    """Check that an archive is not truncated: its last samples would be missing silently.

    Raises:
        DataError: It is truncated.
    """
    with shard.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(END_OF_TAR)))
        if file.read() != END_OF_TAR:
            hint = "a tar archive ends with two empty blocks; write or download it again"
            raise DataError(f"{shard}: the file is truncated, {hint}")


def _check_headers(shard: Path) -> None:
    """Check the headers of all members of an archive. tarfile takes a damaged one for the end.

    Reading all headers takes too long before a stream, so a stream is not checked.

    Raises:
        DataError: A header is damaged.
    """
    with shard.open("rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while tar.next() is not None:
                    # tarfile would keep all members in memory.
                    tar.members = []  # type: ignore[attr-defined]
                end = tar.offset
        except tarfile.TarError:
            # Only a damaged first header raises an error.
            end = 0
        file.seek(end)
        if any(file.read(tarfile.BLOCKSIZE)):
            hint = "write or download the archive again"
            raise DataError(f"{shard}: the header at byte {end:,} is damaged; {hint}")


@dataclass(frozen=True)
class SplitOptions:
    """The table of each split. A number is a fraction of the training table, drawn by the seed."""

    train: str
    val: float | str
    test: float | str

    def __post_init__(self) -> None:
        total = sum(self._fractions().values())
        for key in ("val", "test"):
            value = getattr(self, key)
            if not isinstance(value, str) and (value <= 0 or total >= 1):
                rule = "must be positive and leave samples for training"
                raise OptionError(key, f"fractions of {self.train} {rule}")
        if self.train in (self.val, self.test):
            raise OptionError("train", f"{self.train} would be used for training and evaluation")

    @property
    def is_drawn(self) -> bool:
        """True if some split depends on the seed."""
        return bool(self._fractions())

    def check_streaming(self, workers: int) -> None:
        """Check that a stream can have these splits and this number of workers.

        Raises:
            OptionError: A split is a fraction, or there are several workers.
        """
        if self.is_drawn:
            message = "a stream cannot be split by fractions; name a split for each of val and test"
            raise OptionError("stream", message)
        if workers > 1:
            message = "the order of a stream would depend on their number; set it to 0 or 1"
            raise OptionError("workers", message)

    def find_table(self, split: str) -> str:
        """Return the name of the table that contains a split."""
        value = getattr(self, split)
        return value if isinstance(value, str) else self.train

    def draw_rows(self, split: str, count: int, seed: int) -> NDArray[np.int64]:
        """Return the numbers of a split's rows among the `count` of its table, ascending."""
        # Named splits are complete. Fractions are disjoint parts of one permutation, and train is
        # what they leave.
        fractions = self._fractions()
        if isinstance(getattr(self, split), str) and (split != "train" or not fractions):
            return np.arange(count)
        sizes = [round(fraction * count) for fraction in fractions.values()]
        pieces = np.split(np.random.default_rng(seed).permutation(count), np.cumsum(sizes))
        return np.sort(dict(zip((*fractions, "train"), pieces, strict=True))[split])

    def _fractions(self) -> dict[str, float]:
        values = {"val": self.val, "test": self.test}
        return {key: value for key, value in values.items() if not isinstance(value, str)}
