"""Pages as single HTML files that need no network, rendered from Jinja templates."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from zoo.reporting import numbers, style

# The content security policy of a page: only its own script runs, and nothing is loaded.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
    "base-uri 'none'; form-action 'none'"
)
SHARED = "reporting/templates"
SHARED_SCRIPTS = (f"{SHARED}/document.js", f"{SHARED}/figures.js")
START_SCRIPT = f"{SHARED}/start.js"


@dataclass(frozen=True)
class Section:
    """A section of a page. A section without content is left out.

    Args:
        key: Its anchor in the page, and its name in the template.
        title: Its heading, and its entry in the table of contents.
        lead: A sentence on how to read it.
        content: The data of the template.
        items: Items of a list below the content.
    """

    key: str
    title: str
    lead: str
    content: Any
    items: Sequence[str] = ()


def render_page(
    template: str, *, styles: tuple[str, ...], scripts: tuple[str, ...], data: Any, **context: Any
) -> str:
    """Render a page that makes no requests and does not execute any of its data.

    Args:
        template: File of the page's template, relative to the package. It extends document.html.
        styles: Style sheets of the page, in addition to the shared one.
        scripts: Scripts of the page, in addition to the shared ones.
        data: JSON data that the scripts read from the element "data".
        context: Variables of the template.

    Returns:
        The HTML.
    """
    # The policy names the one script by its digest.
    script = _join_scripts(scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sheets = (f"{SHARED}/document.css", *styles)
    return (
        _environment()
        .get_template(template)
        .render(
            policy=POLICY.format(digest),
            style=Markup("\n".join(map(read_file, sheets))),
            script=Markup(script),
            data=Markup(to_script_json(data)),
            light=style.css_variables(style.LIGHT),
            dark=style.css_variables(style.DARK),
            filters=_filters(),
            levels={ramp: range(style.LEVELS) for ramp in style.LETTERS.values()},
            **context,
        )
    )


def to_script_json(data: Any) -> str:
    """Encode data as JSON for a script element."""
    # With < > & escaped, no string in the data can end the element.
    encoded = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return encoded.translate({ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"})


def read_file(name: str) -> str:
    """Read a file of the package, such as reporting/templates/document.css."""
    return files("zoo").joinpath(name).read_text(encoding="utf-8")


def mark_code(text: str) -> Markup:
    """Return a sentence as HTML whose names between backticks are code."""
    if isinstance(text, Markup):
        return text
    parts = re.split(r"`([^`]+)`", text)
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(break_words(part)) if number % 2 else break_words(part)
        for number, part in enumerate(parts)
    )


def break_words(text: str) -> Markup:
    """Allow a line break after each / and _ of a name."""
    if isinstance(text, Markup):
        return text
    escaped = str(escape(_clean(text)))
    return Markup(re.sub("([/_])(?=.)", r"\1<wbr>", escaped, flags=re.DOTALL))


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(read_file),
        autoescape=True,
        # what a template asks for and nobody passes raises, instead of leaving a gap
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters |= {
        "breaking": break_words,
        "coded": mark_code,
        "metric": partial(numbers.name_metric, arrow=True),
        "number": numbers.format_number,
        "short": numbers.format_short,
    }
    return environment


def _clean(value: Any) -> Any:
    """Replace characters that HTML or UTF-8 cannot represent in a value of a template."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return "" if value is None else value
    return numbers.UNPRINTABLE.sub("\ufffd", value)


def _join_scripts(scripts: tuple[str, ...]) -> str:
    """Join scripts in one block, which is the scope of their names."""
    parts = map(read_file, (*SHARED_SCRIPTS, *scripts, START_SCRIPT))
    return '"use strict";\n{\n' + "\n".join(parts) + "}\n"


def _filters() -> dict[str, dict[str, str]]:
    """Return the SVG filters that colour the grey images of heat maps, by name."""
    return {
        f"{ramp}-{theme}": style.filter_tables(colours.ramps[ramp])
        for ramp in style.LETTERS
        for theme, colours in (("light", style.LIGHT), ("dark", style.DARK))
    }
