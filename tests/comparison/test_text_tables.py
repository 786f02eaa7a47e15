"""The table says which is best where, what it costs, and what is to be minded."""

import re
from dataclasses import replace

import comparisons
import pytest

from zoo.cli.terminal import paint
from zoo.comparison.curves import in_training_compute
from zoo.comparison.page.comparison_page import render
from zoo.comparison.plan import ComparisonPlan, PlannedCell, list_differences
from zoo.comparison.ranking import (
    average_baselines,
    compare_at_equal_compute,
    find_winning_baseline,
)
from zoo.comparison.results import ComparisonCell
from zoo.comparison.text import format_comparison


def cells(text, title):
    """{variant: cells of its row} of the table under a title."""
    lines = text.split(f"## {title}\n\n")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_variants_stand_in_their_order_with_interval_difference_and_verdict():
    asked = replace(comparisons.images(seeds=range(5)), question="24")
    found = cells(format_comparison(asked), "At 24 pixels")
    assert next(iter(found)) == "comrope_ld"
    assert found["comrope_ld"][2] == "highest mean"
    assert [*found][-1] == "none"
    assert found["none"][2] == "worse"
    assert found["none"][1].startswith("\N{MINUS SIGN}0.")
    assert found["liere"][3:] == ["4", "parameters, failed seeds"]


def test_no_name_ends_a_column():
    found = comparisons.images()
    first, *others = found.variants
    text = format_comparison(replace(found, variants=(replace(first, name="a|b"), *others)))
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert rows
    assert all(r"| a\|b " in row for row in rows)


def test_costs_are_those_of_each_variant():
    found = cells(format_comparison(comparisons.images()), "What it costs")
    assert found["liere"] == ["678,522", "21.9", "sdpa", "400", "50.0", "2.50", "700", "2 of 3"]


def test_what_is_to_be_minded_is_told():
    text = format_comparison(comparisons.images())
    assert "- liere: 512 more parameters than the others; seed 2 failed" in text
    assert "104 weights that all variants have began equal" in text
    text = format_comparison(comparisons.texts())
    assert "- learned: refused at 256, 512 and 1024 tokens: the table has 128 places" in text
    assert "windows side by side" in text
    assert "11 of 12 cells are done" in text


def test_a_comparison_of_which_nothing_is_done_is_a_table_too():
    made = comparisons.images(seeds=(0,))
    waiting = tuple(
        replace(one, cells=(ComparisonCell(seed=0, run_dir="", state="waiting"),), flags=())
        for one in made.variants
    )
    text = format_comparison(replace(made, variants=waiting, conditions=(comparisons.IMAGE,)))
    assert "At 16 pixels nothing is measured" in text
    assert "0 of 6 cells are done, 6 waiting" in text


def plan(**more):
    recipe = {
        "seed": 0,
        "trainer": {"max_epochs": 3, "num_threads": 1},
        "model": {"encoding": [{"name": "none"}]},
    }
    known = {
        "zoo_version": "",
        "created": "",
        "command": "",
        "recipe": "",
        "base": {},
        "machine": {},
        "seeds": (0,),
        "measure": "",
        "better": "low",
        "training_size": None,
        "windows": "",
        "automatic_threads": True,
        "variants": {"none": {"model.encoding": "none"}},
        "axes": (comparisons.make_axis("model.encoding", "encoding", ("none",)),),
        "cells": (PlannedCell(name="none-0", variant="none", seed=0, recipe=recipe),),
    }
    return ComparisonPlan(**{**known, **more})


def changed(section, **values):
    (cell,) = plan().cells
    return (replace(cell, recipe={**cell.recipe, section: {**cell.recipe[section], **values}}),)


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan().write(tmp_path)
    assert ComparisonPlan.read(tmp_path) == plan()
    assert ComparisonPlan.read(tmp_path).hash == plan().hash


def test_threads_that_were_not_asked_for_are_no_part_of_a_plan():
    other = plan(cells=changed("trainer", num_threads=2))
    assert other.hash == plan().hash
    assert (
        replace(other, automatic_threads=False).hash
        != replace(plan(), automatic_threads=False).hash
    )


def test_what_differs_is_named():
    assert [*list_differences(plan(), plan(cells=changed("trainer", max_epochs=5)))] == [
        "trainer.max_epochs is 3 there, 5 here"
    ]
    axes = (comparisons.make_axis("model.encoding", "encoding", ("none", "rope")),)
    assert [*list_differences(plan(), plan(axes=axes, seeds=(0, 1)))] == [
        "model.encoding varies over [none] there, over [none,rope] here",
        "seeds are 0 there, 0, 1 here",
    ]


def with_baselines(made=None, metric="test/loss", **values):
    made, baselines = made or comparisons.texts(), {metric: values}
    variants = [
        replace(one, cells=tuple(replace(cell, baselines=baselines) for cell in one.cells))
        for one in made.variants
    ]
    return replace(made, variants=tuple(variants))


