"""Sets of points as samples: those of Parquet and NPZ files."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from zoo.data.finite import NotFinite, explain_lost_differences, find_not_finite
from zoo.data.tables.open_table import open_tables
from zoo.data.tables.separators import explain_separator
from zoo.errors import DataError
from zoo.utils import describe_absence, guard_reading

NPZ, NPY = ".npz", ".npy"
MASK = "mask"
"""The array of an NPZ file that tells which points are real."""


class PointColumns(NamedTuple):
    """Names of the columns, or of the arrays, of features, coordinates and targets."""

    x: tuple[str, ...]
    pos: tuple[str, ...]
    target: tuple[str, ...]


@dataclass(frozen=True)
class PointTable:
    """The sets of one split."""

    title: str
    """The file or the table, in messages."""
    columns: PointColumns
    x: Sequence[NDArray[Any]]
    """Features [N, F] of each set."""
    pos: Sequence[NDArray[Any]]
    """Coordinates [N, P] of each set."""
    targets: Sequence[Any]
    """The target of each set as its file has it: a value, or a list of one for each column."""

    @property
    def width(self) -> tuple[int, int]:
        """Numbers of features and of coordinates."""
        return self.x[0].shape[1], self.pos[0].shape[1]

    @property
    def has_text_targets(self) -> bool:
        """True if targets are strings or true and false, so that they are classes."""
        return any(isinstance(target, str | bool) for target in self.targets)

    def refuse(self, number: int, column: str, problem: str) -> DataError:
        """Return the error of a row."""
        where = f"row {number}, column {column}"
        return DataError(f"{where}: {problem}", place=self.title, separator=", ")

    def read_numbers(self, number: int, dtype: torch.dtype) -> NDArray[np.float64]:
        """Read the numbers to predict of a set, [T].

        Args:
            number: The row of the set.
            dtype: The precision in which they are used.

        Raises:
            DataError: They are no numbers, or not finite in that precision.
        """
        value = self.targets[number]
        try:
            numbers = np.asarray(value, np.float64).reshape(-1)
        except (TypeError, ValueError, OverflowError):
            numbers = np.array([])
        if not len(numbers):
            raise self.refuse(number, self.columns.target[0], f"{value!r:.60} is no finite number")
        wrong = find_not_finite(numbers, dtype)
        if wrong is None and (square := find_not_finite(numbers**2, torch.float32)):
            # metrics square targets
            message = f"the square of {numbers[square.index]:g} is infinite in float32"
            wrong = NotFinite(square.index, message)
        if wrong is not None:
            # one column of lists, or several columns of numbers
            at = wrong.index[0] if len(self.columns.target) > 1 else 0
            raise self.refuse(number, self.columns.target[at], wrong.problem)
        return numbers

    def place(self, dtype: torch.dtype, *, center: bool) -> Self:
        """Return the sets with their final coordinates.

        Args:
            dtype: The precision in which features and coordinates are used.
            center: Whether to subtract from coordinates their mean over the set.

        Raises:
            DataError: A number is not finite in that precision, or float32 cannot tell the
                coordinates of a set apart.
        """
        self._check_finite(self.columns.x, self.x, dtype)
        placed = self.pos
        if center:
            # a mean would spread what is not finite to all points
            self._check_finite(self.columns.pos, self.pos, torch.float64)
            placed = [pos - pos.mean(0) for pos in self.pos]
        self._check_finite(self.columns.pos, placed, dtype)
        for number, pos in enumerate(placed):
            if lost := explain_lost_differences(pos):
                message = f"{lost}; set data.center to true, or subtract a start"
                raise self.refuse(number, self.columns.pos[0], message)
        return replace(self, pos=placed)

    def _check_finite(
        self, names: Sequence[str], sets: Sequence[NDArray[Any]], dtype: torch.dtype
    ) -> None:
        """Raise DataError where a feature or coordinate of sets [N, width] is not finite."""
        values = np.concatenate(sets)
        if wrong := find_not_finite(values, dtype):
            at, axis = wrong.index
            ends = np.cumsum([len(points) for points in sets])
            number = int(np.searchsorted(ends, at, side="right"))
            point = at - int(ends[number]) + len(sets[number])
            # one column for all axes, or one column for each
            name = names[axis] if len(names) == values.shape[1] else ", ".join(names)
            raise self.refuse(number, name, f"point {point}, axis {axis}: {wrong.problem}")


def open_point_tables(path: str, columns: PointColumns) -> Mapping[str, PointTable]:
    """Read the sets of a path: an NPZ file, a folder of them, or tables that zoo opens.

    Args:
        path: The path.
        columns: The columns to read; without targets, those are None.

    Returns:
        The sets by split: the name of a file in a folder, or train.

    Raises:
        DataError: A file cannot be read, or a value is no such list of numbers.
    """
    place = Path(path).expanduser()
    files = sorted(place.glob(f"*{NPZ}")) if place.is_dir() else []
    if place.suffix == NPZ or files:
        splits = {file.stem: file for file in files} or {"train": place}
        return {name: _read_npz(file, columns) for name, file in splits.items()}
    tables = open_tables(path)
    return {
        name: _read_table(table, path if len(tables) == 1 else f"{path}, {name}", columns)
        for name, table in tables.items()
    }


def _read_table(table: Any, title: str, columns: PointColumns) -> PointTable:
    """Read the rows of a table of `datasets`."""
    names = [name for group in columns for name in group]
    _check_names(title, names, table.column_names, "column")
    rows = {name: table[name][:] for name in names}
    features = table.features or {}
    for name in columns.target:
        if declared := getattr(features.get(name), "names", None):
            rows[name] = [None if label is None else declared[label] for label in rows[name]]
    return _build_table(title, columns, rows, len(table))


def _read_npz(file: Path, columns: PointColumns) -> PointTable:
    """Read the arrays of an NPZ file, without those of Python objects."""
    if not file.is_file():
        raise DataError(describe_absence(file), place=file)
    names = [name for group in columns for name in group]
    with guard_reading(file), zipfile.ZipFile(file) as archive:
        members = {name.removesuffix(NPY): name for name in archive.namelist()}
        _check_names(str(file), names, [*members], "array")
        chosen = [*names, *([MASK] if MASK in members else [])]
        held = {}
        for name in chosen:
            with guard_reading(f"{file}, array {name}"):
                held[name] = _read_npy(archive.read(members[name]))
        mask = held.pop(MASK, None) if MASK not in names else held[MASK]
    count = len(held[names[0]]) if held[names[0]].ndim else 0
    for name, array in held.items():
        # numpy would make numbers of text, of dates in their unit, and of parts of complex numbers
        if array.dtype.kind not in ("biufUS" if name in columns.target else "biuf"):
            message = f"{array.dtype}, expected real numbers"
            raise DataError(f"array {name}: {message}", place=file, separator=", ")
        least = 1 if name in columns.target else 2
        if array.ndim not in (least, least + 1) or len(array) != count:
            message = f"shape {array.shape}, expected {count} sets and {least} or {least + 1} axes"
            raise DataError(f"array {name}: {message}", place=file, separator=", ")
    if mask is not None:
        shape = held[names[0]].shape[:2]
        if mask.shape != shape or mask.dtype != bool:
            message = f"{mask.dtype} of shape {mask.shape}, expected bool of {shape}"
            raise DataError(f"array {MASK}: {message}", place=file, separator=", ")
        points = {*columns.x, *columns.pos}
        rows: dict[str, Sequence[Any]] = {
            name: [row[present] for row, present in zip(array, mask, strict=True)]
            if name in points and array.shape[:2] == shape
            else [*array]
            for name, array in held.items()
        }
    else:
        rows = {name: [*array] for name, array in held.items()}
    for name in columns.target:
        rows[name] = held[name].tolist()
    return _build_table(str(file), columns, rows, count)


def _read_npy(content: bytes) -> NDArray[Any]:
    """Return the array of an NPY file, whose header numpy would trust.

    A header may claim a shape beyond any memory, or an array of no size with 2^40 rows.

    Raises:
        ValueError: Its header does not describe what follows it.
    """
    file = BytesIO(content)
    is_short = npy.read_magic(file) == (1, 0)
    read_header = npy.read_array_header_1_0 if is_short else npy.read_array_header_2_0
    shape, is_fortran, dtype = read_header(file)
    size, held = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if dtype.hasobject:
        raise ValueError("it holds objects of Python, which are not loaded")
    if not size:
        raise ValueError(f"shape {shape} of {dtype} has no numbers")
    if not 0 < size <= held:
        raise ValueError(f"shape {shape} of {dtype} needs {size:,} bytes, the file has {held:,}")
    array = np.frombuffer(content, dtype, math.prod(shape), file.tell())
    return array.reshape(shape, order="F" if is_fortran else "C")


def _check_names(title: str, names: Sequence[str], present: Sequence[str], noun: str) -> None:
    """Raise DataError where a file lacks a column or an array."""
    for name in names:
        if name not in present:
            listed = f"{', '.join(present) or 'none'}{explain_separator(present)}"
            message = f"no {noun} {name}; it has {listed}"
            raise DataError(f"{title}: {message}; set data.x, data.pos or data.target")


def _build_table(
    title: str, columns: PointColumns, rows: Mapping[str, Sequence[Any]], count: int
) -> PointTable:
    """Check the rows, and join the columns of features and of coordinates."""
    if not count:
        raise DataError(f"{title}: there is no set of points")
    targets: Sequence[Any] = [None] * count
    if len(columns.target) == 1:
        targets = rows[columns.target[0]]
    elif columns.target:
        targets = [
            [*values] for values in zip(*(rows[name] for name in columns.target), strict=True)
        ]
    # still without points: reading a cell needs it to name the row in messages
    table = PointTable(title, columns, [], [], targets)
    x, pos = [], []
    for number in range(count):
        parts = {
            name: _read_cell(table, number, name, rows[name][number])
            for name in (*columns.x, *columns.pos)
        }
        reference = columns.x[0]
        for name, part in parts.items():
            if len(part) != len(parts[reference]):
                message = f"{len(part)} points, but {len(parts[reference])} in column {reference}"
                raise table.refuse(number, name, message)
        x.append(np.concatenate([parts[name] for name in columns.x], axis=1))
        pos.append(np.concatenate([parts[name] for name in columns.pos], axis=1))
        for name, blocks, first_block in (("x", x, x[0]), ("pos", pos, pos[0])):
            if blocks[-1].shape[1] != first_block.shape[1]:
                message = (
                    f"{blocks[-1].shape[1]} numbers for a point, {first_block.shape[1]} in row 0"
                )
                raise table.refuse(number, getattr(columns, name)[0], message)
    return PointTable(title, columns, x, pos, targets)


def _read_cell(table: PointTable, number: int, column: str, value: Any) -> NDArray[np.float64]:
    """Return the numbers of the points of a cell, [N, width].

    Raises:
        DataError: It is no list with a number, or equally many of them, for each point.
    """
    try:
        cell = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        message = f"{value!r:.60} is no list of a number, or of equally many, for each point"
        raise table.refuse(number, column, message) from None
    if cell.ndim not in (1, 2) or not cell.size:
        message = "there is no point" if not cell.size else "it is no list with an item per point"
        raise table.refuse(number, column, message)
    return cell[:, None] if cell.ndim == 1 else cell
