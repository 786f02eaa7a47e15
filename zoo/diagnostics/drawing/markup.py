"""HTML that cannot be broken by what it shows: what is not Markup is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]"
)  # what HTML or UTF-8 cannot hold
VOID = ("input", "img", "br", "wbr")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Markup as it is; of other text, what HTML would read as its own is written as entities."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(UNSEEN.sub("\ufffd", text)))


def breaking(text: str) -> Markup:
    """A name that may go on in the next line after each / and _; Markup as it is."""
    if isinstance(text, Markup):
        return text
    return Markup(re.sub("([/_])(?=.)", r"\1<wbr>", escape(text), flags=re.DOTALL))


def together(parts: Iterable[str | None]) -> Markup:
    """One after another; None is left out."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` is written class, `data_x` data-x; None and False leave an attribute out, True is its name alone."""
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(
        f"<{name}{words}>" if name in VOID else f"<{name}{words}>{together(children)}</{name}>"
    )


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = value if isinstance(value, str) else f"{round(value, 2):g}"
    return f' {name}="{escape(text)}"'
