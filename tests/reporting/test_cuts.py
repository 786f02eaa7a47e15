"""Nothing is cut out of a chart without a mark: an axis holds a value, or an arrow points to it."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import comparisons
import pytest
import reports
import torch

import zoo
from zoo.benchmark.plots import draw_result
from zoo.benchmark.protocol import SHAPES
from zoo.benchmark.result import BenchResult, BenchRow
from zoo.comparison.figures import draw_ranking
from zoo.comparison.overall import OverallRanking, OverallStanding
from zoo.comparison.overall import draw_ranking as draw_overall
from zoo.comparison.page.comparison_page import render
from zoo.comparison.ranking import choose_scale, rank_variants
from zoo.comparison.strips import build_strip
from zoo.reporting import cuts
from zoo.reporting.charts import draw_panel, list_dots
from zoo.reporting.panel import (
    Bars,
    Curves,
    Heatmap,
    HeatmapGrid,
    Line,
    LineChart,
    NamedHeatmap,
    Panel,
    Points,
    Scale,
)
from zoo.reporting.render import draw_for_page
from zoo.reporting.style import Style

X = torch.arange(10.0)
FLAT = torch.full((10,), 0.5)
DIRECTIONS = {text: direction for direction, text in cuts.ARROWS.items()}


def list_views(spec, rows=()):
    """All views of a specification that have marks, with their rows, perhaps those of a parent."""
    if "data" in spec:
        values = spec["data"].get("values", "[]")
        rows = json.loads(values) if isinstance(values, str) else values
    for key in ("layer", "concat", "hconcat", "vconcat"):
        for view in spec.get(key, ()):
            yield from list_views(view, rows)
    if "mark" in spec:
        yield spec, rows


def list_arrows(spec):
    """Directions of the arrows of a specification, in the order of drawing."""
    found = []
    for view, rows in list_views(spec):
        if view["mark"]["type"] != "text":
            continue
        field = view["encoding"].get("text", {}).get("field", "").partition(":")[0]
        texts = (
            [row[field] for row in rows] if field else [view["mark"].get("text", "")] * len(rows)
        )
        letters = (letter for text in texts for letter in str(text))
        found += [DIRECTIONS[letter] for letter in letters if letter in DIRECTIONS]
    return found


def find_strays(spec):
    """Values of rows that lie outside the domain of their axis, and would be cut or overflow."""
    strays = []
    for view, rows in list_views(spec):
        encoding = view["encoding"]
        for channel in ("x", "y", "x2", "y2"):
            scale = encoding.get(channel[0], {}).get("scale") or {}
            field = encoding.get(channel, {}).get("field")
            if field is None or "domain" not in scale or view["mark"].get("clip"):
                continue
            low, high = scale["domain"]
            values = [row[field] for row in rows if row.get(field) is not None]
            margin = 1e-6 * (high - low)
            strays += [one for one in values if not low - margin <= one <= high + margin]
    return strays


def draw(panel):
    return draw_panel(panel, Style()).to_dict(validate=False)


def chart(*lines, **options):
    return LineChart(title="t", x="x", y="y", lines=lines, **options)


def with_value(value, at=5):
    line = FLAT.clone()
    line[at] = value
    return line


LOG = Scale(0.1, 1.0, log=True)
UNIT = Scale(0.0, 1.0)
PLANTED = {
    "line above": (chart(Line("a", X, with_value(9.0)), y_scale=UNIT), ["up"]),
    "line below": (chart(Line("a", X, with_value(-9.0)), y_scale=UNIT), ["down"]),
    "line on a logarithmic axis": (chart(Line("a", X, with_value(0.0)), y_scale=LOG), ["down"]),
    "infinite": (chart(Line("a", X, with_value(math.inf))), ["up"]),
    "line of few points": (chart(Line("a", X[:3], with_value(9.0, 1)[:3]), y_scale=UNIT), ["up"]),
    "points that are not connected": (
        chart(Line("a", X, with_value(9.0)), y_scale=UNIT, connected=False),
        ["up"],
    ),
    "before the axis": (chart(Line("a", X, FLAT), x_scale=Scale(1.0, 9.0)), ["left"]),
    "past the axis": (chart(Line("a", X, FLAT), x_scale=Scale(0.0, 8.0)), ["right"]),
    "band": (
        chart(Line("a", X, FLAT, (with_value(-9.0), with_value(9.0))), y_scale=UNIT),
        ["up", "down"],
    ),
    "infinite band": (chart(Line("a", X, FLAT, (FLAT, with_value(math.inf)))), ["up"]),
    "spike of a long line": (
        chart(Line("a", torch.arange(1000.0), torch.eye(1000)[500] * 9), y_scale=UNIT),
        ["up"],
    ),
    "values as text": (
        chart(Line("a", X, with_value(9.0)), y_scale=UNIT, shows_values=True),
        ["up"],
    ),
    "curves": (
        Curves(title="t", x="x", y="y", x_values=X, lines={"a": with_value(-math.inf)}),
        ["down"],
    ),
    "points": (
        Points(title="t", x="x", y="y", groups={"a": (X, with_value(9.0))}, y_scale=UNIT),
        ["up"],
    ),
    "points past the axis": (
        Points(title="t", x="x", y="y", groups={"a": (X, FLAT)}, x_scale=Scale(0.0, 8.0)),
        ["right"],
    ),
    "points on a logarithmic axis": (
        Points(title="t", x="x", y="y", groups={"a": (X, with_value(-1.0))}, steep=True),
        ["down"],
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_lies_beyond_an_axis_is_an_arrow(name):
    panel, directions = PLANTED[name]
    spec = draw(panel)
    assert sorted(list_arrows(spec)) == sorted(directions)
    assert find_strays(spec) == []
    assert cuts.NOTE in spec["title"]["subtitle"]
    # in a page too, whose script counts dots
    page = draw_for_page(panel)
    assert sum(page.svg.count(text) for text in DIRECTIONS) == len(directions)
    lined = panel.to_line_chart() if isinstance(panel, Curves) else panel
    assert json.loads(page.data)["dots"] == [n for n, _ in list_dots(lined)]
    assert page.svg.count("mark-symbol") == bool(json.loads(page.data)["dots"])


def test_what_an_axis_holds_has_no_arrow():
    panels = [*reports.encodings(), *reports.training(), chart(Line("a", X, with_value(math.nan)))]
    for panel in panels:
        spec = draw(panel)
        assert list_arrows(spec) == []
        assert cuts.NOTE not in json.dumps(spec)
        assert find_strays(spec) == []


def test_arrows_of_a_series_do_not_crowd():
    panel = chart(
        Line("a", torch.arange(1000.0), 9 * torch.sin(torch.arange(1000.0))), y_scale=UNIT
    )
    assert 0 < len(list_arrows(draw(panel))) <= 2 * (cuts.PLACES + 1)


def test_other_kinds_of_panels_hold_all_their_values():
    far = torch.tensor([[0.1, 1e6], [-1e6, 0.2]])
    shared = {"title": "t", "x": "x", "y": "y"}
    panels = {
        Bars: Bars(**shared, values={"a": 1.0, "b": 1e6, "c": math.inf}),
        Heatmap: Heatmap(**shared, values=far, unit="u", signed=True),
        HeatmapGrid: HeatmapGrid(**shared, values=far[None], labels=("a",), unit="u"),
        NamedHeatmap: NamedHeatmap(**shared, values=far, rows=("a", "b"), columns=("c", "d")),
    }
    # every kind of panel has a case in this file
    assert {*panels, Curves, LineChart, Points} == {*Panel.__subclasses__()}
    texts = {
        kind: [row["text"] for _, rows in list_views(draw(panels[kind])) for row in rows]
        for kind in (Bars, NamedHeatmap)
    }
    assert {"1\u202f000\u202f000", "\u25ba \u221e"} <= {*texts[Bars]}
    assert "1000000.00" in texts[NamedHeatmap]
    assert find_strays(draw(panels[Bars])) == []
    for kind in (Heatmap, HeatmapGrid):
        legend = [
            view["encoding"]["color"]["scale"]["domain"]
            for view, _ in list_views(draw(panels[kind]))
            if "color" in view["encoding"]
        ]
        assert legend[-1] == [-1e6, 1e6]


def test_every_module_that_draws_has_a_case_here():
    folder = Path(zoo.__file__).parent
    drawing = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if re.search(r"^\s*import altair", path.read_text(), flags=re.MULTILINE)
    }
    assert drawing == {
        "benchmark/plots.py",
        "comparison/figures.py",
        "comparison/overall.py",
        "comparison/suite_results.py",  # tests/comparison/test_suite.py
        "diagnostics/portrait/portrait.py",  # arranges panels
        "reporting/charts.py",
        "reporting/heatmaps.py",
        "reporting/style.py",
    }


def make_outliers():
    """A comparison with means, intervals and seeds beyond both ends of its axis."""
    found = comparisons.images(levels={name: 0.9 + n / 1000 for n, name in enumerate("abcdefgh")})
    planted = {"a": (0.2, 0.21, 0.22), "b": (0.05, 0.905, 0.91), "c": (0.1, 0.11, 0.99)}
    variants = []
    for variant in found.variants:
        values = planted.get(variant.name)
        cells = variant.cells
        if values:
            cells = tuple(
                comparisons.replace_metrics(
                    cell,
                    {one.condition.name: {"test/accuracy": value} for one in cell.measurements},
                )
                for cell, value in zip(cells, values, strict=True)
            )
        variants.append(replace(variant, cells=cells))
    return replace(found, variants=tuple(variants), measure="test/accuracy")


def test_a_ranking_marks_means_intervals_and_seeds_beyond_its_axis():
    found = make_outliers()
    spec = draw_ranking(found).to_dict(validate=False)
    assert find_strays(spec) == []
    page = render(found)
    arrows = {"left": 0, "right": 0}
    for condition in found.conditions:
        standings = rank_variants(found, condition)
        scale = choose_scale(standings)
        for standing in standings:
            strip = build_strip(standing, scale)
            mean, values = standing.mean, standing.values.values()
            # what is not an arrow lies on the axis
            assert (strip.mean is None) == (not scale.low <= mean.mean <= scale.high)
            assert len(strip.seeds) == sum(scale.low <= value <= scale.high for value in values)
            before = {"mean": mean.mean < scale.low, "end": mean.low < scale.low}
            past = {"mean": mean.mean > scale.high, "end": mean.high > scale.high}
            seeds = (min(values) < scale.low, max(values) > scale.high)
            assert strip.interval_cuts == (before["end"], past["end"])
            assert strip.seed_cuts == seeds
            arrows["left"] += any(before.values()) + seeds[0]
            arrows["right"] += any(past.values()) + seeds[1]
    assert min(arrows.values()) > 0
    drawn = list_arrows(spec)
    assert {one: drawn.count(one) for one in arrows} == arrows
    assert {one: page.count(cuts.ARROWS[one]) for one in arrows} == arrows
    assert "arrows: further off than is drawn" in spec["title"]["subtitle"]
    assert "arrows: further off than is drawn" in page


@pytest.mark.parametrize(
    ("make", "has", "lacks"),
    [
        (
            lambda: comparisons.images(seeds=range(5)),
            ["small dots: seeds", "bars: 95 %", "open: may be"],
            ["arrows"],
        ),
        (
            lambda: comparisons.images(seeds=(0, 1)),
            ["small dots: seeds", "fewer than three seeds", "grey: not judged"],
            ["bars", "open", "arrows"],
        ),
        (
            lambda: comparisons.images(seeds=(0,)),
            ["one seed each"],
            ["small dots", "bars", "open", "arrows"],
        ),
    ],
)
def test_the_legend_of_a_ranking_names_what_is_drawn_and_nothing_else(make, has, lacks):
    found = make()
    spec = draw_ranking(found).to_dict(validate=False)
    legends = [spec["title"]["subtitle"], render(found).split('"how-read">')[1].split("</p>")[0]]
    for text in legends:
        assert all(entry in text for entry in has)
        assert not [entry for entry in lacks if f"{entry}: " in text]
    views = [*list_views(spec)]
    dots = [row for view, rows in views if view["mark"]["type"] == "circle" for row in rows]
    rows = [row for view, rows in views if view["mark"]["type"] == "rule" for row in rows]
    assert bool(dots) == ("small dots: seeds" in has)
    assert any(row["low"] is not None for row in rows) == ("bars: 95 %" in has)
    if dots:
        counts = [len(one.values) for c in found.conditions for one in rank_variants(found, c)]
        assert len(dots) == sum(counts)


def test_a_ranking_over_tasks_holds_every_interval():
    standing = OverallStanding(
        variant="a",
        mean=0.5,
        interval=(-40.0, 41.0),
        difference=0.0,
        difference_interval=(-1.0, 1.0),
        may_be_best=True,
        mean_rank=1.0,
    )
    ranking = OverallRanking(
        tasks=(),
        standings=(standing, replace(standing, variant="b", mean=90.0, interval=(89.0, 91.0))),
        left_out=(),
        command="",
    )
    spec = draw_overall(ranking).to_dict(validate=False)
    assert find_strays(spec) == []
    (domain,) = {tuple(view["encoding"]["x"]["scale"]["domain"]) for view, _ in list_views(spec)}
    assert domain[0] < -40
    assert domain[1] > 91


@pytest.mark.parametrize("lengths", [(32,), (32, 64)])
def test_a_benchmark_holds_every_ratio_and_quartile(lengths):
    rows = [
        BenchRow(
            measure="train",
            unit="seconds",
            length=length,
            name=name,
            library=None,
            counterpart=None,
            group=0,
            parameters=1,
            backend="sdpa",
            values=values,
            ratios=values,
            counterpart_ratios=(),
            amount=64,
            rate="tokens",
        )
        for length in lengths
        for name, values in (("rope", (1.0,) * 5), ("slow", (0.001, 1.0, 2.0, 900.0, 1000.0)))
    ]
    machine = {"device": "cpu", "processor": "p", "cores": 2, "threads": 1, "torch": "2"}
    result = BenchResult(
        zoo_version="0",
        created="now",
        command="",
        machine=machine,
        shape={"name": "lm_toy", **vars(SHAPES["lm_toy"])},
        options={"rounds": 3},
        reference="rope",
        excluded={},
        rows=tuple(rows),
    )
    spec = draw_result(result).to_dict(validate=False)
    assert find_strays(spec) == []
    domains = [
        view["encoding"][axis]["scale"]["domain"]
        for view, _ in list_views(spec)
        for axis in ("x", "y")
        if (view["encoding"].get(axis, {}).get("scale") or {}).get("domain")
    ]
    assert max(max(domain) for domain in domains) >= (900 if len(lengths) == 1 else 2.0)
