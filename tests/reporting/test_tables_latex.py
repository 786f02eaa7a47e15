"""Tables for papers: LaTeX and CSV have the same numbers, and no name breaks either."""

import csv
import io

import comparisons
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latex import read_table, typeset

from zoo.comparison.ranking import rank_variants
from zoo.comparison.result_table import build_result_table
from zoo.reporting.tables import (
    ResultColumn,
    ResultRow,
    ResultTable,
    ResultValue,
    escape_latex,
    find_established,
    format_csv,
    format_latex,
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


def list_bold(table):
    return [row[0] for row in find_established(table)]


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


def test_the_worse_variants_have_a_mark():
    found = comparisons.images(seeds=range(5))
    caption, _, rows = read_table(format_latex(build_result_table(found)))
    worse = [cell for row in rows for cell in row[1:] if cell[2] == r"\dagger"]
    assert worse
    assert all(command != "textbf" for _, command, _ in worse)
    assert r"$^{\dagger}$ worse than the best by simultaneous intervals" in caption
    assert r"with 98.33 \% each, which corrects for 3 conditions" in caption
    assert "means over seeds 0, 1, 2, 3 and 4" in caption


BEST, WORSE = ResultValue(0.9, standing="best"), ResultValue(0.8, standing="worse")


@pytest.mark.parametrize(
    ("values", "bold"),
    [
        ([BEST, WORSE, WORSE], [True, False, False]),
        ([BEST, BEST, WORSE], [True, True, False]),
        # the first is ahead, but another may be best
        ([BEST, WORSE, 0.85], [False, False, False]),
        ([BEST, 0.1], [False, False]),
        ([0.9, 0.1], [False, False]),
        ([BEST], [False]),
        ([BEST, None, float("nan")], [False, False, False]),
        ([BEST, WORSE, None], [True, False, False]),
    ],
    ids=str,
)
def test_a_value_is_bold_only_where_all_others_are_known_to_be_worse(values, bold):
    table = make_table(*([value] for value in values))
    assert list_bold(table) == bold
    text = format_latex(table)
    assert ("\\textbf{0.90}" in text) == any(bold)
    assert ("best, where all others are worse" in text) == any(bold)
    assert ("No value is bold" in text) == (not any(bold) and len(values) > 1)


def test_a_table_bolds_nothing_where_the_page_says_that_no_difference_is_established():
    """Of all comparisons: bold is what the page calls first, with all others worse."""
    for make in MADE.values():
        found = make()
        table = build_result_table(found)
        bold = find_established(table)
        for number, condition in enumerate(found.conditions):
            standings = [one for one in rank_variants(found, condition) if one.mean]
            others = {one.verdict for one in standings} - {"best"}
            names = {row.name for row, own in zip(table.rows, bold, strict=True) if own[number]}
            best = {one.variant.name for one in standings if one.verdict == "best"}
            assert names == (best if others == {"worse"} else set())


def test_values_are_compared_within_their_part():
    rows = [("a", "1", WORSE), ("b", "1", BEST), ("c", "2", BEST), ("d", "3", WORSE)]
    built = tuple(ResultRow(name=n, block=b, values=(value,)) for n, b, value in rows)
    table = make_table([0.0], rows=built)
    assert list_bold(table) == [False, True, False, False]
    assert format_latex(table).count(r"\midrule") == 3


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
