"""Score trivial baselines under all conditions of recorded comparisons, on the samples of each.

`python docs/build/record_baselines.py` writes docs/records/condition_baselines.json. Cells that
were recorded before evaluations scored baselines have only those of the test data of their recipe;
newer ones have their own. `python docs/build/record_baselines.py digits copying` scores only these
anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from zoo.comparison.plan import ComparisonPlan
from zoo.comparison.results import Comparison, ComparisonCell
from zoo.config import Recipe, from_plain
from zoo.run.build import Experiment
from zoo.run.conditions import choose_data_options, list_conditions

RECORDS = Path(__file__).parents[1] / "records"
FILE = "condition_baselines.json"
DIGITS = 9

Scores = Mapping[str, Mapping[str, float]]
"""{condition: {baseline: value}} of one metric."""


def score_baselines(recipe: Recipe, measure: str) -> dict[str, dict[str, float]]:
    """Return {condition: {baseline: value}} of a metric, for all conditions of other samples.

    Args:
        recipe: The recipe of a cell.
        measure: The metric, such as test/accuracy.
    """
    experiment = Experiment(recipe)
    conditions = list_conditions(recipe, experiment.spec)
    trained = experiment.data
    for stage in ("fit", "test"):
        trained.setup(stage)
    score = trained.fit_baselines()
    scores = {}
    for condition in conditions:
        # an extrapolation method changes the model, not the samples
        if condition.extrapolation is None:
            tested = experiment.data_variant(choose_data_options(recipe, condition))
            tested.setup("test")
            values = score(tested).get(measure, {})
            scores[condition.name] = {
                name: float(f"{value:.{DIGITS}g}") for name, value in values.items()
            }
    return scores


def record_baselines(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return {seed: {condition: {baseline: value}}} of the compared metric of a comparison.

    Args:
        folder: The folder of the recorded comparison.
    """
    plan = ComparisonPlan.read(folder)
    recipes = {cell.seed: cell.recipe for cell in plan.cells}
    return {
        str(seed): score_baselines(
            from_plain(plain, origin=str(folder), name=plan.recipe), plan.measure
        )
        for seed, plain in recipes.items()
    }


@cache
def read_file(path: Path) -> Mapping[str, Mapping[str, Scores]]:
    """Return {comparison: {seed: scores}} of the file of recorded baselines, if there is one."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def add_baselines(comparison: Comparison, name: str, records: Path) -> Comparison:
    """Return a comparison whose measurements have the baselines of their own conditions.

    Args:
        comparison: The recorded comparison.
        name: The name of its folder.
        records: The folder of the recorded comparisons.
    """
    scores = read_file(records / FILE).get(name, {})
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
        replace(one, baselines={measure: scores[one.condition.name]})
        if not one.baselines and one.condition.kind != "trained" and scores.get(one.condition.name)
        else one
        for one in cell.measurements
    )
    return replace(cell, measurements=measured)


if __name__ == "__main__":
    path = RECORDS / FILE
    recorded = {**read_file(path)}
    for plan in sorted(RECORDS.glob("*/plan.json")):
        name = plan.parent.name
        if name in (sys.argv[1:] or [name]):
            print(name)
            recorded[name] = record_baselines(plan.parent)
    path.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
