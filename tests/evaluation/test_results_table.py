"""The table of an evaluation for a paper."""

import csv
from dataclasses import replace
from pathlib import Path

from latex import read_table

from zoo.evaluation.results import ConditionResult, Evaluation, build_result_table
from zoo.reporting.tables import format_csv
from zoo.run.conditions import Condition

CONDITIONS = {
    Condition("trained", "trained", (64,)): (2.0, 0.5),
    Condition("128", "size", (128,)): (4.0, 0.25),
    Condition("128 by yarn", "extrapolation", (128,), "yarn"): (2.5, 0.45),
    Condition("128 by linear", "extrapolation", (128,), "linear"): (3.0, 0.45),
}


def make_evaluation(conditions):
    return Evaluation(
        recipe="lm_rope",
        checkpoint=Path("run/best.ckpt"),
        data="letters_100%",
        count=1200,
        trained_size=(64,),
        conditions=tuple(
            ConditionResult(
                condition=one,
                metrics={"test/loss": loss, "test/accuracy": accuracy, "test/odd": 1.0},
                windows="side by side",
            )
            for one, (loss, accuracy) in conditions.items()
        ),
    )


def test_methods_are_compared_at_each_size():
    found = make_evaluation(CONDITIONS)
    caption, heads, rows = read_table(found.latex())
    assert heads == ["condition", r"loss $\downarrow$", r"accuracy $\uparrow$", "odd"]
    assert [[cell[1] for cell in row[1:]] for row in rows] == [
        ["", "", ""],
        ["", "underline", ""],
        ["textbf", "textbf", ""],
        ["underline", "textbf", ""],
    ]
    assert r"lm\_rope on letters\_100\%, 1,200 samples. windows: side by side." in caption
    numbers = [*csv.DictReader(format_csv(build_result_table(found)).splitlines())]
    assert [float(one["test, loss"]) for one in numbers] == [2.0, 4.0, 2.5, 3.0]


def test_sizes_alone_are_not_ranked():
    sizes = {one: values for one, values in CONDITIONS.items() if one.kind != "extrapolation"}
    found = make_evaluation(sizes)
    caption, _, rows = read_table(found.latex())
    assert {cell[1] for row in rows for cell in row[1:]} == {""}
    assert "Bold" not in caption


def test_what_was_refused_is_named_below():
    found = make_evaluation(CONDITIONS)
    *others, last = found.conditions
    refused = replace(last, metrics={}, refused="out of memory")
    caption, _, rows = read_table(replace(found, conditions=(*others, refused)).latex())
    assert len(rows) == 3
    assert "Refused: 128 tokens by linear." in caption
