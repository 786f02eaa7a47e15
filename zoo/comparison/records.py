"""Take finished cells of recorded comparisons in place of training them again.

A recorded cell fits a planned one if all settings that results depend on are the same, the seed
among them; a trial must be the same one of its study too, and judged by the same metric.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zoo.comparison.cell_files import is_done
from zoo.comparison.digests import hash_plain
from zoo.comparison.plan import PLAN, ComparisonPlan, PlannedCell, list_changes
from zoo.comparison.record import CellRecord, hash_recipe
from zoo.comparison.record_file import check_plan, read_cells, read_checked, write_cells
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.reporting.numbers import pluralize
from zoo.utils import describe_absence

log = logging.getLogger("zoo")

Identity = tuple[str, int | None, int | None]
"""SHA-256 of the settings that results depend on, number of the study, number of the trial."""


@dataclass(frozen=True)
class RecordedCell:
    """A finished cell, and the folder of its comparison."""

    folder: Path
    cell: CellRecord


def _identify(plan: ComparisonPlan, planned: PlannedCell) -> Identity:
    # the settings have the seed, so that two seeds are two cells
    return hash_plain(plan.list_compared(planned)), planned.study, planned.trial


def read_records(folders: Sequence[str | Path]) -> dict[Identity, RecordedCell]:
    """Return all finished cells of the comparisons in these folders, and in folders within them.

    Cells that are damaged or were changed by hand are left out, and named in the log.

    Raises:
        RecipeError: There is no such folder.
    """
    cells: dict[Identity, RecordedCell] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            message = f"{folder}: {describe_absence(folder, 'folder')}"
            hint = "name folders of comparisons, or leave it out"
            raise RecipeError(ConfigIssue(ARGUMENT, "records", message, hint))
        for path in sorted(folder.rglob(PLAN)):
            for identity, recorded in _read_folder(path.parent):
                cells.setdefault(identity, recorded)
    return cells


def _read_folder(folder: Path) -> Iterator[tuple[Identity, RecordedCell]]:
    """Yield the finished cells of a comparison; those that are refused are logged."""
    try:
        cells = read_cells(folder)
        # a plan without finished cells is not read: nothing is taken from it, damaged or not
        plan = ComparisonPlan.read(folder) if cells else None
        if plan is not None:
            cells = read_checked(plan, folder)
            check_plan(plan, folder, cells)
    except DataError as error:
        log.warning("%s; its cells are not taken", error)
        return
    if plan is None:
        return
    planned = {cell.name: cell for cell in plan.cells}
    for name, cell in cells.items():
        if cell.is_refused:
            log.warning("%s/%s; it is not taken", folder, cell.error)
            continue
        yield _identify(plan, planned[name]), RecordedCell(folder, cell)


def find_recorded(
    plan: ComparisonPlan, records: Mapping[Identity, RecordedCell]
) -> dict[str, RecordedCell]:
    """Return {name: recorded cell} of the planned cells that a record has."""
    if not records:
        return {}
    matches = {}
    for planned in plan.cells:
        recorded = records.get(_identify(plan, planned))
        if recorded is not None and _has_criterion(plan, planned, recorded.cell):
            matches[planned.name] = recorded
    return matches


def _has_criterion(plan: ComparisonPlan, planned: PlannedCell, cell: CellRecord) -> bool:
    """Return whether a recorded trial was judged by what this plan judges by."""
    return planned.trial is None or cell.criterion == f"val/{plan.measure.removeprefix('test/')}"


def take_recorded(
    plan: ComparisonPlan, folder: Path, records: Mapping[Identity, RecordedCell]
) -> dict[str, RecordedCell]:
    """Write the recorded cells that fit into an output folder; what is done there stays.

    Returns:
        {name: recorded cell} of those that were written.
    """
    taken: dict[str, RecordedCell] = {}
    records_here = []
    finished = read_cells(folder)
    cells = {planned.name: planned for planned in plan.cells}
    for name, recorded in find_recorded(plan, records).items():
        planned = cells[name]
        if name in finished or is_done(plan, folder, planned):
            continue
        # written anew as of this plan: names may differ, and settings are relative to its base;
        # it was trained under another plan, before or after the hypotheses of this one
        record = replace(
            recorded.cell,
            name=name,
            variant=planned.variant,
            settings=list_changes(plan.base, planned.recipe),
            recipe=hash_recipe(plan, planned),
            plan=None,
            hypotheses=None,
        )
        records_here.append(record)
        taken[name] = recorded
    if taken:
        write_cells(folder, records_here)
        names = ", ".join(dict.fromkeys(str(source.folder) for source in taken.values()))
        log.info("%s of %d taken from %s", pluralize(len(taken), "cell"), len(plan.cells), names)
    return taken
