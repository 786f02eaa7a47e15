"""Take finished cells of recorded comparisons in place of training them again.

A recorded cell fits a planned one if the SHA-256 of all settings of its recipe is the same, its
seed among them; a trial must be the same one of its study too, and judged by the same metric.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zoo.comparison.plan import ComparisonPlan, PlannedCell, list_changes
from zoo.comparison.portable import (
    PortableCell,
    hash_recipe,
    is_done,
    list_portable,
    locate_portable,
    read_portable,
)
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.reporting.numbers import pluralize
from zoo.utils import describe_absence

log = logging.getLogger("zoo")

Identity = tuple[str, int | None, int | None]
"""SHA-256 of the settings, number of the study, number of the trial."""


@dataclass(frozen=True)
class RecordedCell:
    """A finished cell, and the folder of its comparison."""

    folder: Path
    cell: PortableCell


def read_records(folders: Sequence[str | Path]) -> dict[Identity, RecordedCell]:
    """Return all finished cells of the comparisons in these folders, and in folders within them.

    Cells that are damaged or were changed by hand are left out, and named in the log.

    Raises:
        RecipeError: There is no such folder.
    """
    found: dict[Identity, RecordedCell] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            problem = f"{folder}: {describe_absence(folder, 'folder')}"
            remedy = "name folders of comparisons, or leave it out"
            raise RecipeError(ConfigIssue(ARGUMENT, "records", problem, remedy))
        for plan in sorted(folder.rglob("plan.json")):
            for path in list_portable(plan.parent):
                try:
                    cell = read_portable(path)
                except DataError as error:
                    log.warning("%s; it is not taken", error)
                    continue
                # the hash covers the seed, so that two seeds of one setting are two cells
                identity = (cell.recipe, cell.study, cell.trial)
                found.setdefault(identity, RecordedCell(plan.parent, cell))
    return found


def find_recorded(
    plan: ComparisonPlan, records: Mapping[Identity, RecordedCell]
) -> dict[str, RecordedCell]:
    """Return {name: recorded cell} of the planned cells that a record has."""
    found = {}
    for planned in plan.cells:
        recorded = records.get((hash_recipe(plan, planned), planned.study, planned.trial))
        if recorded is not None and _has_criterion(plan, planned, recorded.cell):
            found[planned.name] = recorded
    return found


def _has_criterion(plan: ComparisonPlan, planned: PlannedCell, cell: PortableCell) -> bool:
    """Return whether a recorded trial was judged by what this plan judges by."""
    return planned.trial is None or cell.criterion == f"val/{plan.measure.removeprefix('test/')}"


def take_recorded(
    plan: ComparisonPlan, folder: Path, records: Mapping[Identity, RecordedCell]
) -> dict[str, RecordedCell]:
    """Write the recorded cells that fit into an output folder; what is done there stays.

    Returns:
        {name: recorded cell} of those that were written.
    """
    taken = {}
    cells = {planned.name: planned for planned in plan.cells}
    for name, recorded in find_recorded(plan, records).items():
        planned, path = cells[name], locate_portable(folder, name)
        if os.path.lexists(path) or is_done(plan, folder, planned):
            continue
        # written anew as of this plan: names may differ, and settings are relative to its base
        settings = list_changes(plan.base, planned.recipe)
        own = replace(recorded.cell, name=name, variant=planned.variant, settings=settings)
        own.write(path)
        taken[name] = recorded
    if taken:
        names = ", ".join(dict.fromkeys(str(one.folder) for one in taken.values()))
        log.info("%s of %d taken from %s", pluralize(len(taken), "cell"), len(plan.cells), names)
    return taken
