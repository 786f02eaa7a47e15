"""Tables as text for terminals and Markdown, as LaTeX and CSV for papers, and for notebooks.

A value is bold only where it is established that all others of its column are worse.
"""

from __future__ import annotations

import csv
import html
import io
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from typing import Any, Literal

from zoo.errors import ZooError
from zoo.packages import format_pip
from zoo.utils import escape_text

LATEX, CSV = "table.tex", "table.csv"
BOLD = "best, where all others are worse"
NOT_BOLD = "No value is bold: in no column is one established as better than all others"
SYMBOLS = (r"\dagger", r"\ddagger", r"\ast")
ARROWS: Mapping[str | None, str] = {"high": r" $\uparrow$", "low": r" $\downarrow$", None: ""}
SPECIAL = {
    **{letter: f"\\{letter}" for letter in "#$%&_{}"},
    # square brackets and stars after the end of a row would be its options
    **{letter: f"{{{letter}}}" for letter in "[]*"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\u00df": r"\ss{}",
    "\u00e6": r"\ae{}",
    "\u00f8": r"\o{}",
    "\u2212": "$-$",
    "\u00d7": r"$\times$",
    "\u2013": "--",
    "\u2026": r"\dots{}",
    "\u2192": r"$\to$",
    "\u2264": r"$\leq$",
    "\u2265": r"$\geq$",
    "\u00a0": "~",
    "\u202f": r"\,",
}
ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u ",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r ",
    "\u030b": "H ",
    "\u030c": "v ",
    "\u0327": "c ",
}
"""{combining character: the command of its accent}"""


