"""Sections of a page, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from zoo.diagnostics.drawing.markup import Markup, tag

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Section(Generic[Thing]):
    """`key` is its address in the page; `lead` says how to read it. Without a body it is left out."""

    key: str
    title: str
    lead: str
    body: Callable[[Thing], Markup | None]


def drawn(
    thing: Thing, opening: Markup, sections: Sequence[Section[Thing]]
) -> tuple[Markup, Markup]:
    """The list of contents, and the sections of a thing under the opening."""
    bodies = [(section, body) for section in sections if (body := section.body(thing))]
    links = (tag("li", tag("a", section.title, href=f"#{section.key}")) for section, _ in bodies)
    parts = (
        tag(
            "section",
            tag("h2", section.title),
            tag("p", section.lead, class_="lead"),
            body,
            id=section.key,
            aria_label=section.title,
        )
        for section, body in bodies
    )
    return tag("ul", *links), Markup(opening + "\n".join(parts))
