"""A comparison as one HTML file that needs nothing else."""

from __future__ import annotations

from zoo.compare.page import opening
from zoo.compare.page.sections import SECTIONS
from zoo.compare.results import Comparison
from zoo.compare.text import question
from zoo.diagnostics.document.document import document, text
from zoo.diagnostics.document.section import drawn


def html(comparison: Comparison) -> str:
    """The page: it opens from a file, no request goes out from it, and nothing that is shown is run."""
    contents, body = drawn(comparison, opening.opening(comparison), SECTIONS)
    style, script = (text("zoo.compare.page", name) for name in ("comparing.css", "comparing.js"))
    return document(
        kind="comparison",
        title=question(comparison),
        contents=contents,
        body=body,
        style=style,
        scripts=(script,),
        data={},
    )
