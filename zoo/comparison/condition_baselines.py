"""Trivial baselines of conditions that were scored after the cells of a record were trained.

Cells of zoo before evaluations scored baselines have only those of the test data of their recipe. A
file next to the folders of records has those of the other conditions; newer cells have their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from zoo.comparison.results import Comparison, ComparisonCell

FILE = "condition_baselines.json"

Scores = Mapping[str, Mapping[str, float]]
"""{condition: {baseline: value}} of the compared metric."""


@cache
def read_scores(path: Path) -> Mapping[str, Mapping[str, Scores]]:
    """Return {name of a record: {seed: scores}} of a file, if there is one."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def add_baselines(comparison: Comparison, folder: Path) -> Comparison:
    """Return a comparison whose measurements have the baselines of their own conditions.

    Args:
        comparison: The recorded comparison, by the metric of its plan.
        folder: Its folder; the file of baselines is next to it.
    """
    folder = folder.resolve()
    scores = read_scores(folder.parent / FILE).get(folder.name)
    if scores is None:
        return comparison
    variants = [
        replace(
            variant,
            cells=tuple(
                _add_to_cell(cell, scores.get(str(cell.seed), {}), comparison.measure)
                for cell in variant.cells
            ),
        )
        for variant in comparison.variants
    ]
    return replace(comparison, variants=tuple(variants))


def _add_to_cell(cell: ComparisonCell, scores: Scores, measure: str) -> ComparisonCell:
    measured = tuple(
        # what a cell has itself was scored on its own samples
        replace(measurement, baselines={measure: scores[measurement.condition.name]})
        if not measurement.baselines
        and measurement.condition.kind != "trained"
        and scores.get(measurement.condition.name)
        else measurement
        for measurement in cell.measurements
    )
    return replace(cell, measurements=measured)
