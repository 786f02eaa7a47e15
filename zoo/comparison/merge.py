"""Pack the finished cells of a comparison for a repository, and merge those of several machines."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zoo.comparison.cell_files import find_cell
from zoo.comparison.findings import find_split_blocks
from zoo.comparison.hypotheses import read_hypotheses, write_hypotheses
from zoo.comparison.outputs import collect_results, write_results
from zoo.comparison.plan import (
    PLAN,
    RECIPES,
    ComparisonPlan,
    StudyDesign,
    complete_recipe,
    extend_plan,
    is_uncompared,
    list_changes,
    list_differences,
    list_plan_differences,
    prepare_folder,
    write_plan,
)
from zoo.comparison.record import (
    CellRecord,
    adopt,
    hash_hypotheses,
    list_setting_differences,
    list_unequal,
)
from zoo.comparison.record_check import count_earlier_runs
from zoo.comparison.record_file import CELLS_FILE, check_plan, read_checked, write_cells
from zoo.comparison.results import Axis, Comparison, RecordedHypothesis
from zoo.errors import ARGUMENT, ConfigIssue, DataError, Message, RecipeError, Setting
from zoo.options.plain import format_value
from zoo.packages import require, require_extra
from zoo.run import run_dir

log = logging.getLogger("zoo")

START_FIELDS = ("start", "weights", "order", "batch")


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """Options of packing and of merging comparisons."""

    to: str = ""
    """The output folder."""


def pack(folder: Path, options: PackOptions) -> tuple[Comparison, int]:
    """Write plan, hypotheses, finished cells and results of a comparison into another folder.

    Page and figures are not committed, and not written.

    Returns:
        The comparison, and the number of packed cells and trials.

    Raises:
        RecipeError: The output folder cannot be used.
        DataError: The folder holds no comparison, or a cell that was changed by hand; nothing is
            written.
        PackageError: scipy is missing, which computes the intervals.
    """
    target = _require_target(options)
    plan = _read_plan(folder)
    cells, refused = _collect_cells([folder], plan)
    if refused:
        raise DataError("\n".join(refused))
    require("scipy")
    return _write([folder], plan, cells, target, draws=False), len(cells)


def merge(folders: Sequence[Path], options: PackOptions) -> tuple[Comparison, int, tuple[str, ...]]:
    """Join the finished cells of several comparisons of the same recipe in one folder.

    A folder that holds a comparison already is joined too. Cells that do not fit are refused one by
    one, and the others are joined.

    Returns:
        The comparison, the number of its finished cells, and the refused cells and folders, each
        with the difference.

    Raises:
        RecipeError: The output folder cannot be used.
        DataError: A folder holds no comparison, or none of the others has a cell that fits the
            first; nothing is written.
        PackageError: A package is missing that computes the intervals or draws the figures.
    """
    target = _require_target(options)
    folders = [*dict.fromkeys([*([target] if (target / PLAN).exists() else []), *folders])]
    if not folders:
        hint = "name the output folders of some"
        raise RecipeError(ConfigIssue(ARGUMENT, "", "no comparison to merge", hint))
    # checked before the target is touched: nothing is written if nothing fits
    plan, fitting, refused = _join_plans(folders)
    cells, more = _collect_cells(fitting, plan)
    refused += more
    if refused and (not cells or len(fitting) == 1):
        raise DataError("\n".join(refused))
    require_extra("compare")
    return _write(fitting, plan, cells, target), len(cells), tuple(refused)


def _require_target(options: PackOptions) -> Path:
    if not options.to:
        hint = Message("write ", Setting("to", "docs/records/flipflop"))
        raise RecipeError(ConfigIssue(ARGUMENT, "to", "no output folder", hint))
    return Path(options.to)


def _write(
    folders: Sequence[Path],
    plan: ComparisonPlan,
    cells: dict[str, CellRecord],
    target: Path,
    *,
    draws: bool = True,
) -> Comparison:
    """Write plan, cells, hypotheses and results into the output folder.

    Args:
        folders: The folders of the comparisons.
        plan: The plan of all cells.
        cells: {name: finished cell}.
        target: The output folder.
        draws: Whether page and figures are written, which are not committed.
    """
    prepare_folder(target)
    with run_dir.lock(target, "another zoo compare is working in this folder"):
        plan = write_plan(plan, target)
        # of a folder that is packed again; one that is merged is among the folders
        there = {} if target in folders else read_checked(plan, target)
        existing = {name: record for name, record in there.items() if not record.is_refused}
        write_cells(target, [existing.get(name, cell) for name, cell in cells.items()])
        hypotheses = count_earlier_runs(_join_hypotheses(folders), cells.values())
        if hypotheses:
            write_hypotheses(hypotheses, target)
        for flaw in find_split_blocks([*cells.values()], plan):
            log.info("warning: %s", flaw.text)
        comparison = collect_results(plan, target)
        write_results(comparison, target, draws=draws)
        # recipes follow from the plan
        shutil.rmtree(target / RECIPES, ignore_errors=True)
    return comparison


def _join_plans(folders: Sequence[Path]) -> tuple[ComparisonPlan, list[Path], list[str]]:
    """Return the plan with the cells of all folders, those that fit, and why others do not."""
    plans = [_read_plan(folder) for folder in folders]
    plan, fitting, refused = plans[0], [folders[0]], []
    for folder, other_plan in zip(folders[1:], plans[1:], strict=True):
        differences = _list_obstacles(plan, other_plan)
        if differences:
            shown = "; ".join(differences)
            refused.append(f"{folder}: of another recipe than {folders[0]}: {shown}")
            continue
        fitting.append(folder)
        if not plan.contains(other_plan):
            plan = _unite(plan, other_plan)
    return plan, fitting, refused


def _read_plan(folder: Path) -> ComparisonPlan:
    """Return a plan. Raises DataError if it or the hypotheses do not fit the cells."""
    plan = ComparisonPlan.read(folder)
    check_plan(plan, folder)
    return plan


def _list_obstacles(plan: ComparisonPlan, other_plan: ComparisonPlan) -> list[str]:
    """Return, field by field, why the cells of two plans cannot be compared; empty if they can."""
    missing = "nothing"
    obstacles = []
    ours, theirs = (complete_recipe(side.base, side.recipe) for side in (plan, other_plan))
    for key in dict.fromkeys([*list_changes(ours, theirs), *list_changes(theirs, ours)]):
        if is_uncompared(key):
            continue
        here, there = (_find(base, key, missing) for base in (ours, theirs))
        obstacles.append(f"{key} is {format_value(there)}, not {format_value(here)}")
    obstacles += list_plan_differences(other_plan, plan)
    if [axis.key for axis in plan.axes] != [axis.key for axis in other_plan.axes]:
        # settings of cells can be compared only where the same keys vary
        obstacles += list_differences(plan, other_plan)
    return obstacles


def _find(base: object, key: str, missing: str) -> object:
    value = base
    for part in key.split("."):
        value = value.get(part, missing) if isinstance(value, Mapping) else missing
    return value


def _unite(plan: ComparisonPlan, other_plan: ComparisonPlan) -> ComparisonPlan:
    """Return the first plan with the further variants, seeds and cells of another."""
    names = {cell.name for cell in plan.cells}
    further = replace(
        other_plan,
        axes=tuple(map(_unite_axes, plan.axes, other_plan.axes)),
        seeds=tuple(dict.fromkeys([*plan.seeds, *other_plan.seeds])),
        variants={**plan.variants, **other_plan.variants},
        command=plan.command,
        design=_unite_designs(plan.design, other_plan.design),
        cells=(*plan.cells, *(cell for cell in other_plan.cells if cell.name not in names)),
    )
    return extend_plan(plan, further)


def _unite_designs(
    design: StudyDesign | None, other_design: StudyDesign | None
) -> StudyDesign | None:
    if design is None or other_design is None:
        return other_design
    effective = {**design.effective, **other_design.effective}
    return replace(design, budget=max(design.budget, other_design.budget), effective=effective)


def _unite_axes(axis: Axis, other_axis: Axis) -> Axis:
    pairs = zip(
        (*axis.values, *other_axis.values), (*axis.settings, *other_axis.settings), strict=True
    )
    settings = dict(pairs)
    return replace(axis, values=tuple(settings), settings=tuple(settings.values()))


def _collect_cells(
    folders: Sequence[Path], plan: ComparisonPlan
) -> tuple[dict[str, CellRecord], list[str]]:
    """Return the finished cells of all folders, of one that several have the first.

    Returns:
        {name: cell}, and the cells that do not fit the plan or each other, with the difference.
    """
    cells: dict[str, CellRecord] = {}
    origins: dict[str, str] = {}
    refused = []
    renewed = _renew_digests(folders)
    for folder in folders:
        folder_plan = ComparisonPlan.read(folder)
        owned = {cell.name: cell for cell in folder_plan.cells}
        finished = read_checked(folder_plan, folder)
        for planned in plan.cells:
            place = f"{folder / CELLS_FILE}, {planned.name}"
            candidate = find_cell(folder_plan, folder, owned.get(planned.name, planned), finished)
            if candidate.is_refused:
                refused.append(f"{folder}/{candidate.error}")
            if candidate.state != "done":
                continue
            record = candidate
            if planned.name in owned:
                record = adopt(record, folder_plan, owned[planned.name], plan, planned)
            if record.hypotheses is not None:
                digests = tuple(renewed.get(digest, digest) for digest in record.hypotheses)
                record = replace(record, hypotheses=digests)
            differences = list_setting_differences(plan, planned, record)
            if differences:
                refused.append(f"{place}: of another recipe: {'; '.join(differences)}")
                continue
            # of equal cells either may stay; the first folder is the one that the user named first
            earlier = cells.setdefault(planned.name, record)
            if earlier is record:
                origins[planned.name] = place
                continue
            unequal = list_unequal(earlier, record)
            # other digests at the start mean other weights or samples: such cells are not the same
            # experiment
            if earlier.start != record.start:
                starts = [str(value) for value in unequal if value.field in START_FIELDS]
                where = f"{place}: did not start as {origins[planned.name]}"
                refused.append(f"{where}: {'; '.join(starts)}")
            elif unequal:
                where = f"{place}: {origins[planned.name]} stays, from which it differs"
                refused.append(f"{where}: {'; '.join(map(str, unequal))}")
    return cells, refused


def _renew_digests(folders: Sequence[Path]) -> dict[str, str]:
    """Return {digest of a hypothesis in its folder: the one that it has when joined}."""
    joined = _join_hypotheses(folders)
    digests = dict(
        zip((hypothesis.text for hypothesis in joined), hash_hypotheses(joined), strict=True)
    )
    return {
        digest: digests[hypothesis.text]
        for folder in folders
        for hypotheses in [read_hypotheses(folder)]
        for digest, hypothesis in zip(hash_hypotheses(hypotheses), hypotheses, strict=True)
    }


def _join_hypotheses(folders: Sequence[Path]) -> list[RecordedHypothesis]:
    """Return the hypotheses of all folders; what speaks against one in any of them stays."""
    joined: dict[str, RecordedHypothesis] = {}
    for folder in folders:
        for hypothesis in read_hypotheses(folder):
            before = joined.get(hypothesis.text, hypothesis)
            joined[hypothesis.text] = replace(
                before,
                # the earliest time, but every run that ended before it was known on any machine
                written=min(before.written, hypothesis.written),
                runs_ended=max(before.runs_ended, hypothesis.runs_ended),
                withdrawn=before.withdrawn or hypothesis.withdrawn,
            )
    return [*joined.values()]
