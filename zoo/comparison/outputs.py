"""Collect the results of the cells of a comparison, and write the files of its output folder."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.comparison.cell_files import find_cells
from zoo.comparison.claim_text import describe_judgements
from zoo.comparison.condition_baselines import add_baselines
from zoo.comparison.fairness import count_shared_weights, find_different_starts, find_flags
from zoo.comparison.findings import list_findings
from zoo.comparison.hypotheses import read_hypotheses
from zoo.comparison.plan import CELLS, ComparisonPlan, PlannedCell
from zoo.comparison.race_text import explain_stopped
from zoo.comparison.racing import find_race
from zoo.comparison.ranking import (
    average_baselines,
    compare_at_equal_compute,
    describe_analysis,
    find_winning_baseline,
)
from zoo.comparison.record import CellRecord
from zoo.comparison.record_check import count_earlier_runs
from zoo.comparison.record_file import check_plan
from zoo.comparison.result_table import build_result_table, format_values
from zoo.comparison.results import (
    CellMeasurement,
    Comparison,
    ComparisonCell,
    Flag,
    RaceResult,
    RecordedHypothesis,
    Variant,
)
from zoo.comparison.scaling import describe_scaling
from zoo.comparison.solving import describe_speeds, find_steps_to_solve
from zoo.comparison.studies import choose_result, group_trials, summarize_studies
from zoo.comparison.text import format_comparison
from zoo.launch.executor import PATIENCE
from zoo.reporting.numbers import as_json, finite
from zoo.reporting.tables import disarm_tags, format_tables
from zoo.run import run_dir
from zoo.run.conditions import Condition
from zoo.utils import write_file

WRITING = ".writing"  # the lock of the process that writes
RESULTS, TABLE, PAGE = "results.json", "comparison.md", "index.html"
VALUES = "values.csv"


def collect_results(plan: ComparisonPlan, folder: Path, target: float | None = None) -> Comparison:
    """Return the comparison as far as it has come, from the plan and the files of its cells.

    Args:
        plan: The plan.
        folder: The output folder.
        target: Value of the monitored metric whose time of arrival is compared.

    Raises:
        DataError: The plan or the hypotheses are not those with which the cells were trained.
    """
    everything = find_cells(plan, folder)
    check_plan(plan, folder)
    finished = [record for record in everything.values() if record.state == "done"]
    hypotheses = count_earlier_runs(read_hypotheses(folder), finished)
    if plan.design is None:
        chosen = [(cell, everything[cell.name]) for cell in plan.cells]
        return _build_comparison(plan, everything, chosen, hypotheses, target=target)
    chosen = [choose_result(trials) for trials in group_trials(plan, everything).values()]
    comparison = _build_comparison(plan, everything, chosen, hypotheses, target=target)
    if not plan.design.is_raced:
        return comparison
    # what a look stopped is trained no further, so it lacks nothing
    race = find_race(comparison)
    trained = [pair for pair in chosen if is_trained(race, pair[0])]
    return _build_comparison(plan, everything, trained, hypotheses, race, target)


def read_comparison(folder: Path) -> Comparison:
    """Return the comparison of an output folder, computed from its plan and its cells.

    Baselines of conditions that were scored later are those of the file next to the folder.

    Raises:
        DataError: The folder holds no comparison, or not the plan or the hypotheses of its cells.
    """
    return add_baselines(collect_results(ComparisonPlan.read(folder), folder), folder)


def is_trained(race: RaceResult, planned: PlannedCell) -> bool:
    """Return whether a trial is trained, as far as the looks of a race tell."""
    return planned.study is None or race.is_trained(planned.variant, planned.study)


def _build_comparison(
    plan: ComparisonPlan,
    everything: Mapping[str, CellRecord],
    chosen: Sequence[tuple[PlannedCell, CellRecord]],
    hypotheses: tuple[RecordedHypothesis, ...],
    race: RaceResult | None = None,
    target: float | None = None,
) -> Comparison:
    """Return the comparison of the cells that count.

    Args:
        plan: The plan.
        everything: {name: what the output folder has of a cell}, trials included.
        chosen: The cells whose results are compared.
        hypotheses: The hypotheses of the output folder.
        race: What the looks decided.
        target: Value of the monitored metric whose time of arrival is compared.
    """
    records = [record for _, record in chosen]
    # marks and flags compare cells with one another
    marks = find_different_starts(records, [axis.key for axis in plan.axes])
    cells: dict[str, list[ComparisonCell]] = {name: [] for name in plan.variants}
    for (planned, record), mark in zip(chosen, marks, strict=True):
        cells[planned.variant].append(build_cell(plan, planned, record, mark, target))
    variants = [
        Variant(name=name, values=values, cells=tuple(cells[name]))
        for name, values in plan.variants.items()
    ]
    flags = find_flags(variants, records)
    for stopped in race.stopped if race else ():
        flags[stopped.variant] += (Flag("stopped", explain_stopped(stopped)),)

    return Comparison(
        zoo_version=plan.zoo_version,
        created=plan.created,
        command=plan.command,
        recipe=plan.recipe,
        base=plan.base,
        machine=plan.machine,
        axes=plan.axes,
        seeds=plan.seeds,
        measure=plan.measure,
        better=plan.better,
        conditions=collect_conditions(plan, [pair for pair in chosen if pair[1].state == "done"]),
        windows=plan.windows,
        hypotheses=hypotheses,
        studies=summarize_studies(plan, everything),
        findings=list_findings(plan, everything, hypotheses, race),
        race=race,
        target=target,
        monitor=_find_monitor(records),
        earlier=plan.earlier,
        question=plan.question,
        looks=plan.looks,
        shared_weights=count_shared_weights(records),
        variants=tuple(replace(variant, flags=flags[variant.name]) for variant in variants),
    )


def _find_monitor(records: Iterable[CellRecord]) -> str:
    """Return the validation metric of all cells; empty if they have none or several."""
    monitors = {record.monitor for record in records} - {""}
    return monitors.pop() if len(monitors) == 1 else ""


LOW_IS_BETTER = ("loss", "mae", "rmse")


def build_cell(
    plan: ComparisonPlan,
    planned: PlannedCell,
    record: CellRecord,
    different_start: tuple[str, ...] = (),
    target: float | None = None,
) -> ComparisonCell:
    """Return a cell as results have it.

    Args:
        plan: The plan.
        planned: The cell in the plan.
        record: Its record.
        different_start: What differed at its start from most cells of its seed.
        target: Value of the monitored metric; `steps_to_solve` is the first step that reaches it.
    """
    steps_to_solve = record.steps_to_solve
    if target is not None:
        is_low = record.monitor.rpartition("/")[2] in LOW_IS_BETTER
        steps_to_solve = find_steps_to_solve(record.curve, target, "low" if is_low else "high")
    return ComparisonCell(
        seed=planned.seed,
        run_dir=f"{CELLS}/{planned.name}",
        state=record.state,
        error=record.error,
        # an evaluation that was interrupted may be of an earlier attempt
        measurements=tuple(_list_measurements(plan, planned, record)),
        curve=record.curve,
        steps_to_solve=steps_to_solve,
        parameters=record.parameters,
        flops=record.flops,
        backends=record.backends,
        steps=record.steps,
        minutes=record.minutes,
        step_seconds=record.step_seconds,
        peak_memory=record.memory,
        baselines=_list_baselines(planned, record),
        different_start=different_start,
    )


def _list_measurements(
    plan: ComparisonPlan, planned: PlannedCell, record: CellRecord
) -> Iterable[CellMeasurement]:
    """Yield the test at the end of training, and what was measured under further conditions."""
    is_done = record.state == "done"
    first_measured = record.measured[0] if is_done and record.measured else None
    # these are there when training is, whatever became of the evaluation
    if record.test or first_measured:
        yield CellMeasurement(
            condition=plan.trained,
            metrics=record.test,
            refused=first_measured.refused if first_measured else "",
            position_losses=first_measured.position_losses if first_measured else (),
            position_edges=first_measured.position_edges if first_measured else (),
        )
    if is_done:
        yield from list_further(plan, planned, record)


def list_further(
    plan: ComparisonPlan, planned: PlannedCell, record: CellRecord
) -> Iterable[CellMeasurement]:
    """Yield what was measured under conditions other than the test data of the recipe.

    The training size among the sizes is left out where it was measured in the same way. That is not
    so if windows slide, or if variants were trained at different sizes.
    """
    slides = planned.recipe.get("evaluate", {}).get("stride") is not None
    skipped = None if plan.trained.size is None or slides else record.trained_size
    for measurement in record.measured:
        condition = measurement.condition
        if condition.kind == "trained" or (condition.kind == "size" and condition.size == skipped):
            continue
        yield measurement


def _list_baselines(planned: PlannedCell, record: CellRecord) -> Mapping[str, Mapping[str, float]]:
    """Return the baselines by metric; none of a task that has another loss than its data."""
    name = planned.recipe.get("task", {}).get("name")
    # a record may be of a plug-in that is not installed here
    is_known = name in registry.names("tasks")
    if is_known and not registry.find("tasks", name).has_data_baselines:
        return {}
    return record.baselines


def collect_conditions(
    plan: ComparisonPlan, records: Iterable[tuple[PlannedCell, CellRecord]]
) -> tuple[Condition, ...]:
    """Return the conditions of all cells that are done, each once, the trained one first."""
    conditions = {plan.trained.name: plan.trained}
    for planned, record in records:
        for measurement in list_further(plan, planned, record):
            conditions.setdefault(measurement.condition.name, measurement.condition)
    return tuple(conditions.values())


def describe_comparison(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison and its analysis as JSON can hold them; `Comparison.read` reads it."""
    analyses: dict[str, Any] = finite(
        {
            "analysis": describe_analysis(comparison),
            "baselines": average_baselines(comparison),
            "winning_baseline": find_winning_baseline(comparison),
            "equal_compute": compare_at_equal_compute(comparison),
            "judgements": describe_judgements(comparison),
            "steps_to_solve": describe_speeds(comparison),
            "scaling": describe_scaling(comparison),
        }
    )
    return {**comparison.to_dict(), **analyses}


