"""Tables as text for terminals and Markdown, and as HTML and DataFrames for notebooks."""

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
    last = len(table.splitlines()[1])
    return "\n".join(f"| {line.ljust(last)} |" for line in table.splitlines())


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
        raise ZooError("a DataFrame needs pandas: pip install pandas") from None
    return pandas.DataFrame([dict(row) for row in rows])
