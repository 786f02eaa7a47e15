"""Figures of a comparison: which are drawn, and that no name and no number breaks them."""

import json
import math
from dataclasses import replace

import comparisons
import pytest
import torch
from PIL import Image

from zoo.comparison import figures
from zoo.comparison.curves import by_cost, by_position, by_size, in_training
from zoo.comparison.figures import draw_charts, draw_lines_apart, save_figures
from zoo.comparison.page.comparison_page import list_panels, write_captions


def test_figures_are_written_whole(tmp_path):
    made = save_figures(comparisons.texts(), tmp_path)
    assert [path.name for path in made] == [
        f"{name}.{suffix}"
        for name in ("ranking", "sizes", "positions", "training")
        for suffix in ("png", "svg", "pdf")
    ]
    assert sorted(tmp_path.iterdir()) == sorted(made)
    assert "alibi" in (tmp_path / "ranking.svg").read_text()
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as image:
            assert min(image.size) > 75  # a quarter of what a user gets
            assert image.convert("L").getextrema()[0] < 60  # something is drawn


@pytest.mark.nightly
def test_many_lines_have_a_drawing_each_the_best_first():
    found = comparisons.texts()
    many = tuple(
        replace(one, name=f"{one.name} {number}") for number in range(4) for one in found.variants
    )
    (chart,) = by_size(replace(found, variants=many))
    drawn = draw_lines_apart(found, chart).to_dict(validate=False)["concat"]
    fronts = [one["layer"][1] for one in drawn]  # over all lines in grey
    titles = [front["title"]["text"] for front in fronts]
    assert titles == [line.label for line in reversed(chart.lines)]
    assert titles[0].startswith("alibi")
    for front, line in zip(fronts, reversed(chart.lines), strict=True):
        rows = json.loads(mark(front, "line")["data"]["values"])
        values = [math.nan if row["y"] is None else row["y"] for row in rows]
        torch.testing.assert_close(torch.tensor(values).double(), line.y, equal_nan=True)
        assert mark(front, "line")["encoding"]["y"] == mark(fronts[0], "line")["encoding"]["y"]
    backs = [one["layer"][0] for one in drawn]
    rows = json.loads(mark(backs[0], "line")["data"]["values"])
    assert len({row["series"] for row in rows}) == len(many)


def mark(chart, kind):
    """The layer of a chart with this kind of mark."""
    return next(one for one in chart["layer"] if one["mark"]["type"] == kind)


def test_no_group_of_a_grid_is_left_out_where_lines_are_many(monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "MAX_LINES", 1)
    monkeypatch.setattr(
        figures,
        "draw_lines_apart",
        lambda comparison, chart: drawn.append(chart) or draw_lines_apart(comparison, chart),
    )
    draw_charts(comparisons.grid(), by_size(comparisons.grid()))
    assert not drawn
    draw_charts(comparisons.texts(), by_size(comparisons.texts()))
    assert drawn


@pytest.mark.parametrize("made", [comparisons.hostile, comparisons.grid, comparisons.empty])
def test_no_name_and_no_number_breaks_a_figure(made, tmp_path):
    assert all(path.is_file() for path in save_figures(made(), tmp_path))


def test_curves_by_size_have_means_and_gaps():
    (chart,) = by_size(comparisons.texts())
    lines = {line.label: line for line in chart.lines}
    assert lines["alibi"].x.tolist() == [128, 256, 512, 1024]
    assert lines["learned"].y.isfinite().tolist() == [True, False, False, False]
    found = comparisons.texts()
    condition = found.find_condition("512")
    values = [cell.find(condition).metrics["test/loss"] for cell in found.variants[0].cells]
    assert lines["alibi"].y[2] == pytest.approx(sum(values) / 3)
    assert chart.rule == (128, "training")
    assert chart.x_scale.log


def test_losses_by_place_are_means_of_neighbours():
    (chart,) = by_position(comparisons.texts())
    line = chart.lines[0]
    found = comparisons.texts()
    condition = found.find_condition("1024")
    rows = torch.tensor(
        [cell.find(condition).position_losses for cell in found.variants[0].cells]
    ).double()
    assert line.x[0] == 10.0  # the middle of the first 21
    assert line.y[0] == pytest.approx(rows[:, :21].mean())
    assert line.x[-1] < 1024


def test_losses_of_an_answer_alone_are_no_curve_by_place():
    texts = comparisons.texts()
    answers = [None] * 1019 + [1.0] * 5
    cells = tuple(
        replace(
            cell,
            measurements=comparisons.measure({}, texts.conditions, {}, {"1024": tuple(answers)}),
        )
        for cell in texts.variants[0].cells
    )
    only = replace(texts, variants=(replace(texts.variants[0], cells=cells),))
    assert by_position(only) == ()


def test_costs_are_drawn_from_zero_where_variants_differ_by_two_percent():
    made = comparisons.images()
    assert by_cost(comparisons.texts()) == by_cost(made) == ()
    first, *others = made.variants
    for factor, drawn in ((1.015, []), (1.05, ["Parameters"])):
        cells = tuple(
            replace(cell, parameters=int(cell.parameters * factor)) for cell in first.cells
        )
        panels = by_cost(replace(made, variants=(replace(first, cells=cells), *others)))
        assert [panel.title for panel in panels] == drawn
    (panel,) = panels
    costs = [x.item() for x, _ in panel.groups.values()]
    assert panel.groups[first.name][0].item() == pytest.approx(max(costs))
    assert panel.x_scale.low == 0
    assert panel.x_scale(max(costs)) - panel.x_scale(min(costs)) < 0.05
    assert panel.x_scale(max(costs)) < 1


def few(made):
    """A comparison of three of its variants."""
    return replace(made, variants=made.variants[:3])


def two_sizes(made):
    """A comparison under its first two conditions."""
    return replace(made, conditions=made.conditions[:2])


@pytest.mark.parametrize(
    ("made", "has", "lacks"),
    [
        (comparisons.images(), ["means over seeds", "training size"], ["bands", "dashed"]),
        (few(comparisons.images()), ["means over seeds", "95 % intervals"], ["dashed"]),
        (few(comparisons.images(seeds=(0, 1))), ["means over seeds"], ["95 % intervals"]),
        (comparisons.images(seeds=(0,)), ["one seed each"], ["bands", "means over seeds"]),
        (
            two_sizes(comparisons.texts()),
            ["95 % intervals", "dashed: nothing is measured between"],
            [],
        ),
    ],
    ids=["many variants", "three seeds", "two seeds", "one seed", "two sizes"],
)
def test_charts_explain_what_they_draw_and_nothing_else(made, has, lacks):
    drawn = figures.draw_figures(made)["sizes"].to_dict(validate=False)
    for text in (
        drawn["title"]["subtitle"],
        write_captions(made, list_panels(made))["sizes"].lower(),
    ):
        assert all(part in text for part in has)
        assert not [part for part in lacks if part in text]
    has_bands = any(line.band for chart in by_size(made) for line in chart.lines)
    assert has_bands == ("95 % intervals" in has)


def test_groups_share_a_scale():
    charts = in_training(comparisons.grid())
    assert [one.title for one in charts] == ["rope", "alibi", "none"]
    assert len({(one.y_scale.low, one.y_scale.high) for one in charts}) == 1
