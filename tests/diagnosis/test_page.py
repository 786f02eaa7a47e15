"""The page of a report, without a browser: one file that is whole, escaped, small, and has the numbers."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import pytest
import reports
import torch
from elements import Reader

from zoo.diagnosis.page import diagnosis_page, head_tables, viewer_data
from zoo.diagnosis.page.diagnosis_page import build_figures
from zoo.diagnosis.page.head_tables import build_figure
from zoo.diagnosis.page.viewer_data import choose_queries, to_dict
from zoo.diagnosis.position_use import judge_position_use
from zoo.diagnosis.report import Control, Measure, PairedChange
from zoo.reporting import numbers
from zoo.reporting.charts import thin_line
from zoo.reporting.html import Markup, _environment, break_words, to_script_json
from zoo.reporting.panel import Curves, Heatmap
from zoo.reporting.render import draw_for_page


def draw(panel):
    """A panel as HTML."""
    figures = _environment().get_template("reporting/templates/figures.html").module
    return figures.drawing(draw_for_page(panel))


@pytest.fixture(scope="module", autouse=True)
def _panels_drawn_once():
    with reports.draw_panels_once():
        yield


@pytest.fixture(scope="module")
def make_reports():
    return reports.every()


@pytest.fixture(scope="module")
def pages(make_reports):
    return {name: diagnosis_page.render(report) for name, report in make_reports.items()}


@pytest.mark.parametrize("name", ["image", "text", "clip", "pair", "hostile"])
def test_a_page_is_well_formed(pages, name):
    read = Reader(pages[name])
    assert read.faults == []
    names = [
        element["attributes"]["id"] for element in read.elements if "id" in element["attributes"]
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["image", "pair", "hostile"])
def test_nothing_in_a_page_asks_for_anything_else(pages, name):
    read = Reader(pages[name])
    addresses = [
        value
        for e in read.elements
        for key, value in e["attributes"].items()
        if key in ("href", "src", "srcset")
    ]
    assert addresses
    assert all(address.startswith(("#", "data:image/")) for address in addresses)
    assert not {e["name"] for e in read.elements} & {
        "link",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    assert "url(http" not in pages[name]
    assert "@import" not in pages[name]


def test_the_policy_lets_one_script_run_and_nothing_be_fetched(pages):
    read = Reader(pages["image"])
    (policy,) = [
        e["attributes"]["content"]
        for e in read.find_named("meta")
        if "http-equiv" in e["attributes"]
    ]
    (script,) = [e["text"] for e in read.find_named("script") if "type" not in e["attributes"]]
    assert "default-src 'none'" in policy
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{known}';" in policy


def test_hostile_words_stay_words(pages):
    read = Reader(pages["hostile"])
    assert len(read.find_named("script")) == 2
    assert not read.find_named("img")
    assert not [key for e in read.elements for key in e["attributes"] if key.startswith("on")]
    (code,) = read.find_named("code")
    assert "</script><script>alert(1)</script><!-- <img" in code["text"]
    assert "# </pre></details>" in code["text"]


def test_data_for_the_script_are_json_that_ends_no_element():
    text = to_script_json({"words": reports.HOSTILE})
    assert json.loads(text)["words"] == reports.HOSTILE
    assert text.isascii()
    assert not set(text) & set("<>&")


def test_weights_reach_the_script_within_half_a_level(make_reports):
    report = make_reports["image"]
    (message,) = json.loads(to_script_json(viewer_data.collect(report)))["runs"]
    exact = report.runs[0].attended.weights
    largest = exact.amax(-1).max()
    torch.testing.assert_close(
        decode_values(message["weights"], exact.shape), exact, atol=float(largest) / 500, rtol=0
    )


def decode_values(message, shape):
    """Weights from their bytes."""
    levels = torch.frombuffer(bytearray(base64.b64decode(message["levels"])), dtype=torch.uint8)
    low, high = (
        torch.frombuffer(bytearray(base64.b64decode(message["largest"])), dtype=torch.uint8)
        .view(-1, 2)
        .T.int()
    )
    return (levels.view(-1, shape[-1]) / 255 * (low + 256 * high)[:, None] / 65535).view(*shape)


def test_json_has_the_weights_as_bytes(make_reports):
    seen, message = (
        make_reports["text"].runs[0].attended,
        to_dict(make_reports["text"])["runs"][0]["attended"],
    )
    for name in ("weights", "rollout"):
        exact, found = getattr(seen, name), message[name]
        assert found["shape"] == list(exact.shape)
        torch.testing.assert_close(
            decode_values(found, found["shape"]), exact, atol=float(exact.max()) / 500, rtol=0
        )


def test_of_many_samples_the_first_are_shown_and_the_page_says_so():
    samples = tuple(reports.Sample(title=str(n), tokens=("a",) * 30) for n in range(2_000))
    few = reports.make_attended((30,), (), samples[:1])
    many = replace(
        few, samples=samples, weights=few.weights.expand(2_000, -1, -1, -1, -1), rollout=None
    )
    report = reports.report(reports.run("lm", many, "tokens"))
    (message,) = viewer_data.collect(report)["runs"]
    assert (len(message["samples"]), message["of"]) == (32, 30)
    text = diagnosis_page.render(report)
    assert "measured on 2,000 samples, of which the first 32 are shown" in text
    assert len(text) < 3_000_000
    assert "samples, of which" not in diagnosis_page.render(
        reports.report(reports.run("lm", few, "tokens"))
    )


def test_json_has_the_numbers(tmp_path, make_reports):
    report = make_reports["pair"]
    diagnosis_page.write(report, tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    message = json.loads((tmp_path / "report.json").read_text())
    assert message == to_dict(report)
    run = message["runs"][1]
    assert run["metrics"]["test/accuracy"] == pytest.approx(0.93222)
    assert run["controls"][-1]["refused"] == "places of a causal model ascend"
    assert run["measures"][1]["values"][0] == [None, 2.08, 2.6, 1.82]
    assert run["training"][0]["x_values"][-1] == 3500
    assert run["encodings"][1]["kind"] == "points"
    assert run["attended"]["samples"][0]["pictures"] == [[8, 8]]


PANELS = {panel.title: panel for panel in reports.encodings()}


@pytest.mark.parametrize("title", PANELS)
def test_every_kind_of_panel_is_drawn(title):
    read = Reader(draw(PANELS[title]))
    assert read.faults == []
    drawing = {e["name"] for e in read.elements} & {"path", "rect", "image"}
    assert drawing
    assert "nan" not in draw(PANELS[title]).lower()


def hollow(panel):
    """The same panel with no number in it."""

    def none(thing):
        if isinstance(thing, torch.Tensor):
            return torch.full_like(thing.double(), torch.nan)
        return (
            {key: none(value) for key, value in thing.items()}
            if isinstance(thing, dict)
            else torch.nan
        )

    kept = {key: none(getattr(panel, key)) for key in ("values", "lines") if hasattr(panel, key)}
    if hasattr(panel, "groups"):
        kept["groups"] = {key: tuple(map(none, pair)) for key, pair in panel.groups.items()}
    return replace(panel, **kept)


@pytest.mark.parametrize("title", PANELS)
def test_panels_without_a_number_are_drawn_empty(title):
    text = draw(hollow(PANELS[title]))
    assert Reader(text).faults == []
    assert "nan" not in text.lower()


@pytest.mark.parametrize("name", ["image", "text", "clip", "pair"])
def test_every_figure_has_its_sentence(pages, name):
    bodies = re.findall(r"<figure.*?</figure>", pages[name], re.DOTALL)
    assert len(bodies) > 12
    assert all(re.search(r"<figcaption>[^<]{5,}</figcaption></figure>$", body) for body in bodies)


def test_sections_come_in_their_order_and_empty_ones_not_at_all(pages, make_reports):
    def keys(text):
        return [e["attributes"]["id"] for e in Reader(text).find_named("section")]

    assert keys(pages["image"]) == [*diagnosis_page.SECTIONS]
    (run,) = make_reports["image"].runs
    bare = replace(run, attended=None, segmented=(), extrapolation=(), controls=(), measures=())
    text = diagnosis_page.render(reports.report(bare))
    assert keys(text) == ["classes", "profiles", "encoding", "training", "recipe"]
    assert 'href="#looks"' not in text


def test_a_large_model_makes_a_page_under_three_megabytes():
    report = reports.large()
    assert len(diagnosis_page.render(report).encode()) < 3_000_000
    (message,) = viewer_data.collect(report)["runs"]
    assert message["of"] == 197
    assert len(message["queries"]) == 13  # the class token, and three rows of four patches
    assert len(to_dict(report)["runs"][0]["attended"]["queries"]) == 13
    assert len(viewer_data.to_json(report)) < 3_000_000


def test_queries_that_are_left_lie_evenly():
    seen = reports.make_attended(
        (6, 6), ("class",), (reports.Sample(title="one"),), layers=1, heads=1
    )
    assert choose_queries(seen, 37 * 10) == [
        0,
        *(1 + 6 * row + column for row in (1, 3, 5) for column in (1, 3, 5)),
    ]
    assert choose_queries(seen, 1) == [0]
    assert choose_queries(seen, 10**6) == list(range(37))
    sparse = tuple(1 + 6 * row + column for row in (0, 2, 4) for column in (0, 2, 4))
    some = replace(seen, queries=sparse, weights=seen.weights[..., sparse, :])
    assert [some.queries[place] for place in choose_queries(some, 37 * 4)] == [
        sparse[place] for place in (0, 2, 6, 8)
    ]
    line = replace(seen, queries=tuple(range(1, 30)), weights=seen.weights[..., 1:30, :])
    assert choose_queries(line, 37 * 3) == [0, 14, 28]


def test_controls_that_change_nothing_are_said_to(make_reports):
    (run,) = make_reports["image"].runs
    same = tuple(
        replace(control, metrics={"test/loss": 0.5}, refused="") for control in run.controls
    )
    text = diagnosis_page.render(reports.report(replace(run, controls=same)))
    assert "0.5 for all positions." in text
    assert text.count("<small>\u00b10</small>") == 4


def test_one_metric_judges_changes_and_has_an_interval(make_reports):
    change = PairedChange(metric="test/loss", mean=1.6, low=1.5, high=1.7, samples=40)
    controls = (
        Control(name="unchanged", metrics={"test/loss": 3.4, "test/accuracy": 0.5}),
        Control(name="reversed", metrics={"test/loss": 5.0, "test/accuracy": 0.2}, change=change),
    )
    use = judge_position_use(controls, causal=True)
    run = replace(make_reports["image"].runs[0], controls=controls, position_use=use)
    text = diagnosis_page.render(reports.report(run))
    assert f"<figcaption>Use of positions: {use.text}.</figcaption>" in text
    assert "<small>+1.6000 (+1.5000 to +1.7000)</small>" in text
    assert "Changes without intervals: loss tells them from noise." in text
    (stored,) = viewer_data.to_dict(reports.report(run))["runs"]
    assert stored["position_use"]["verdict"] == "uses"
    assert stored["controls"][1]["change"]["high"] == 1.7


def test_a_change_without_an_interval_is_no_finding(make_reports):
    pair = tuple(
        Control(name=name, metrics={"test/loss": loss})
        for name, loss in (("unchanged", 2.9949), ("reversed", 2.9952))
    )
    run = replace(make_reports["image"].runs[0], controls=pair)
    text = diagnosis_page.render(reports.report(run))
    assert "<figcaption>Changes without intervals: they may be noise.</figcaption>" in text


def test_intervals_stand_in_the_cells_and_below_the_table(make_reports):
    run = make_reports["image"].runs[0]
    values = torch.tensor([[0.25, 0.5]])
    measure = Measure(
        name="by_position",
        title="Explained by position",
        unit="of variance",
        caption="",
        values=values,
        samples=9,
        low=values - 0.125,
        high=values + 0.125,
        layers=torch.tensor([[0.375, 0.25, 0.5]]),
    )
    figure = build_figure({"a": measure}, {"a": [3]})
    ((_, cells),) = figure.tables[0].rows
    assert [cell.value for cell in cells] == ["0.25 (0.125 to 0.375)", "0.5 (0.375 to 0.625)"]
    assert "3: 0.375 (0.25 to 0.5)" in figure.caption
    assert "9 samples" in figure.caption
    assert "rough" in figure.caption
    enough = build_figure({"a": replace(measure, samples=32)}, {"a": [3]})
    assert "rough" not in enough.caption
    assert run.measures


def test_names_go_on_in_the_next_line_between_their_words():
    assert break_words("test/bits_per_<b>") == "test/<wbr>bits_<wbr>per_<wbr>&lt;b&gt;"
    assert break_words("end/") == "end/"
    assert break_words(Markup("<a_b>")) == "<a_b>"


def opening(report):
    """The header of a page."""
    return diagnosis_page.render(report).split("<main>")[1].split("</header>")[0]


def test_what_is_long_stands_under_the_table_of_runs(make_reports):
    message = [f"{letter} long verdict, {'on and ' * 15}on" for letter in "ab"]
    runs = [
        replace(run, facts={"verdict": words})
        for run, words in zip(make_reports["pair"].runs, message, strict=True)
    ]
    table, under = opening(reports.report(*runs)).split("</table>")
    assert "verdict" not in table
    assert all(words in under for words in message)
    alike = [replace(run, facts={"verdict": message[0]}) for run in runs]
    assert opening(reports.report(*alike)).count(message[0]) == 1


def test_a_heading_says_what_the_title_says(make_reports):
    three = reports.report(*[reports.run(name, None, "tokens") for name in "abc"])
    for report in (make_reports["image"], make_reports["pair"], three):
        (heading,) = Reader(opening(report)).find_named("h1")
        assert heading["text"] == diagnosis_page.join_names(report)


def test_noise_is_not_coloured():
    def levels(*values):
        measure = Measure(
            name="one", title="One", unit="nats", caption="It is.", values=torch.tensor([values])
        )
        (table,) = head_tables.build_figure({"run": measure}, {"run": [0]}).tables
        ((_, cells),) = table.rows
        return [(cell.classes.split()[0].removeprefix("w"), cell.text) for cell in cells]

    (low, _), (high, _) = levels(3.19, 3.20)
    assert int(high) - int(low) <= 1
    assert levels(4e-7, 0.0) == [("0", "0"), ("0", "0")]
    assert [level for level, _ in levels(3.0, 4.0)] == ["0", "16"]


def test_lines_of_runs_share_a_drawing_where_their_units_agree():
    def charts(*panels):
        figures = build_figures({f"run {n}": (panel,) for n, panel in enumerate(panels)})
        return [panel.drawing for figure in figures for panel in figure.panels]

    first, other = (reports.training(shift)[0] for shift in (0.0, 0.1))
    (both,) = charts(first, other)
    assert [label for _, label in both.legend] == ["run 0", "run 1"]
    assert len(charts(first, replace(other, y="loss, bits"))) == 2


def test_a_long_line_keeps_its_peaks():
    steps = torch.arange(10_000.0)
    values = torch.sin(steps / 700)
    values[4321], values[777] = 50.0, torch.nan
    x, _ = thin_line(steps, values)
    assert len(x) < 600
    assert 4321.0 in x.tolist()
    assert (x[0], x[-1]) == (0, 9999)


def test_a_wide_map_is_drawn_in_part_and_says_so():
    wide = Heatmap(
        title="one", x="key", y="query", values=torch.rand(600, 600), unit="weight", signed=False
    )
    text = draw(wide)
    assert "weight; one of 3 rows and columns is drawn" in text
    assert len(text) < 80_000


def test_measures_in_other_units_are_not_on_one_scale():
    runs = [reports.run(unit, None, unit) for unit in ("patches", "tokens")]
    figures = (
        diagnosis_page.render(reports.report(*runs))
        .split('id="measures"')[1]
        .split("</section>")[0]
        .count("<figure")
    )
    assert figures == 5  # distances apart, the rest together


def test_even_attention_is_told_of_each_run_by_its_own():
    def caption(*measures):
        named = dict(zip("ab", measures, strict=True))
        return head_tables.build_figure(named, {"a": [0], "b": [0]}).caption

    one = replace(reports.measures(1, 2, "tokens")[0], even=2.4849)
    assert caption(one, one).count("Evenly spread attention: 2.48.") == 1
    assert "Evenly spread attention: 2.48 in a, 0.50 in b." in caption(one, replace(one, even=0.5))


def test_a_line_is_broken_where_there_is_no_number():
    line = torch.tensor([1.0, 2.0, torch.nan, 3.0])
    text = draw(
        Curves(title="one", x="step", y="loss", x_values=torch.arange(4), lines={"one": line})
    )
    (path,) = re.findall(r'd="([^"]*)" stroke="var\(--s0\)"', text)
    assert path.count("M") == 2


@pytest.mark.parametrize(
    ("number", "value", "short"),
    [
        (0.97222, "0.9722", "0.97"),
        (12345.6, "12\u202f346", "12k"),
        (-0.25, "\u22120.25", "\u22120.25"),
        (3.1e-5, "3.1\u00d710⁻⁵", "3e\u22125"),
        (0.0, "0", "0"),
        (float("nan"), "\u2013", "\u2013"),
        (float("-inf"), "\u2212\u221e", "\u2212\u221e"),
        (999.7, "999.7", "1.0k"),
    ],
    ids=str,
)
def test_numbers_are_short_but_say_something(number, value, short):
    assert (numbers.format_number(number), numbers.format_short(number)) == (value, short)


def test_a_page_that_cannot_be_written_spoils_none(make_reports, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("as it was")
    monkeypatch.setattr(diagnosis_page.viewer_data, "to_json", lambda report: "\ud800")  # no UTF-8
    with pytest.raises(UnicodeEncodeError):
        diagnosis_page.write(make_reports["image"], page)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [
        ("page.html", "as it was")
    ]
