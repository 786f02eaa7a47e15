"""What the files of finished cells come to, as one comparison."""

import json

import comparisons
import pytest

from zoo.comparison.curves import by_size
from zoo.comparison.outputs import collect_results
from zoo.comparison.plan import CELLS, PLAN, ComparisonPlan, PlannedCell
from zoo.comparison.text import describe_conditions
from zoo.errors import DataError
from zoo.launch.executor import STATE, make_run_dir, read_state, write_state
from zoo.run.conditions import Condition

LOSS = "test/loss"


def make_plan(training_size=(64,), stride=None, **evaluate):
    recipe = {
        "trainer": {"max_epochs": 1, "max_steps": None},
        "evaluate": {"stride": stride, **evaluate},
    }
    return ComparisonPlan(
        zoo_version="",
        created="",
        command="",
        recipe="r",
        base={},
        machine={},
        seeds=(0,),
        measure=LOSS,
        better="low",
        training_size=training_size,
        windows="",
        automatic_threads=True,
        variants={"none": {}, "rope": {}},
        axes=(comparisons.make_axis("model.encoding", "encoding", ("none", "rope")),),
        cells=tuple(
            PlannedCell(name=f"{name}-0", variant=name, seed=0, recipe=recipe)
            for name in ("none", "rope")
        ),
    )


@pytest.fixture
def collect(tmp_path):
    """collect(plan, {cell: evaluation}) -> the comparison, where each cell reached a loss of 1."""

    def run(planned, evaluations, now="done", end=None):
        for name, evaluation in evaluations.items():
            run = make_run_dir(tmp_path / CELLS / name)
            write_state(run, now, "")
            if not (run / "start.json").exists():
                (run / "start.json").write_text("{}")
            (run / "end.json").write_text(
                json.dumps({"metrics": {LOSS: 1.0}} if end is None else end)
            )
            (run / "measured.json").write_text(json.dumps(evaluation))
        return collect_results(planned, tmp_path)

    return run


def list_losses(variant, conditions):
    return [variant.cells[0].find(one).metrics[LOSS] for one in conditions]


def make_evaluation(trained_size, *conditions):
    measured = [(Condition("trained", "trained", tuple(trained_size)), 1.0), *conditions]
    return {
        "trained_size": trained_size,
        "conditions": [
            {**condition.to_dict(), "metrics": {LOSS: value}} for condition, value in measured
        ],
    }


def test_all_kinds_of_places_are_told(collect):
    evaluation = make_evaluation(
        [64],
        (Condition("64", "size", (64,)), 1.0),
        (Condition("256", "size", (256,)), 2.0),
        (Condition("sparse", "data_variant", data_variant="sparse"), 3.0),
        (Condition("variant 256", "data_variant", data_variant="256"), 4.0),
        (Condition("256 by yarn", "extrapolation", (256,), "yarn"), 1.5),
    )
    found = collect(make_plan(), {"none-0": evaluation, "rope-0": evaluation})
    assert {one.name: one.kind for one in found.conditions} == {
        "trained": "trained",
        "256": "size",
        "sparse": "data_variant",
        "variant 256": "data_variant",
        "256 by yarn": "extrapolation",
    }
    assert list_losses(found.variants[0], found.conditions) == [1.0, 2.0, 3.0, 4.0, 1.5]
    assert found.conditions[-1].describe() == "256 tokens by yarn"
    assert describe_conditions(found.conditions[1:3]) == "at 256 tokens and on sparse"
    charts = by_size(found)
    assert [chart.title for chart in charts] == [
        "Test loss by length of windows",
        "Test loss by length of windows, by yarn",
    ]
    assert charts[0].y_scale == charts[1].y_scale
    lines = [chart.lines[0] for chart in charts]
    assert [line.x.tolist() for line in lines] == [[64, 256], [64, 256]]
    assert [line.y.tolist() for line in lines] == [[1.0, 2.0], [1.0, 1.5]]


def test_sizes_of_training_that_vary_are_places_like_others(collect):
    sizes = ((Condition("16", "size", (16, 16)), 1.0), (Condition("24", "size", (24, 24)), 2.0))
    evaluations = {
        "none-0": make_evaluation([16, 16], *sizes),
        "rope-0": make_evaluation([24, 24], *sizes),
    }
    found = collect(make_plan(training_size=None), evaluations)
    assert [one.name for one in found.conditions] == ["trained", "16", "24"]
    assert found.trained.size is None
    for variant in found.variants:
        assert list_losses(variant, found.conditions[1:]) == [1.0, 2.0]


def test_where_windows_slide_one_value_stands_at_each_size(collect):
    evaluation = make_evaluation(
        [64], (Condition("64", "size", (64,)), 0.9), (Condition("128", "size", (128,)), 0.8)
    )
    found = collect(make_plan(stride=16), {"none-0": evaluation, "rope-0": evaluation})
    assert [one.name for one in found.conditions] == ["trained", "64", "128"]
    (chart,) = by_size(found)
    assert (chart.lines[0].x.tolist(), chart.lines[0].y.tolist()) == ([64, 128], [0.9, 0.8])


def test_a_failed_evaluation_leaves_what_training_reached(collect):
    found = collect(
        make_plan(),
        {"none-0": make_evaluation([64], (Condition("256", "size", (256,)), 2.0))},
        now="failed",
    )
    (measurement,) = found.variants[0].cells[0].measurements
    assert (measurement.condition, measurement.metrics) == (found.trained, {LOSS: 1.0})
    assert found.conditions == (found.trained,)
    assert found.variants[1].cells[0].measurements == ()


ODD = [
    [],
    3,
    "x",
    {"metrics": 3, "weights": 3, "lengths": 3},
    {"weights": {"a": 3}, "lengths": {"a": 3}, "minutes": "x"},
    {"weights": {"a": []}, "extrapolation": {"yarn": 3}, "git": 3, "devices": [], "steps": []},
    {"weights": {"a": [2, "x"]}},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_files_of_another_shape_are_named(odd, collect, tmp_path):
    run = make_run_dir(tmp_path / CELLS / "none-0")
    for name in ("start.json", "environment.json"):
        (run / name).write_text(json.dumps(odd))
    found = collect(make_plan(), {"none-0": odd}, end=odd)
    assert found.conditions == (found.trained,)
    cell = found.variants[0].cells[0]
    assert (cell.state, cell.measurements) == ("failed", ())
    assert cell.error.startswith("cells/none-0/")
    assert "not as zoo writes it" in cell.error
    (run / STATE).write_text(json.dumps(odd))
    with pytest.raises(DataError, match=r"cell\.json: holds no state of a cell"):
        read_state(run)
    (tmp_path / PLAN).write_text(json.dumps(odd))
    with pytest.raises(DataError, match="holds no plan"):
        ComparisonPlan.read(tmp_path)


def test_a_plan_of_another_shape_is_told(tmp_path):
    make_plan().write(tmp_path)
    assert ComparisonPlan.read(tmp_path) == make_plan()
    found = json.loads((tmp_path / PLAN).read_text())
    del found["sha256"]
    for key in ("variants", "cells", "axes", "seeds", "base"):
        (tmp_path / PLAN).write_text(
            json.dumps({**found, key: [3]}) if key != "seeds" else json.dumps({**found, key: "a"})
        )
        with pytest.raises(DataError, match="holds no plan"):
            ComparisonPlan.read(tmp_path)
    (tmp_path / PLAN).write_text(json.dumps({**found, "kind": "lengths"}))
    with pytest.raises(DataError, match="kind: unknown key"):
        ComparisonPlan.read(tmp_path)