def write_results(
    comparison: Comparison, folder: Path, *, intervals: bool = False, draws: bool = True
) -> list[Path]:
    """Write numbers, tables, page and figures; existing files are overwritten.

    One process writes at a time: the names of unfinished files are the same for all.
    Figures come last: their renderer may end the process where memory is short.

    Args:
        comparison: The comparison.
        folder: The output folder.
        intervals: Whether the table for LaTeX has intervals.
        draws: Whether page and figures are written too.
    """
    message = "another process is writing its files"
    with run_dir.lock(folder, message, PATIENCE, WRITING):
        texts = {
            RESULTS: as_json(describe_comparison(comparison)) + "\n",
            TABLE: disarm_tags(format_comparison(comparison)) + "\n",
            **format_tables(build_result_table(comparison), intervals=intervals),
            VALUES: format_values(comparison),
        }
        for name, content in texts.items():
            write_file(io.BytesIO(content.encode()), folder / name)
        drawn = _draw(comparison, folder) if draws else []
        return [*(folder / name for name in texts), *drawn]


def _draw(comparison: Comparison, folder: Path) -> list[Path]:
    """Write page and figures; return their paths."""
    # altair takes its time to import, and cells need none of it
    from zoo.comparison.figures import save_figures
    from zoo.comparison.page.comparison_page import render

    write_file(io.BytesIO(render(comparison).encode()), folder / PAGE)
    return [folder / PAGE, *save_figures(comparison, folder)]
