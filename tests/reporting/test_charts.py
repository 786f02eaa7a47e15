"""Charts, tables and scales, without a page around them."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import reports
import torch
from PIL import Image

import zoo
from zoo.reporting.charts import draw_panel, render_formats
from zoo.reporting.panel import (
    Heatmap,
    HeatmapGrid,
    LineChart,
    Points,
    Scale,
    fit_height,
    label_heads,
    name_head,
)
from zoo.reporting.render import draw_for_page
from zoo.reporting.style import DARK, LEVELS, LIGHT, Style, channels, measure_contrast
from zoo.reporting.tables import format_markdown, format_table

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("panel", reports.encodings(), ids=lambda panel: panel.title)
def test_every_kind_of_panel_is_a_png_of_few_colours_and_a_drawing(panel):
    found = render_formats(draw_panel(panel, Style()))
    with Image.open(io.BytesIO(found[".png"])) as image:
        assert image.mode == "P"
        assert min(image.size) > 100
    drawing = ElementTree.fromstring(found[".svg"])
    # letters are letters, in a font that readers have, and nothing is a picture of pixels
    fonts = {one.get("font-family") for one in drawing.iter(f"{SVG}text")}
    assert fonts == {"Liberation Sans, Arial, Helvetica, sans-serif"}
    assert not [*drawing.iter(f"{SVG}image")] or isinstance(panel, Heatmap | HeatmapGrid)
    assert found[".pdf"].startswith(b"%PDF-1.7")


def test_a_chart_of_a_page_has_the_colours_of_its_theme():
    drawing = draw_for_page(reports.encodings()[0])
    assert "#" not in drawing.svg.replace("url(#", "")
    assert [colour for colour, _ in drawing.legend] == [f"var(--s{n})" for n in range(4)]


def test_a_chart_without_lines_is_drawn():
    chart = LineChart(title="none", x="step", y="loss", lines=())
    assert "<svg" in draw_for_page(chart).svg


def test_series_stand_out_from_the_paper():
    for palette in (LIGHT, DARK):
        paper = brightness(palette.paper)
        assert all(abs(brightness(colour) - paper) > 60 for colour in palette.series)


def brightness(colour):
    red, green, blue = channels(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(1, 1000, [1, 10, 100, 1000]), (0.02, 0.9, [0.02, 0.05, 0.1, 0.2, 0.5]), (3, 9, [5])],
    ids=str,
)
def test_ticks_of_logarithmic_axes_are_round(low, high, ticks):
    assert list(Scale(low, high, log=True).powers(5)) == pytest.approx(ticks)


def test_small_changes_do_not_look_steep():
    scale = fit_height([torch.tensor([3.19, 3.20])])
    assert scale.high - scale.low > 0.3


def test_columns_of_tables_are_aligned():
    rows = [("name", "loss"), ("rope", "1.5"), ("t5", "12.25")]
    assert format_table(rows, left={0}) == "name   loss\nrope    1.5\nt5    12.25"
    markdown = format_markdown(["model", "ms"], [["a|b", "1"]])
    assert markdown == "| model | ms |\n| ----- | -: |\n| a\\|b  |  1 |"


def test_heads_are_counted_from_1_wherever_they_are_named():
    assert [*label_heads(torch.zeros(2, 3))] == [name_head(0), name_head(1)] == ["head 1", "head 2"]
    package, named = Path(zoo.__file__).parent, []
    for file in sorted(package.rglob("*.py")):
        named += [file.name for _ in re.findall(r"[\"' ]head \{", file.read_text())]
    assert not named, "call name_head"
    scripts = [*package.rglob("*.js"), *(package.parent / "docs" / "play").glob("*.js")]
    for script in scripts:
        for number in re.findall(r"[`' ]head \$\{([^}]*)\}", script.read_text()):
            assert number.endswith("+ 1"), f"{script.name}: {number}"


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ramp", ["weights", "signed"])
def test_numbers_are_readable_on_every_colour_of_a_ramp(palette, ramp):
    for level in range(LEVELS):
        ink = palette.level_ink(ramp, level)
        assert measure_contrast(ink, palette.level(ramp, level)) >= 4.5


def test_contrast_is_that_of_the_guidelines():
    assert measure_contrast("#000000", "#ffffff") == pytest.approx(21)
    # the lightest grey of WCAG's examples that is allowed on white
    assert measure_contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("is_page", [True, False])
@pytest.mark.parametrize("is_signed", [True, False])
def test_a_plot_of_vectors_has_equal_units_and_no_empty_half(is_page, is_signed):
    across = torch.tensor([0.0, 0.5, 2.0])
    down = torch.tensor([-1.0 if is_signed else 1.0, 0.5, 0.0])
    panel = Points(title="", x="", y="", caption="", groups={"all": (across, down)}, square=True)
    chart = draw_panel(panel, Style(width=420, height=220, is_page=is_page)).to_dict()
    axes = chart["layer"][0]["encoding"]
    x_low, x_high = axes["x"]["scale"]["domain"]
    y_low, y_high = axes["y"]["scale"]["domain"]
    assert chart["width"] / (x_high - x_low) == pytest.approx(chart["height"] / (y_high - y_low))
    assert -0.2 < x_low <= 0
    assert (y_low == -y_high) is is_signed
