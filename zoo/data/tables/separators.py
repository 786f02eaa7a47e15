"""Separators of the columns of a table that is text."""

from __future__ import annotations

from collections.abc import Sequence

SEPARATORS = {";": "semicolons (;)", "\t": "tabs", "|": "bars (|)", ",": "commas"}
"""Separators of columns, in the order in which they are looked for."""


def explain_separator(columns: Sequence[str]) -> str:
    """Return what seems to separate the names of a header that is read as one column, if any."""
    if len(columns) != 1:
        return ""
    separators = [name for separator, name in SEPARATORS.items() if separator in columns[0]]
    if not separators:
        return ""
    hint = "zoo reads commas in .csv and tabs in .tsv files; write it again with those"
    return f"; its columns seem to be separated by {separators[0]}, and {hint}"
