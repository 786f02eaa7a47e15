"""Studies: each tunes every variant anew and tests the setting that validation chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zoo.comparison.design import Range, find_edges
from zoo.comparison.findings import choose_trial
from zoo.comparison.grid import find_setting, name_folders
from zoo.comparison.plan import ComparisonPlan, PlannedCell, StudyDesign
from zoo.comparison.record import CellRecord
from zoo.comparison.results import (
    RangeEnd,
    SearchedKey,
    StudiesResult,
    StudyResult,
    TrialResult,
    VariantStudies,
)
from zoo.comparison.study_trials import StudyTrial
from zoo.comparison.tuning import TunedKey, describe_key

ALL_NON_FINITE = "every trial became non-finite"
"""The error of a study of a variant that has ended without a value."""


def plan_studies(
    plan: ComparisonPlan,
    keys: Sequence[TunedKey],
    effective: Mapping[str, Sequence[str]],
    budget: int,
    trials: Sequence[tuple[StudyTrial, Mapping[str, Any]]],
    *,
    is_raced: bool,
) -> ComparisonPlan:
    """Return the plan with trials in place of cells, before any of them is trained.

    Args:
        plan: The plan of the variants, each with the seeds of the studies.
        keys: The tuned keys.
        effective: {variant: the keys that have an effect on it}.
        budget: Trials of each variant in each study.
        trials: The trials, each with its recipe as plain data.
        is_raced: Whether looks stop variants.
    """
    # names of variants may hold characters that no folder can have
    folders = dict(zip(effective, name_folders([*effective]), strict=True))
    cells = tuple(
        PlannedCell(
            name=f"{folders[trial.variant]}-{trial.study}-{trial.trial}",
            variant=trial.variant,
            seed=plan.seeds[trial.study],
            recipe=recipe,
            study=trial.study,
            trial=trial.trial,
        )
        for trial, recipe in trials
    )
    design = StudyDesign(
        budget=budget,
        keys=tuple(SearchedKey(key=key.key, searched=describe_key(key)) for key in keys),
        ranges=tuple(key for key in keys if isinstance(key, Range)),
        effective={name: tuple(tuned) for name, tuned in effective.items()},
        is_raced=is_raced,
    )
    return replace(plan, cells=cells, design=design)


def group_trials(
    plan: ComparisonPlan, found: Mapping[str, CellRecord]
) -> dict[tuple[str, int], list[tuple[PlannedCell, CellRecord]]]:
    """Return {(variant, study): its trials with what the output folder has of them}."""
    groups: dict[tuple[str, int], list[tuple[PlannedCell, CellRecord]]] = {}
    for cell in plan.cells:
        if cell.study is not None:
            groups.setdefault((cell.variant, cell.study), []).append((cell, found[cell.name]))
    return groups


def choose_result(
    trials: Sequence[tuple[PlannedCell, CellRecord]],
) -> tuple[PlannedCell, CellRecord]:
    """Return the trial that stands for a variant in a study.

    It is the one that validation chose once all are done, and the first that is not done before.
    """
    for planned, record in trials:
        if record.state != "done":
            return planned, record
    cells = {cell.name: (planned, cell) for planned, cell in trials}
    best = choose_trial([cell for _, cell in trials])
    if best is None:
        planned, record = trials[0]
        return planned, replace(record, state="failed", error=ALL_NON_FINITE)
    planned, record = cells[best.name]
    # the chosen one is still to be tested
    return planned, record if best.is_tested else replace(record, state="stopped")


def summarize_studies(
    plan: ComparisonPlan, found: Mapping[str, CellRecord]
) -> StudiesResult | None:
    """Return what the studies chose; None if the comparison has none."""
    design = plan.design
    if design is None:
        return None
    groups = group_trials(plan, found)
    variants = {}
    criterion = ""
    for name in plan.variants:
        studies, chosen = [], {}
        for (variant, study), trials in groups.items():
            records = [record for _, record in trials]
            # a study that is not complete has chosen nothing yet
            if variant != name or any(record.state != "done" for record in records):
                continue
            best = choose_trial(records)
            criterion = records[0].criterion or criterion
            results = tuple(
                TrialResult(
                    settings={
                        key: find_setting(planned.recipe, key) for key in design.effective[name]
                    },
                    value=record.value,
                )
                for planned, record in trials
            )
            number = None if best is None else records.index(best)
            studies.append(
                StudyResult(study=study, seed=trials[0][0].seed, trials=results, best=number)
            )
            if number is not None:
                chosen[study] = results[number].settings
        edges = find_edges(design.ranges, chosen)
        variants[name] = VariantStudies(
            keys=tuple(design.effective[name]),
            studies=tuple(studies),
            edges=tuple(RangeEnd(key=edge.key, side=edge.side) for edge in edges),
        )
    return StudiesResult(
        budget=design.budget,
        criterion=criterion,
        better=plan.better,
        keys=design.keys,
        variants=variants,
    )
