"""Whether a cell that was trained again is the recorded one, without training it."""

from dataclasses import replace

import pytest
from test_record_check import plant

from zoo.comparison import spot_check
from zoo.comparison.plan import ComparisonPlan
from zoo.comparison.record_file import drop_cell, read_cells
from zoo.comparison.spot_check import CheckOptions, check, judge
from zoo.errors import DataError, RecipeError
from zoo.launch.executor import make_run_dir, write_state


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """judged(has_answers, **changes): the verdict on fox-0-0, trained again with such changes."""
    monkeypatch.setattr(spot_check, "count_samples", lambda _: {"val": 100, "test": 100})
    folder = plant(tmp_path / "c")

    def train(has_answers=False, recorded=None, **changes):
        plan = replace(ComparisonPlan.read(folder), has_answers=has_answers)
        cells = read_cells(folder)
        cell = replace(cells["fox-0-0"], measured=(), **(recorded or {}))
        cells["fox-0-0"] = cell
        (planned,) = (one for one in plan.cells if one.name == cell.name)
        if "processor" in changes:
            devices = {"processor": changes.pop("processor")}
            changes["environment"] = replace(cell.environment, devices=devices)
        again = replace(cell, plan=None, hypotheses=(), **changes)
        return judge(plan, planned, cells, again)

    return train


MOVED = {"test": {"test/accuracy": 0.85, "test/loss": 0.15}}
OTHER = {"processor": "another"}


@pytest.mark.parametrize(
    ("changes", "verdict", "is_explained"),
    [
        ({}, "equal", True),
        ({"first_losses": (1.000009, 0.90009)}, "equal up to rounding", True),
        ({"first_losses": (1.00002, 0.9)}, "different", False),
        ({"first_losses": (1.0, 0.9002)}, "different", False),
        ({"first_losses": (1.0, None)}, "different", False),
        ({"test": {"test/accuracy": 0.91, "test/loss": 0.1}}, "equal up to rounding", True),
        (MOVED, "different", False),
        ({**MOVED, **OTHER}, "different", False),
        ({**MOVED, **OTHER, "has_answers": True}, "equal up to rounding", True),
        ({**MOVED, "has_answers": True}, "different", False),
        ({**MOVED, **OTHER, "has_answers": True, "order": "0"}, "different", False),
        ({**OTHER, "initial_weights": "0"}, "different", False),
        # of a cell of zoo 0.3 the first losses are not known
        ({**OTHER, "minutes": 2.0, "recorded": {"first_losses": None}}, "equal", True),
        (
            {**MOVED, **OTHER, "has_answers": True, "recorded": {"first_losses": None}},
            "different",
            True,
        ),
    ],
)
def test_a_cell_that_was_trained_again_has_one_of_three_verdicts(
    changes, verdict, is_explained, judged
):
    result = judged(**changes)
    assert (result.verdict, result.is_explained) == (verdict, is_explained), result.table()


def test_a_difference_is_compared_with_the_spread_and_what_is_unknown_is_named(judged):
    small = {"test": {"test/accuracy": 0.915, "test/loss": 0.15}}
    wide = {"test": {"test/accuracy": 0.95, "test/loss": 0.05}, "first_losses": None}
    text = judged(**MOVED, **OTHER, has_answers=True, recorded=wide).table()
    assert "not known of the recorded cell: losses of the first batches" in text
    assert "another processor is another seed: compare beginnings" in text
    result = judged(**small, **OTHER, recorded=wide)
    assert result.is_explained
    assert "of the 4 studies of fox" in result.table()


def test_a_cell_that_is_not_done_is_described_as_it_is(tmp_path):
    folder = plant(tmp_path / "c")
    drop_cell(folder, "fox-3-0")
    with pytest.raises(DataError, match="fox-3-0 has not been trained yet"):
        check(folder, CheckOptions(cell="fox-3-0"))
    write_state(make_run_dir(folder / "cells/fox-3-0"), "stopped")
    with pytest.raises(DataError, match="fox-3-0 was stopped before its end"):
        check(folder, CheckOptions(cell="fox-3-0"))
    with pytest.raises(RecipeError, match="there is no cell 'fox-3-9'"):
        check(folder, CheckOptions(cell="fox-3-9"))
