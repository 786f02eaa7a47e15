"""Score trivial baselines under all conditions of recorded comparisons, on the samples of each.

`python docs/build/record_baselines.py` writes docs/records/condition_baselines.json. Cells that
were recorded before evaluations scored baselines have only those of the test data of their recipe;
newer ones have their own. `python docs/build/record_baselines.py digits copying` scores only these
anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zoo.comparison.condition_baselines import FILE, read_scores
from zoo.comparison.plan import ComparisonPlan
from zoo.config import Recipe, from_plain
from zoo.run.build import Experiment
from zoo.run.conditions import choose_data_options, list_conditions

RECORDS = Path(__file__).parents[1] / "records"
DIGITS = 9


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


if __name__ == "__main__":
    path = RECORDS / FILE
    recorded = {**read_scores(path)}
    for plan in sorted(RECORDS.glob("*/plan.json")):
        name = plan.parent.name
        if name in (sys.argv[1:] or [name]):
            print(name)
            recorded[name] = record_baselines(plan.parent)
    path.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")