def test_a_baseline_that_beats_every_model_is_told_at_the_top():
    text = format_comparison(with_baselines(bigram=1.1, unigram=2.0))
    head, *_ = text.split("At 128 tokens")
    assert "Inconclusive: no model beats the baseline bigram, test loss 1.10" in head
    assert "no model beats" in render(with_baselines(bigram=1.1)).split('class="answer"')[0]


def test_the_warning_is_red_in_a_terminal_and_on_the_page():
    text, page = (write(with_baselines(bigram=1.1)) for write in (format_comparison, render))
    assert '<p class="open warning" role="alert">' in page
    assert ".warning { color: #b3000c" in page
    red = "\033[1;31m"
    assert f"{red}Inconclusive: no model beats" in paint(text)
    assert red not in paint(format_comparison(with_baselines(bigram=2.5)))


def test_baselines_that_are_beaten_stand_under_the_table():
    text = format_comparison(with_baselines(bigram=2.5))
    assert "Baselines: bigram 2.50" in text
    assert "Inconclusive" not in text
    assert 'role="alert"' not in render(with_baselines(bigram=2.5))


def test_training_is_also_drawn_against_time_if_steps_take_another_time():
    made = comparisons.texts()
    assert in_training_compute(made) == ()
    slow, *others = made.variants
    cells = tuple(replace(cell, step_seconds=0.9) for cell in slow.cells)
    (chart,) = in_training_compute(replace(made, variants=(replace(slow, cells=cells), *others)))
    ends = {line.label: float(line.x[-1]) for line in chart.lines}
    assert ends["alibi"] == pytest.approx(450)
    assert ends["rope"] == pytest.approx(150)


def test_variants_are_compared_at_equal_steps_seconds_and_flops():
    made = replace(comparisons.images(), base={"data": {"batch_size": 10}})
    first, *others = made.variants
    cells = tuple(replace(cell, step_seconds=0.1, flops=3_000) for cell in first.cells)
    others = [
        replace(one, cells=tuple(replace(cell, flops=1_000) for cell in one.cells))
        for one in others
    ]
    made = replace(made, variants=(replace(first, cells=cells), *others))
    found = compare_at_equal_compute(made)
    curve = dict(first.cells[0].curve)
    assert found["steps"]["none"] == pytest.approx(curve[400])
    assert found["seconds"]["none"] == pytest.approx(curve[200])  # twice as slow
    assert found["FLOPs"]["none"] == pytest.approx(curve[120])  # a third of 400 steps
    assert found["FLOPs"]["liere"] == pytest.approx(dict(others[3].cells[0].curve)[400])
    assert "## Validation metric at equal compute" in format_comparison(made)
    (chart,) = in_training_compute(made, "FLOPs")
    assert chart.x == "MFLOPs"
    assert float(chart.lines[0].x[-1]) == pytest.approx(3 * 10 * 3_000 * 400 / 1e6)
    assert compare_at_equal_compute(comparisons.texts()) == {}  # nothing but steps


def test_baselines_stand_with_the_condition_that_they_are_of():
    """At 24 pixels a baseline wins that has no value at 16, and 32 pixels have none."""
    made = with_baselines(comparisons.images(), "test/accuracy", majority=0.1)
    variants = []
    for variant in made.variants:
        cells = []
        for cell in variant.cells:
            measured = tuple(
                replace(one, baselines={"test/accuracy": {"resized": 0.999, "majority": 0.09}})
                if one.condition.name == "24"
                else one
                for one in cell.measurements
            )
            cells.append(replace(cell, measurements=measured))
        variants.append(replace(variant, cells=tuple(cells)))
    made = replace(made, variants=tuple(variants))
    trained, middle, large = made.conditions
    by_method = replace(middle, name="24 by linear", kind="extrapolation", extrapolation="linear")
    assert average_baselines(made) == {"majority": pytest.approx(0.1)}
    for condition in (middle, by_method):
        assert average_baselines(made, condition) == pytest.approx(
            {"resized": 0.999, "majority": 0.09}
        )
    assert average_baselines(made, large) == {}
    assert [find_winning_baseline(made, one) for one in (trained, middle, large)] == [
        None,
        "resized",
        None,
    ]
    text = format_comparison(made)
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    (at_24,) = (one for one in sections if one.startswith("At 24 pixels"))
    assert "Baselines: resized 0.999 and majority 0.090." in at_24
    assert "No model beats the baseline resized, test accuracy 0.999." in text
    assert text.count("Baselines: ") == 2
    assert "at 24 pixels: resized 0.999 and majority 0.090" in render(made)


def test_baselines_are_those_of_the_measure():
    better = with_baselines(comparisons.images(), "test/accuracy", regression=0.999, majority=0.1)
    assert "no model beats the baseline regression, test accuracy 0.999" in format_comparison(
        better
    )
    beaten = format_comparison(with_baselines(comparisons.images(), "test/accuracy", majority=0.1))
    assert "Baselines: majority 0.100" in beaten
    assert "Inconclusive" not in beaten
    other = with_baselines(comparisons.images(), "test/loss", bigram=0.01)
    assert "aseline" not in format_comparison(other)
