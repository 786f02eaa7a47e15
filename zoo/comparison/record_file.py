"""The file of the finished cells of a comparison: a line of JSON for each, with its own SHA-256.

A cell is appended when it is done. A line that was cut off, such as by a full disk, is left out and
named. Versions of the file from two machines can be joined line by line, as `git merge` does with
the driver `union`. Comparisons of zoo 0.3 have a file of format 1 for each cell instead, which is
read as well.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from zoo.comparison.digests import EDITED, HASH, format_json, is_unchanged
from zoo.comparison.hypotheses import read_hypotheses
from zoo.comparison.plan import CELLS, ComparisonPlan
from zoo.comparison.record import FORMAT, CellRecord, list_unequal
from zoo.comparison.record_check import list_plan_faults, refuse_disagreeing
from zoo.errors import DataError
from zoo.options.stored import build_stored
from zoo.utils import open_own, read_bytes, read_json, write_file

log = logging.getLogger("zoo")

CELLS_FILE = "cells.jsonl"
PROBLEM = "holds no finished cell"
REMEDY = "restore it, or delete it to train the cell again"
TORN = "the last line was cut off while it was written; it is left out"


def read_cells(folder: Path) -> dict[str, CellRecord]:
    """Return {name: record} of the finished cells of an output folder.

    A record that was changed by hand or is damaged has `is_refused`, with the reason in `error`.

    Raises:
        DataError: The file cannot be read, or a line of it is no JSON.
    """
    path = folder / CELLS_FILE
    cells: dict[str, CellRecord] = {}
    for number, line in _read_lines(path):
        try:
            name, record = _read_line(line)
        except DataError as error:
            raise DataError(f"line {number} {error.problem}", place=path) from None
        existing = cells.setdefault(name, record)
        if existing is not record and not existing.is_refused:
            cells[name] = _choose_line(existing, record)
    for old in sorted((folder / CELLS).glob("*.json")):
        if old.stem not in cells:
            cells[old.stem] = _read_old(old)
    return cells


def append_cell(folder: Path, cell: CellRecord) -> None:
    """Write the record of a finished cell at the end of the file.

    Raises:
        ZooError: It cannot be written. A line that is cut off is left out when the file is read.
    """
    path = folder / CELLS_FILE
    content = read_bytes(path) if os.path.lexists(path) else b""
    if content and not content.endswith(b"\n"):
        # the line that was cut off would join this one
        _write_lines(path, [line for _, line in _read_lines(path)])
    try:
        with open_own(path) as file:
            file.write(f"{_format_line(cell)}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"cannot be written, {error.strerror or error}", place=path) from None


def write_cells(folder: Path, cells: Iterable[CellRecord]) -> None:
    """Write the records of finished cells, in place of those of the same name.

    Lines of other cells are kept. Files of format 1 of these cells are removed.
    """
    path = folder / CELLS_FILE
    written = {cell.name: _format_line(cell) for cell in cells}
    lines = []
    for _, line in _read_lines(path):
        name = _find_name(line)
        if name not in written:
            lines.append(line)
        elif written[name]:
            lines.append(written[name])
            written[name] = ""
    _write_lines(path, [*lines, *filter(None, written.values())])
    for name in written:
        _locate_old(folder, name).unlink(missing_ok=True)


def drop_cell(folder: Path, name: str) -> None:
    """Remove the record of a cell, which then is not done."""
    path = folder / CELLS_FILE
    lines = [line for _, line in _read_lines(path)]
    remaining = [line for line in lines if _find_name(line) != name]
    if len(remaining) < len(lines):
        _write_lines(path, remaining)
    _locate_old(folder, name).unlink(missing_ok=True)


def read_checked(plan: ComparisonPlan, folder: Path) -> dict[str, CellRecord]:
    """Return the finished cells, as `read_cells` does; those that do not fit the plan are refused.

    Args:
        plan: The plan of the folder, or a part of its cells.
        folder: The output folder.
    """
    return refuse_disagreeing(plan, read_cells(folder), CELLS_FILE)


def check_plan(
    plan: ComparisonPlan, folder: Path, cells: Mapping[str, CellRecord] | None = None
) -> None:
    """Check that plan and hypotheses of a folder are those with which its cells were trained.

    Args:
        plan: The whole plan of the folder.
        folder: The output folder.
        cells: Its finished cells; read if left out.

    Raises:
        DataError: They are not; all reasons are named.
    """
    finished = read_cells(folder) if cells is None else cells
    faults = [*list_plan_faults(plan, read_hypotheses(folder), finished)]
    if faults:
        raise DataError("\n".join(f"{folder}/{fault}" for fault in faults))


def check_cells(plan: ComparisonPlan, folder: Path) -> dict[str, CellRecord]:
    """Return the records of the finished cells of a plan, all of which are right.

    Raises:
        DataError: Some were changed or do not fit the plan, or the plan or the hypotheses do not
            fit them; all of them are named.
    """
    cells = read_checked(plan, folder)
    refused = [f"{folder}/{cell.error}" for cell in cells.values() if cell.is_refused]
    if refused:
        raise DataError("\n".join(refused))
    check_plan(plan, folder, cells)
    return cells


def _read_lines(path: Path) -> tuple[tuple[int, str], ...]:
    """Return the number, from 1, and the text of all lines that are whole."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DataError(f"{PROBLEM}, {error.strerror or error}", place=path) from None
    # parsed once for each state of the file, since the cells of a plan are asked for one by one
    return _read_stamped(path, (status.st_mtime_ns, status.st_size, status.st_ino))


