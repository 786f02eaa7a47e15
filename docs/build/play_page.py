"""docs/play.html: one page on which to play with all encodings, from the scripts in docs/play.

`python docs/build/pages.py` writes it. The scripts compute everything in the page, and
tests/workflows/test_play_page.py compares them with zoo.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zoo
from zoo.cli.describe import SITE
from zoo.encodings.common.chains import list_changes
from zoo.reporting.html import POLICY, SHARED, read_file, to_script_json
from zoo.reporting.style import DARK, LIGHT, css_variables

DOCS = Path(__file__).parents[1]
SCRIPTS = DOCS / "play"
PAGE = DOCS / "play.html"
FORMULAS = ("numbers", "tokens", "added", "rotations", "biases", "rows")


def read_formulas() -> str:
    """Return the scripts that compute, which need no page."""
    return "\n".join(_read(f"{name}.js") for name in FORMULAS)


def write_play_page() -> str:
    """Return the page as one file that needs no network."""
    facts = f"const FACTS = {to_script_json(collect_facts())};"
    scripts = [
        read_file(f"{SHARED}/document.js"),
        read_formulas(),
        facts,
        _read("view.js"),
        read_file(f"{SHARED}/start.js"),
    ]
    script = '"use strict";\n{\n' + "\n".join(scripts) + "}\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    themes = [":root {" + _list_variables(css_variables(LIGHT)) + "color-scheme:light}"]
    dark = _list_variables(css_variables(DARK))
    themes += ['@media screen { :root[data-theme="dark"] {' + dark + "color-scheme:dark} }"]
    style = "\n".join([*themes, read_file(f"{SHARED}/document.css"), _read("play.css")])
    page = _read("play.html")
    parts = {"policy": POLICY.format(digest), "site": SITE, "style": style, "script": script}
    for name, text in parts.items():
        page = page.replace(f"[[{name}]]", text)
    return page


def collect_facts() -> dict[str, Any]:
    """Return what the page says of each encoding: title, formula, axes, its page and its group."""
    facts = {}
    for name in zoo.encoding_names():
        cls = zoo.encoding_class(name)
        formula, _, _ = (inspect.getdoc(cls) or "").partition("\n\n")
        facts[name] = {
            "title": inspect.getdoc(sys.modules[cls.__module__]),
            "formula": formula,
            # clips are shown as their first frame, if at all
            "axes": [axes for axes in cls.axes if axes < 3] or [2],
            "page": f"{SITE}encodings/{name}/",
            "group": ", ".join(list_changes(cls)) or "nothing",
        }
    return dict(sorted(facts.items(), key=lambda pair: (pair[1]["group"], pair[0])))


def _list_variables(variables: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in variables.items())


def _read(name: str) -> str:
    return (SCRIPTS / name).read_text(encoding="utf-8")