def format_table(
    rows: Sequence[Sequence[str]], *, left: Collection[int] = (), gap: str = "  "
) -> str:
    """Pad the cells of a table so that its columns are aligned.

    Args:
        rows: Texts of the cells, row by row; all rows have the same number of cells.
        left: Numbers of columns that are aligned to the left; others are aligned to the right.
        gap: Text between columns.

    Returns:
        The lines, without trailing spaces.
    """
    if not rows:
        return ""
    # Escape control characters, which would move the cursor of a terminal.
    rows = [[escape_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(gap.join(cells).rstrip())
    return "\n".join(lines)


def format_markdown(
    head: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[str] = ("model", "measure")
) -> str:
    """Format a Markdown table with aligned columns, which is also readable in a terminal.

    Args:
        head: Names of the columns.
        rows: Texts of the cells.
        text: Names of columns that are aligned to the left; others are aligned to the right.
    """
    # A | in a cell would start another one.
    escaped = [[escape_text(cell).replace("|", r"\|") for cell in row] for row in (head, *rows)]
    left = {number for number, name in enumerate(head) if name in text}
    widths = [max(2, *map(len, column)) for column in zip(*escaped, strict=True)]
    rule = ["-" * (width - 1) + ("-" if n in left else ":") for n, width in enumerate(widths)]
    table = format_table([escaped[0], rule, *escaped[1:]], left=left, gap=" | ")
    width = len(table.splitlines()[1])
    return "\n".join(f"| {line.ljust(width)} |" for line in table.splitlines())


def disarm_tags(text: str) -> str:
    """Escape text for a Markdown file so that nothing is read as an HTML tag."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def disarm_markdown(text: str) -> str:
    """Escape a name for a Markdown file so that nothing is read as a tag, link or code."""
    return disarm_tags(escape_text(text)).replace("`", "&#96;").replace("[", "&#91;")


def format_html_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format an HTML table for notebooks."""

    def join(tag: str, cells: Sequence[str]) -> str:
        inside = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{inside}</tr>"

    lines = [join("th", titles)] if titles else []
    return "<table>" + "".join([*lines, *(join("td", row) for row in rows)]) + "</table>"


def build_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a DataFrame of pandas.

    Raises:
        ZooError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise ZooError(f"a DataFrame needs pandas: {format_pip('install', 'pandas')}") from None
    return pandas.DataFrame([dict(row) for row in rows])


# Tables of results for papers


@dataclass(frozen=True)
class ResultValue:
    """A cell of a table: a mean, perhaps with an interval and a mark."""

    mean: float | None
    """None where nothing was measured."""
    low: float | None = None
    high: float | None = None
    mark: str = ""
    """A key of the marks of the table; empty for none."""
    standing: Literal["best", "worse", ""] = ""
    """best: the first of its column, or equal to it; worse: known to be worse than the first; empty
    where neither is known, however different the numbers look."""
    note: str = ""
    """Text in place of a mean that is missing, such as n/a."""


@dataclass(frozen=True, kw_only=True)
class ResultColumn:
    """A column of numbers.

    Attributes:
        title: Its heading.
        group: A heading that neighbouring columns share; empty for none.
        decimals: The decimals that LaTeX shows; CSV has all digits.
        better: Whether high or low values are better; None if neither is.
    """

    title: str
    group: str = ""
    decimals: int = 3
    better: Literal["high", "low"] | None = None

    @property
    def name(self) -> str:
        """Its heading in a CSV file, which has one line of headings."""
        return f"{self.group}, {self.title}" if self.group else self.title


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """A row: its name, and a value for each column.

    Attributes:
        name: Its name.
        values: A value for each column.
        block: Rows of the same block are compared with each other; a rule parts blocks.
    """

    name: str
    values: tuple[ResultValue, ...]
    block: str = ""


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of results.

    Attributes:
        head: Heading of the names of rows.
        columns: The columns.
        rows: The rows, in the order in which they are shown.
        caption: Sentences on what the numbers are.
        label: What follows `tab:` in the label of the table.
        is_wide: Whether it spans both columns of a page, in small letters.
        marks: {mark: its meaning}.
        interval: What the intervals of values are; empty if they have none.
        command: The command that repeats it.
    """

    head: str
    columns: tuple[ResultColumn, ...]
    rows: tuple[ResultRow, ...]
    caption: str
    label: str
    is_wide: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    interval: str = ""
    command: str = ""


def format_tables(table: ResultTable, *, intervals: bool = False) -> dict[str, str]:
    """Format a table as the files that papers need.

    Args:
        table: The table.
        intervals: Whether LaTeX shows the intervals too; CSV always has them.

    Returns:
        {name of a file: its content}
    """
    return {LATEX: format_latex(table, intervals=intervals), CSV: format_csv(table)}


def find_established(table: ResultTable) -> list[list[bool]]:
    """Return which values are established as the best of their column and block, row by row.

    All others that have a number are known to be worse, and there is at least one.
    """
    established = [[False] * len(table.columns) for _ in table.rows]
    for number in range(len(table.columns)):
        blocks: dict[str, list[tuple[int, ResultValue]]] = {}
        for line, row in enumerate(table.rows):
            value = row.values[number]
            if value.mean is not None and isfinite(value.mean):
                blocks.setdefault(row.block, []).append((line, value))
        for values in blocks.values():
            if {value.standing for _, value in values} == {"best", "worse"}:
                for line, value in values:
                    established[line][number] = value.standing == "best"
    return established


def format_latex(table: ResultTable, *, intervals: bool = False) -> str:
    r"""Format a table as LaTeX, to be read by \input; it needs the package booktabs."""
    symbols = {mark: f"$^{{{symbol}}}$" for mark, symbol in zip(table.marks, SYMBOLS, strict=False)}
    # numbers of the same digits are aligned to the right, since marks take no room
    alignment = ("l" if intervals else "r") * len(table.columns)
    environment = "table*" if table.is_wide else "table"
    lines = [r"% needs \usepackage{booktabs}"]
    lines += [f"% {escape_text(table.command)}"] if table.command else []
    lines += [
        rf"\begin{{{environment}}}",
        r"  \centering",
        rf"  \caption{{{_format_caption(table, symbols, intervals=intervals)}}}",
        rf"  \label{{tab:{_format_label(table.label)}}}",
        r"  \smallskip",
        *([r"  \footnotesize\setlength{\tabcolsep}{3pt}"] if table.is_wide else []),
        rf"  \begin{{tabular}}{{l{alignment}}}",
        r"    \toprule",
        *(f"    {line}" for line in _format_heads(table)),
        r"    \midrule",
    ]
    block = table.rows[0].block if table.rows else ""
    for row, bold in zip(table.rows, find_established(table), strict=True):
        if row.block != block:
            lines.append(r"    \midrule")
        block = row.block
        cells = [
            _format_value(value, column, symbols, is_bold=is_bold, intervals=intervals)
            for value, column, is_bold in zip(row.values, table.columns, bold, strict=True)
        ]
        lines.append(f"    {_join_cells([escape_latex(row.name), *cells])}")
    return "\n".join(
        [*lines, r"    \bottomrule", r"  \end{tabular}", rf"\end{{{environment}}}", ""]
    )


def format_csv(table: ResultTable) -> str:
    """Format a table as CSV with all digits, and with the intervals and marks that it has."""
    heads, rows = [table.head], [[row.name] for row in table.rows]
    for number, column in enumerate(table.columns):
        values = [row.values[number] for row in table.rows]
        fields = {"": [_format_exact(value.mean) or value.note for value in values]}
        if any(value.low is not None for value in values):
            fields[" low"] = [_format_exact(value.low) for value in values]
            fields[" high"] = [_format_exact(value.high) for value in values]
        if any(value.mark for value in values):
            fields[" mark"] = [value.mark for value in values]
        for suffix, texts in fields.items():
            heads.append(f"{column.name}{suffix}")
            for row, entry in zip(rows, texts, strict=True):
                row.append(entry)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([escape_text(cell) for cell in row] for row in (heads, *rows))
    return file.getvalue()


def escape_latex(text: str) -> str:
    """Escape text for LaTeX, so that it is shown unchanged and sets no command off."""
    return "".join(_escape_letter(letter) for letter in escape_text(text)).replace("--", "-{}-")


def _escape_letter(letter: str) -> str:
    if letter in SPECIAL:
        return SPECIAL[letter]
    if letter.isascii():
        return letter
    base, *accents = [*unicodedata.normalize("NFD", letter)]
    if base.isascii() and len(accents) == 1 and accents[0] in ACCENTS:
        return f"\\{ACCENTS[accents[0]]}{{{base}}}"
    # an installation of LaTeX may have no glyph for it, and would stop there
    return f"U+{ord(letter):04X}"


def _format_label(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-")


def _format_caption(table: ResultTable, symbols: Mapping[str, str], *, intervals: bool) -> str:
    used = {value.mark for row in table.rows for value in row.values}
    parts = [escape_latex(table.caption)]
    if any(map(any, find_established(table))):
        parts.append(rf"\textbf{{Bold}}: {BOLD}.")
    elif any(column.better for column in table.columns) and len(table.rows) > 1:
        parts.append(f"{NOT_BOLD}.")
    parts += [
        f"{symbols[mark]} {escape_latex(meaning)}."
        for mark, meaning in table.marks.items()
        if mark in used
    ]
    if intervals and table.interval:
        parts.append(f"In brackets: {escape_latex(table.interval)}.")
    return " ".join(part for part in parts if part)


def _format_heads(table: ResultTable) -> Iterator[str]:
    """Yield the lines of headings: one for groups of columns, if there are any, and one for all."""
    groups = [
        (name, [*grouped]) for name, grouped in groupby(table.columns, lambda column: column.group)
    ]
    arrows: list[str] = []
    # LaTeX counts columns from 1, and the first one names the rows
    cells, rules, start = [""], [], 2
    for name, columns in groups:
        directions = {column.better for column in columns}
        is_shared = bool(name) and len(directions) == 1
        end = start + len(columns) - 1
        heading = escape_latex(name) + (ARROWS[columns[0].better] if is_shared else "")
        cells.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{heading}}}")
        rules += [rf"\cmidrule(lr){{{start}-{end}}}"] if name else []
        arrows += ["" if is_shared else ARROWS[column.better] for column in columns]
        start = end + 1
    if rules:
        yield _join_cells(cells)
        yield " ".join(rules)
    titles = (
        f"{escape_latex(column.title)}{arrow}"
        for column, arrow in zip(table.columns, arrows, strict=True)
    )
    yield _join_cells([escape_latex(table.head), *titles])


def _join_cells(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _format_value(
    value: ResultValue,
    column: ResultColumn,
    symbols: Mapping[str, str],
    *,
    is_bold: bool,
    intervals: bool,
) -> str:
    if value.mean is None:
        return escape_latex(value.note) or "--"
    formatted = _format_number(value.mean, column.decimals)
    if is_bold:
        formatted = rf"\textbf{{{formatted}}}"
    if value.mark in symbols:
        symbol = symbols[value.mark]
        # without width, so that numbers stay aligned
        formatted += symbol if intervals else rf"\rlap{{{symbol}}}"
    if intervals and value.low is not None and value.high is not None:
        low, high = (_format_number(end, column.decimals) for end in (value.low, value.high))
        formatted += rf" {{\footnotesize ({low} to {high})}}"
    return formatted


def _format_number(number: float, decimals: int) -> str:
    if not isfinite(number):
        return r"$\infty$" if number > 0 else r"$-\infty$" if number < 0 else "--"
    return f"{number:.{decimals}f}".replace("-", "$-$")


def _format_exact(number: float | None) -> str:
    return "" if number is None else repr(float(number))
