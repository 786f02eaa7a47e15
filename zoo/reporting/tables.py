"""Tables as padded text for terminals and Markdown, as HTML and DataFrames for notebooks."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from zoo.errors import ZooError
from zoo.utils import escape_text


def format_table(
    rows: Sequence[Sequence[str]], *, left: Collection[int] = (), gap: str = "  "
) -> str:
    """Pad the cells of a table so that its columns are aligned.

    Args:
        rows: Texts of the cells, row by row; all rows have the same number.
        left: Columns that are aligned to the left; the others are aligned to the right.
        gap: What stands between columns.

    Returns:
        The lines, without spaces at their ends.
    """
    if not rows:
        return ""
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
    """Format a Markdown table whose columns are aligned, so that a terminal shows it as well.

    Args:
        head: Names of the columns.
        rows: Texts of the cells.
        text: Names of columns that are aligned to the left; numbers are aligned to the right.
    """
    escaped = [[escape_text(cell).replace("|", r"\|") for cell in row] for row in (head, *rows)]
    left = {number for number, name in enumerate(head) if name in text}
    widths = [max(2, *map(len, column)) for column in zip(*escaped, strict=True)]
    rule = ["-" * (width - 1) + ("-" if n in left else ":") for n, width in enumerate(widths)]
    table = format_table([escaped[0], rule, *escaped[1:]], left=left, gap=" | ")
    last = len(table.splitlines()[1])
    return "\n".join(f"| {line.ljust(last)} |" for line in table.splitlines())


def disarm_tags(text: str) -> str:
    """Return a text of a Markdown file in which nothing is read as a tag: &lt;img for <img."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def disarm_markdown(text: str) -> str:
    """Return a name for a Markdown file, of which nothing is read as tag, link or code."""
    return disarm_tags(escape_text(text)).replace("`", "&#96;").replace("[", "&#91;")


def format_html_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table that notebooks show."""

    def join(tag: str, cells: Sequence[str]) -> str:
        inside = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{inside}</tr>"

    lines = [join("th", titles)] if titles else []
    return "<table>" + "".join([*lines, *(join("td", row) for row in rows)]) + "</table>"


def build_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a DataFrame of pandas. Raises ZooError if it is not installed."""
    try:
        import pandas
    except ImportError:
        raise ZooError("a DataFrame needs pandas: pip install pandas") from None
    return pandas.DataFrame([dict(row) for row in rows])
