"""A report as one HTML file that needs nothing else, and its numbers as JSON beside it."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.diagnostics.document.document import document, text
from zoo.diagnostics.page import looks, opening, plain, sections
from zoo.diagnostics.report import Report

SCRIPTS = ("measures.js", "viewer.js", "diagnosis.js")


def write(report: Report, path: Path) -> None:
    """The page to `path`, and the same numbers to the file of that name that ends in .json."""
    texts = {path: html(report), path.with_suffix(".json"): plain.text(report)}
    fresh = {one: one.with_name(f".{one.name}-{os.getpid()}") for one in texts}
    try:
        for one, words in texts.items():
            fresh[one].write_text(words, encoding="utf-8", newline="\n")
        for one in texts:
            fresh[one].replace(one)
    finally:  # what stood there stays where a disk is full
        for one in fresh.values():
            one.unlink(missing_ok=True)


def html(report: Report) -> str:
    """The page: no request goes out from it, and nothing that is shown is run."""
    contents, body = sections.drawn(report)
    return document(
        kind="report",
        title=opening.title(report),
        contents=contents,
        body=body,
        style=_file("page.css"),
        scripts=tuple(map(_file, SCRIPTS)),
        data=looks.data(report),
    )


def _file(name: str) -> str:
    return text("zoo.diagnostics.page", name)
