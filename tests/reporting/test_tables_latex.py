"""Tables for papers: LaTeX and CSV have the same numbers, and no name breaks either."""

import csv
import io

import comparisons
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latex import read_table, typeset

from zoo.comparison.result_table import build_result_table
from zoo.reporting.tables import (
    ResultColumn,
    ResultRow,
    ResultTable,
    ResultValue,
    escape_latex,
    format_csv,
    format_latex,
    rank_values,
)

MADE = {
    name: getattr(comparisons, name)
    for name in ("images", "texts", "grid", "hostile", "empty", "alone", "lengths")
}


def make_table(*rows, better="high", decimals=2, **options):
    """A table with a column for each value of a row."""
    built = tuple(
        ResultRow(
            name=str(number),
            values=tuple(one if isinstance(one, ResultValue) else ResultValue(one) for one in row),
        )
        for number, row in enumerate(rows)
    )
    columns = tuple(
        ResultColumn(title=f"c{number}", better=better, decimals=decimals)
        for number in range(len(rows[0]))
    )
    return ResultTable(
        **{"head": "row", "columns": columns, "rows": built, "caption": "", "label": "x"} | options
    )


def list_places(table):
    return [row[0] for row in rank_values(table)]


def read_csv(text):
    return [*csv.DictReader(io.StringIO(text))]


@pytest.mark.parametrize("name", MADE)
def test_latex_shows_the_numbers_of_the_csv_file(name):
    table = build_result_table(MADE[name]())
    rows = read_csv(format_csv(table))
    for intervals in (False, True):
        _, heads, shown = read_table(format_latex(table, intervals=intervals))
        assert len(heads) == 1 + len(table.columns)
        assert len(shown) == len(rows) == len(table.rows)
        for (title, *cells), row in zip(shown, rows, strict=True):
            assert title == escape_latex(row[table.head])
            for (text, _, mark), column in zip(cells, table.columns, strict=True):
                exact = row[column.name]
                expected = f"{float(exact):.{column.decimals}f}" if exact else "--"
                assert text == expected
                assert bool(mark) == bool(row.get(f"{column.name} mark"))


def test_the_first_variant_is_bold_and_the_worse_ones_have_a_mark():
    found = comparisons.images()
    caption, _, rows = read_table(format_latex(build_result_table(found)))
    assert rows[0][1][1:] == ("textbf", "")
    worse = [cell for row in rows for cell in row[1:] if cell[2] == r"\dagger"]
    assert worse
    assert all(command != "textbf" for _, command, _ in worse)
    assert r"$^{\dagger}$ worse than the best; simultaneous 95 \% intervals" in caption
    assert "means over seeds 0, 1 and 2" in caption


@pytest.mark.parametrize(
    ("better", "expected"), [("high", ["", "best", "second"]), ("low", ["best", "", "second"])]
)
def test_the_direction_of_a_metric_says_which_value_is_best(better, expected):
    assert list_places(make_table([0.1], [0.9], [0.5], better=better)) == expected
    assert list_places(make_table([0.1], [0.9], better=None)) == ["", ""]


def test_values_that_look_equal_share_their_place():
    assert list_places(make_table([0.911], [0.912], [0.8], [0.801])) == [
        "best",
        "best",
        "second",
        "second",
    ]
    assert list_places(make_table([0.5], [None], [float("nan")])) == ["", "", ""]


def test_a_value_known_to_be_worse_is_not_the_best():
    worse = ResultValue(0.912, mark="worse", may_be_best=False)
    assert list_places(make_table([0.911], [worse], [0.8])) == ["best", "second", ""]
    stopped = ResultValue(0.99, mark="worse", may_be_best=False, is_ranked=False)
    assert list_places(make_table([0.911], [stopped], [0.8])) == ["best", "", "second"]


def test_values_are_compared_within_their_part():
    rows = [("a", "1", 0.1), ("b", "1", 0.3), ("c", "2", 0.2), ("d", "3", 0.9)]
    table = make_table([0.0])
    built = tuple(ResultRow(name=n, block=b, values=(ResultValue(x),)) for n, b, x in rows)
    table = make_table([0.0], rows=built)
    assert list_places(table) == ["second", "best", "", ""]
    text = format_latex(table)
    assert text.count(r"\midrule") == 3
    assert "best of each part" in text


def test_every_table_is_typeset_where_there_is_latex(tmp_path):
    """In one document, since LaTeX takes a second to start."""
    letters = (
        "".join(map(chr, range(32, 0x180)))
        + "\u2212\u00d7\u2013\u2026\u2192\u2264\u2265\u202f字\u202e"
    )
    odd = make_table([-1.5, float("inf")], [None, 2.0], head=letters, caption=letters)
    tables = [odd, *(build_result_table(make()) for make in MADE.values())]
    text = "\\clearpage\n".join(format_latex(one, intervals=True) for one in tables)
    pdf = typeset(text, tmp_path)
    assert pdf is None or pdf.stat().st_size > 10_000


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_no_text_sets_a_command_off(text):
    table = make_table([1.0], [2.0], head=text, caption=text, label=text, command=text)
    read_table(format_latex(table))
    assert len(read_csv(format_csv(table))) == 2
