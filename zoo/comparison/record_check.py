"""Check that plan, hypotheses and cells of a folder agree with each other.

A cell states what it is of: variant, seed, study, settings, and digests of the plan and of the
hypotheses as they were when it was trained. What is stated twice is compared here, so that a slip
(a line copied to another cell, an edited plan, a hypothesis written later) is refused by name. A
record in which everything was forged consistently is found only by training a cell again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zoo.comparison.digests import format_json
from zoo.comparison.grid import find_setting
from zoo.comparison.hypotheses import HYPOTHESES
from zoo.comparison.plan import PLAN, ComparisonPlan, PlannedCell, apply_changes, list_changes
from zoo.comparison.record import (
    DRAWN_DIGITS,
    MAX_VALIDATIONS,
    CellRecord,
    hash_hypotheses,
    hash_plan,
    hash_recipe,
    list_setting_differences,
)
from zoo.comparison.results import CellMeasurement, RecordedHypothesis, find_direction
from zoo.reporting.numbers import pluralize

IDENTITY = ("variant", "seed", "study", "trial")
MAX_NAMED = 3
"""Cells that a message names; it counts the others."""


def refuse_disagreeing(
    plan: ComparisonPlan, cells: Mapping[str, CellRecord], place: str
) -> dict[str, CellRecord]:
    """Return the cells; those that disagree with the plan or with each other are refused.

    Args:
        plan: The plan, or a part of its cells.
        cells: {name: finished cell}. Those that the plan lacks are returned unchanged.
        place: The file that holds them, for messages.
    """
    digests = _list_plan_digests(plan)
    copies = _find_copies([cells[entry.name] for entry in plan.cells if entry.name in cells])
    checked = dict(cells)
    for planned in plan.cells:
        cell = cells.get(planned.name)
        if cell is None or cell.is_refused:
            continue
        reasons = [*_list_disagreements(plan, planned, cell, digests)]
        if planned.name in copies:
            reasons.append(copies[planned.name])
        if reasons:
            # without its results, which would count
            checked[planned.name] = CellRecord(
                name=planned.name,
                variant=planned.variant,
                seed=planned.seed,
                state="failed",
                error=f"{place}: {planned.name} {'; '.join(reasons)}",
                is_refused=True,
            )
    return checked


def _list_disagreements(
    plan: ComparisonPlan, planned: PlannedCell, cell: CellRecord, digests: Mapping[str, int]
) -> Iterator[str]:
    """Yield what a cell states otherwise than the plan, or than itself."""
    for name in IDENTITY:
        stated, expected = getattr(cell, name), getattr(planned, name)
        if stated != expected:
            yield f"states {name} {format_json(stated)}, the plan {format_json(expected)}"
    differences = list_setting_differences(plan, planned, cell)
    if differences:
        yield f"is of another recipe: {'; '.join(differences)}"
    if not _fits_recipe(plan, planned, cell):
        yield "has settings that do not give the SHA-256 of its recipe"
    if cell.plan is not None and digests.get(cell.plan, 0) <= (planned.trial or 0):
        yield f"was trained under another plan than {PLAN} is now"
    yield from _list_contradictions(plan, planned, cell)


def _fits_recipe(plan: ComparisonPlan, planned: PlannedCell, cell: CellRecord) -> bool:
    """Return whether the settings of a cell give the digest of its recipe."""
    if cell.settings == list_changes(plan.base, planned.recipe):
        # what differs then is the digest, which is compared with the plan
        return True
    try:
        recipe = apply_changes(plan.base, cell.settings)
    except (KeyError, TypeError, AttributeError):
        return False
    return hash_recipe(plan, replace(planned, recipe=recipe)) == cell.recipe


def _list_plan_digests(plan: ComparisonPlan) -> dict[str, int]:
    """Return {SHA-256: trials of each study} of the plan and of those that it has grown from."""
    if plan.design is None:
        return {hash_plan(plan): 1}
    budgets = range(1, plan.design.budget + 1)
    designs = [replace(plan.design, budget=budget) for budget in budgets]
    return {hash_plan(replace(plan, design=design)): design.budget for design in designs}


def _list_contradictions(
    plan: ComparisonPlan, planned: PlannedCell, cell: CellRecord
) -> Iterator[str]:
    """Yield results that a cell states twice and differently."""
    slides = planned.recipe.get("evaluate", {}).get("stride") is not None
    for measurement in cell.measured:
        if (
            not slides
            and cell.test
            and _is_trained_size(measurement, cell)
            and measurement.metrics != cell.test
        ):
            yield f"has other metrics at the end of training than at {measurement.condition.name}"
    if cell.value is None or not cell.curve or cell.criterion != cell.monitor:
        return
    best = (max if cell.mode == "max" else min)(value for _, value in cell.curve)
    # a curve that was thinned may lack its best value
    is_whole = len(cell.curve) < MAX_VALIDATIONS
    if is_whole and abs(best - cell.value) > 10 ** (1 - DRAWN_DIGITS) * abs(best):
        yield f"states {cell.criterion} {cell.value:.6g}, its validations {best:.6g}"


def _is_trained_size(measurement: CellMeasurement, cell: CellRecord) -> bool:
    return measurement.condition.kind == "size" and measurement.condition.size == cell.trained_size


def _find_copies(cells: Sequence[CellRecord]) -> dict[str, str]:
    """Return {name: reason} of cells of several seeds that began and learned the same."""
    originals: dict[Any, CellRecord] = {}
    copies: dict[str, str] = {}
    for cell in cells:
        # without digests of its beginning it says nothing
        if len(cell.curve) < 2 or not (cell.weights and cell.batch):
            continue
        original = originals.setdefault((cell.start, cell.curve), cell)
        if original.seed != cell.seed:
            same = "began and learned exactly as"
            copies[cell.name] = f"{same} {original.name}, which has another seed"
            copies.setdefault(original.name, f"{same} {cell.name}, which has another seed")
    return copies


def list_plan_faults(
    plan: ComparisonPlan, hypotheses: Sequence[RecordedHypothesis], cells: Mapping[str, CellRecord]
) -> Iterator[str]:
    """Yield why a plan and its hypotheses are not those of the cells, or contradict themselves.

    Args:
        plan: The whole plan of a folder.
        hypotheses: The hypotheses of the folder.
        cells: {name: finished cell}.
    """
    finished = [cell for cell in cells.values() if not cell.is_refused]
    faults = (*_list_plan_contradictions(plan), *_list_strangers(plan, cells))
    yield from (f"{PLAN}: {fault}" for fault in faults)
    yield from (f"{HYPOTHESES}: {fault}" for fault in _list_hypothesis_faults(hypotheses, finished))


def _list_plan_contradictions(plan: ComparisonPlan) -> Iterator[str]:
    if plan.measure and plan.better != find_direction(plan.measure.removeprefix("test/")):
        yield f"says that of {plan.measure} the {plan.better} values are better"
    repeated = [
        name for name, count in Counter(cell.name for cell in plan.cells).items() if count > 1
    ]
    if repeated:
        yield f"has several cells {_name_some(repeated)}"
    for planned in plan.cells:
        seed = planned.recipe.get("seed", planned.seed)
        if seed != planned.seed:
            yield f"{planned.name} has seed {planned.seed}, its recipe {seed}"
        if planned.variant not in plan.variants:
            yield f"{planned.name} is of {planned.variant}, which is no variant"
        else:
            yield from _list_wrong_labels(plan, planned)
    if plan.design is not None:
        yield from _list_study_faults(plan, plan.design.budget)


def _list_study_faults(plan: ComparisonPlan, budget: int) -> Iterator[str]:
    """Yield studies that do not count from 0, or do not have the stated seeds and trials."""
    seeds = {cell.study: cell.seed for cell in plan.cells}
    expected: dict[int | None, int] = dict(enumerate(plan.seeds))
    if seeds != expected:
        yield f"its studies have seeds {_format_seeds(seeds)}, not {_format_seeds(expected)}"
    trials = 1 + max((cell.trial or 0 for cell in plan.cells), default=0)
    if plan.cells and trials != budget:
        yield f"has a budget of {budget}, and {pluralize(trials, 'trial')} in a study"


def _format_seeds(seeds: Mapping[int | None, int]) -> str:
    return ", ".join(f"{study}: {seed}" for study, seed in seeds.items())


def _list_wrong_labels(plan: ComparisonPlan, planned: PlannedCell) -> Iterator[str]:
    """Yield the varied keys whose value in a cell is that of another label."""
    for axis in plan.axes:
        label = plan.variants[planned.variant].get(axis.key)
        value = find_setting(planned.recipe, axis.key)
        fitting = [
            value_label
            for value_label, setting in zip(axis.values, axis.settings, strict=True)
            if _fits_setting(value, setting)
        ]
        # a value that fits no label was written in another form, and says nothing
        if fitting and label not in fitting:
            yield f"{planned.name} is of {label}, and has {axis.key} of {fitting[0]}"


def _fits_setting(value: Any, setting: Any) -> bool:
    """Return whether a value of a recipe, which has all options, is a setting as it was given."""
    if isinstance(value, Mapping) and isinstance(setting, str):
        return value.get("name") == setting
    if isinstance(value, Mapping) and isinstance(setting, Mapping):
        return all(
            key in value and _fits_setting(value[key], option) for key, option in setting.items()
        )
    if isinstance(value, list | tuple) and isinstance(setting, list | tuple):
        pairs = zip(value, setting, strict=False)
        return len(value) == len(setting) and all(_fits_setting(*pair) for pair in pairs)
    return bool(value == setting)


def _list_strangers(plan: ComparisonPlan, cells: Mapping[str, CellRecord]) -> Iterator[str]:
    """Yield why a plan is not that of the cells."""
    planned_names = {planned.name for planned in plan.cells}
    unknown = [name for name in cells if name not in planned_names]
    if unknown:
        yield f"lacks {_name_some(unknown)}, which was trained"
    criterion = f"val/{plan.measure.removeprefix('test/')}"
    judged = {
        cell.criterion
        for cell in cells.values()
        if cell.trial is not None and cell.value is not None
    }
    if judged and criterion not in judged:
        yield f"compares {plan.measure}, and its trials were judged by {', '.join(sorted(judged))}"


def _list_hypothesis_faults(
    hypotheses: Sequence[RecordedHypothesis], finished: Sequence[CellRecord]
) -> Iterator[str]:
    """Yield where the hypotheses are not those that were written when cells were trained."""
    there = {*hash_hypotheses(hypotheses)}
    changed = [cell.name for cell in finished if not {*(cell.hypotheses or ())} <= there]
    if changed:
        yield (
            f"{_name_some(changed)} was trained when a hypothesis was written that is not there: "
            "it was removed, or its text or time was changed"
        )


def count_earlier_runs(
    hypotheses: Sequence[RecordedHypothesis], cells: Iterable[CellRecord]
) -> tuple[RecordedHypothesis, ...]:
    """Return the hypotheses, each at least as late as the cells say that were trained before it."""
    cell_digests = [cell.hypotheses for cell in cells if cell.hypotheses is not None]
    return tuple(
        replace(
            hypothesis,
            runs_ended=max(
                hypothesis.runs_ended, sum(digest not in digests for digests in cell_digests)
            ),
        )
        for digest, hypothesis in zip(hash_hypotheses(hypotheses), hypotheses, strict=True)
    )


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
