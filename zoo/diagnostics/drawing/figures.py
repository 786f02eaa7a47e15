"""Every kind of panel as inline SVG, and figures: drawings with a sentence that says what one should see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zoo.diagnostics.drawing import bars, curves, maps
from zoo.diagnostics.drawing.markup import Markup, breaking, tag
from zoo.reporting.spec import Curves, Map, Mosaic, Numbers, Panel, Points


def draw(panel: Panel) -> Markup:
    """A panel without its title and its sentence."""
    drawings: Mapping[type[Panel], Callable[[Any], Markup]] = {
        Curves: curves.curves,
        Points: curves.points,
        Map: maps.whole,
        Mosaic: maps.mosaic,
        Numbers: bars.numbers,
    }
    return drawings[type(panel)](panel)


def sentence(panel: Panel) -> str:
    """What one should see, or what there is to see where nobody said it."""
    return panel.says or f"{panel.y[:1].upper()}{panel.y[1:]} over {panel.x}."


def titled(title: str, *content: Markup) -> Markup:
    """A drawing under its title."""
    return tag("div", tag("h3", breaking(title)), *content, class_="panel")


def figure(says: str, *panels: Markup, wide: bool = False, columns: int | None = None) -> Markup:
    """One or several panels above the sentence that holds for all; several, or `wide` ones, take the whole width.

    Without a number of columns there are as many as fit, or two where that leaves no gap.
    """
    classes = "several" if len(panels) > 1 or wide else None
    columns = columns or (2 if len(panels) in (2, 4) else None)
    look = f"panels by{min(columns, 4)}" if columns else "panels"
    body = tag("div", *panels, class_=look) if len(panels) > 1 else panels[0]
    return tag("figure", body, tag("figcaption", says), class_=classes)