# a comparison asks for its cells again after each of them; few lines are new then
@lru_cache(maxsize=32)
def _read_stamped(path: Path, stamp: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
    try:
        content = read_bytes(path)
        decoded = content.decode()
    except OSError as error:
        raise DataError(f"{PROBLEM}, {error.strerror or error}", place=path) from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{PROBLEM}, line {line} is not UTF-8", place=path) from None
    *whole, torn = decoded.split("\n")
    if torn:
        log.warning("%s: %s", path, TORN)
    return tuple((number, line) for number, line in enumerate(whole, 1) if line)


@lru_cache(maxsize=4096)
def _read_line(line: str) -> tuple[str, CellRecord]:
    """Return the name and the record of a line; the record is refused if it was changed."""
    name = _find_name(line)
    if name is None:
        raise DataError(f"is no record of a cell; {REMEDY}")
    place = Path(CELLS_FILE)
    try:
        return name, _build_record(json.loads(line), FORMAT, place)
    except DataError as error:
        return name, _refuse(name, f"{CELLS_FILE}: {name}: {error.problem}")


def _find_name(line: str) -> str | None:
    """Return the name of the cell of a line; None if it is no record."""
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = plain.get("name") if isinstance(plain, dict) else None
    return name if isinstance(name, str) and name else None


def _choose_line(earlier: CellRecord, later: CellRecord) -> CellRecord:
    """Return the record of a cell that has two lines: the first one, if both have equal results."""
    if later.is_refused:
        return later
    unequal = list_unequal(earlier, later)
    if not unequal:
        return earlier
    differences = "; ".join(map(str, unequal[:3]))
    reason = f"{CELLS_FILE}: {earlier.name} has two lines: {differences}; delete one of them"
    return _refuse(earlier.name, reason)


def _read_old(path: Path) -> CellRecord:
    """Read the file of a cell of format 1."""
    try:
        return _build_record(read_json(path, PROBLEM), 1, path)
    except DataError as error:
        return _refuse(path.stem, f"{CELLS}/{path.name}: {error.problem}")


def _build_record(plain: Any, version: int, path: Path) -> CellRecord:
    """Build the record of a cell. Raises DataError if it was changed, or is of another version."""
    if not isinstance(plain, Mapping) or HASH not in plain:
        raise DataError(PROBLEM, place=path)
    if not is_unchanged(plain):
        raise DataError(f"{EDITED}; {REMEDY}", place=path)
    if plain.get("format") != version:
        message = f"written by another version of zoo, format {plain.get('format')}"
        raise DataError(message, place=path)
    entries = {key: value for key, value in plain.items() if key != HASH}
    record = build_stored(CellRecord, entries, path, PROBLEM)
    return replace(record, format=FORMAT)


def _refuse(name: str, reason: str) -> CellRecord:
    return CellRecord(name=name, variant="", seed=0, state="failed", error=reason, is_refused=True)


def _locate_old(folder: Path, name: str) -> Path:
    return folder / CELLS / f"{name}.json"


def _format_line(cell: CellRecord) -> str:
    return format_json(cell.to_dict())


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    content = "".join(f"{line}\n" for line in lines)
    write_file(io.BytesIO(content.encode()), path)
