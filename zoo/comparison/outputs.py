"""Collect the results of the cells of a comparison, and write the files of its output folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zoo.comparison.cell_files import CellRecord, build_cell, collect_conditions
from zoo.comparison.fairness import count_shared_weights, find_flags, mark_different_starts
from zoo.comparison.findings import list_findings
from zoo.comparison.hypotheses import describe_judgements, read_hypotheses
from zoo.comparison.plan import ComparisonPlan, PlannedCell
from zoo.comparison.portable import FoundCell, find_cell
from zoo.comparison.race_text import explain_stopped
from zoo.comparison.racing import find_race
from zoo.comparison.ranking import (
    average_baselines,
    compare_at_equal_compute,
    describe_analysis,
    find_winning_baseline,
)
from zoo.comparison.result_table import build_result_table
from zoo.comparison.results import Comparison, Flag, RaceResult, RecordedHypothesis, Variant
from zoo.comparison.scaling import describe_scaling
from zoo.comparison.solving import describe_speeds
from zoo.comparison.studies import choose_result, group_trials, summarize_studies
from zoo.comparison.text import format_comparison
from zoo.launch.executor import PATIENCE
from zoo.reporting.numbers import as_json, finite
from zoo.reporting.tables import disarm_tags, format_tables
from zoo.run import run_dir
from zoo.utils import write_file

WRITING = ".writing"  # the lock of the process that writes
RESULTS, TABLE, PAGE = "results.json", "comparison.md", "index.html"


def collect_results(plan: ComparisonPlan, folder: Path, target: float | None = None) -> Comparison:
    """Return the comparison as far as it has come, from the plan and the files of its cells.

    Args:
        plan: The plan.
        folder: The output folder.
        target: Value of the monitored metric whose time of arrival is compared.
    """
    everything = {one.name: find_cell(plan, folder, one) for one in plan.cells}
    hypotheses = read_hypotheses(folder)
    if plan.design is None:
        chosen = [(one, everything[one.name]) for one in plan.cells]
        return _build_comparison(plan, everything, chosen, hypotheses, target=target)
    chosen = [choose_result(one) for one in group_trials(plan, everything).values()]
    found = _build_comparison(plan, everything, chosen, hypotheses, target=target)
    if not plan.design.is_raced:
        return found
    # what a look stopped is trained no further, so it lacks nothing
    race = find_race(found)
    kept = [one for one in chosen if is_trained(race, one[0])]
    return _build_comparison(plan, everything, kept, hypotheses, race, target)


def is_trained(race: RaceResult, planned: PlannedCell) -> bool:
    """Return whether a trial is trained, as far as the looks of a race tell."""
    return planned.study is None or race.is_trained(planned.variant, planned.study)


def _build_comparison(
    plan: ComparisonPlan,
    everything: Mapping[str, FoundCell],
    chosen: Sequence[tuple[PlannedCell, FoundCell]],
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
    records, done = [], []
    for planned, found in chosen:
        cell = build_cell(plan, planned, found.files, found.state, found.error, target)
        records.append(CellRecord(planned.variant, cell, found.files))
        if cell.state == "done":
            done.append((planned, found.files))

    # marks and flags compare cells with one another, so they come after all have been read
    cells = mark_different_starts(records, [axis.key for axis in plan.axes])
    variants = []
    for name, values in plan.variants.items():
        own = [cell for record, cell in zip(records, cells, strict=True) if record.variant == name]
        variants.append(Variant(name=name, values=values, cells=tuple(own)))
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
        conditions=collect_conditions(plan, done),
        windows=plan.windows,
        hypotheses=hypotheses,
        studies=summarize_studies(plan, everything),
        findings=list_findings(plan, everything, hypotheses, race),
        race=race,
        target=target,
        shared_weights=count_shared_weights(records),
        variants=tuple(replace(variant, flags=flags[variant.name]) for variant in variants),
    )


def describe_comparison(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison and its analysis as JSON can hold them; `Comparison.read` reads it."""
    found: dict[str, Any] = finite(
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
    return {**comparison.to_dict(), **found}


def write_results(comparison: Comparison, folder: Path, *, intervals: bool = False) -> list[Path]:
    """Write numbers, tables, page and figures; existing files are overwritten.

    One process writes at a time: the names of unfinished files are the same for all.

    Args:
        comparison: The comparison.
        folder: The output folder.
        intervals: Whether the table for LaTeX has intervals.
    """
    # altair takes its time to import, and cells need none of it
    from zoo.comparison.figures import save_figures
    from zoo.comparison.page.comparison_page import render

    message = "another process is writing its files"
    with run_dir.lock(folder, message, PATIENCE, WRITING):
        texts = {
            RESULTS: as_json(describe_comparison(comparison)) + "\n",
            TABLE: disarm_tags(format_comparison(comparison)) + "\n",
            PAGE: render(comparison),
            **format_tables(build_result_table(comparison), intervals=intervals),
        }
        for name, text in texts.items():
            write_file(io.BytesIO(text.encode()), folder / name)
        return [*(folder / name for name in texts), *save_figures(comparison, folder)]
