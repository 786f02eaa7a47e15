"""The table of an evaluation for a paper."""

import csv
from dataclasses import replace
from pathlib import Path

from latex import read_table

from zoo.evaluation.results import ConditionResult, Evaluation, build_panels, build_result_table
from zoo.reporting.charts import draw_panel, render_formats
from zoo.reporting.panel import NamedHeatmap
from zoo.reporting.style import Style
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
    # one run: which method is best is not established
    assert all(cell[1] == "" for row in rows for cell in row[1:])
    assert "No value is bold" in caption
    assert r"lm\_rope on letters\_100\%, 1,200 samples. windows: side by side." in caption
    numbers = [*csv.DictReader(format_csv(build_result_table(found)).splitlines())]
    assert [float(one["test, loss"]) for one in numbers] == [2.0, 4.0, 2.5, 3.0]


def test_baselines_stand_with_their_condition_in_the_caption():
    trained, longer, *methods = make_evaluation(CONDITIONS).conditions
    longer = replace(longer, baselines={"test/loss": {"bigram": 2.5, "5-gram": 1.5}})
    found = replace(make_evaluation(CONDITIONS), conditions=(trained, longer, *methods))
    assert Evaluation.from_dict(found.to_dict()) == found
    caption, *_ = read_table(found.latex())
    assert "Baselines, 128 tokens: test/loss bigram 2.5000, 5-gram 1.5000." in caption
    assert caption.count("Baselines") == 1


def test_right_answers_are_mapped_by_length_and_depth():
    found = make_evaluation(CONDITIONS)
    shares = [(None, *(n / 10 for n in range(9))), tuple(n / 20 for n in range(10))]
    trained, longer, *others = found.conditions
    trained = replace(trained, condition=replace(trained.condition, size=(64,)))
    measured = [
        replace(one, depth_exacts=own) for one, own in zip((trained, longer), shares, strict=True)
    ]
    found = replace(found, conditions=(*measured, *others))
    assert Evaluation.from_dict(found.to_dict()) == found
    (panel,) = [one for one in build_panels(found, "tokens") if isinstance(one, NamedHeatmap)]
    assert panel.columns == ("64", "128")
    assert panel.values.shape == (10, 2)
    assert panel.values[0, 0].isnan()
    assert panel.values[:, 1].tolist() == [*shares[1]]
    assert b"0.45" in render_formats(draw_panel(panel, Style()))[".svg"]


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
