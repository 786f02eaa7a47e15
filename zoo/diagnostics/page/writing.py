"""A report as one HTML file that needs nothing else, and its numbers as JSON beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from importlib.resources import files
from pathlib import Path
from string import Template

from zoo.diagnostics.drawing import colours
from zoo.diagnostics.drawing.markup import escape
from zoo.diagnostics.page import looks, opening, plain, sections
from zoo.diagnostics.report.contents import Report

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'"
)
SCRIPTS = ("page", "figures", "viewer", "start")


def write(report: Report, path: Path) -> None:
    """The page to `path`, and the same numbers to the file of that name that ends in .json."""
    texts = {path: html(report), path.with_suffix(".json"): plain.text(report)}
    fresh = {one: one.with_name(f".{one.name}-{os.getpid()}") for one in texts}
    try:
        for one, text in texts.items():
            fresh[one].write_text(text, encoding="utf-8", newline="\n")
        for one in texts:
            fresh[one].replace(one)
    finally:  # what stood there stays where a disk is full
        for one in fresh.values():
            one.unlink(missing_ok=True)


def html(report: Report) -> str:
    """The page: no request goes out from it, and nothing that is shown is run."""
    contents, body = sections.drawn(report)
    script = _script()
    return Template(_file("page.html")).substitute(
        policy=POLICY.format(_hash(script)), title=escape(opening.title(report)), style=_file("page.css"),
        ramps=colours.style(), filters=colours.filters(), contents=contents, body=body,
        data=data(looks.data(report)), script=script,
    )  # fmt: skip


def data(thing: object) -> str:
    """JSON that may stand inside a script element: nothing in it ends the element or begins a comment."""
    return json.dumps(thing, separators=(",", ":"), allow_nan=False).translate(
        {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}
    )


def _script() -> str:
    """What the parts name stays within the braces."""
    parts = "\n".join(_file(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n{{\n{parts}}}\n'


def _file(name: str) -> str:
    return files("zoo.diagnostics.page").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """By which the policy knows the one script that may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
