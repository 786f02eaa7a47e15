"""Text that is folded until somebody wants it."""

from __future__ import annotations

from collections.abc import Collection

from zoo.diagnostics.drawing.markup import Markup, tag, together


def folded(name: str, lines: list[str], shared: Collection[str]) -> Markup:
    """Lines of a file under its name; those that are not among the `shared` are marked and counted."""
    text = together(line + "\n" if line in shared else tag("mark", line + "\n") for line in lines)
    own = sum(line not in shared for line in lines)
    note = f", those that not all runs have are marked: {own}" if own else ""
    count = "one line" if len(lines) == 1 else f"{len(lines)} lines"
    return tag("details", tag("summary", f"{name}: {count}{note}"), tag("pre", tag("code", text)))
