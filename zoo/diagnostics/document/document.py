"""A page as one HTML file: no request goes out from it, and nothing that is shown is run."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from string import Template

from zoo.diagnostics.drawing import colours
from zoo.diagnostics.drawing.markup import Markup, escape

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'"
)


def document(
    *,
    kind: str,
    title: str,
    contents: Markup,
    body: Markup,
    style: str,
    scripts: tuple[str, ...],
    data: object,
) -> str:
    """The page of a kind (report, comparison): `style` and `scripts` are its own, beside those of every page.

    A script reads `data` from the element of that name, and hangs what it begins with on `ready`.
    """
    script = _script(scripts)
    return Template(text("zoo.diagnostics.document", "document.html")).substitute(
        policy=POLICY.format(_hash(script)),
        title=escape(title),
        kind=kind,
        named=kind.capitalize(),
        style=text("zoo.diagnostics.document", "document.css") + style,
        ramps=colours.style(),
        filters=colours.filters(),
        contents=contents,
        body=body,
        data=held(data),
        script=script,
    )


def held(thing: object) -> str:
    """JSON that may stand inside a script element: nothing in it ends the element or begins a comment."""
    return json.dumps(thing, separators=(",", ":"), allow_nan=False).translate(
        {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}
    )


def text(package: str, name: str) -> str:
    """A file that lies in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _script(own: tuple[str, ...]) -> str:
    """What the parts name stays within the braces."""
    first, last = (
        [text("zoo.diagnostics.document", f"{name}.js") for name in names]
        for names in (("document", "figures"), ("start",))
    )
    return '"use strict";\n{\n' + "\n".join([*first, *own, *last]) + "}\n"


def _hash(script: str) -> str:
    """By which the policy knows the one script that may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
