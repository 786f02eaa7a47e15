"""The bare frame of the viewer; the page's script fills it in and answers to mouse, touch and keys."""

from __future__ import annotations

from collections.abc import Iterator

from zoo.diagnostics.drawing.figures import figure
from zoo.diagnostics.drawing.markup import Markup, tag
from zoo.diagnostics.page.fewer import thinned
from zoo.diagnostics.report import Report

HOW = (
    "Hover a token to ask where it looks; click or tap to hold it, and hover others for their numbers. "
    "Or move with the arrow keys once the focus is there; Escape lets go."
)
SAYS = (
    "Strong colours are where the query gathers from. A head that follows places moves along with the query; one that "
    "follows content stays where the content is."
)
PICKERS = ("run", "sample", "layer", "head")


def section(report: Report) -> Markup | None:
    """Nothing where no run has weights."""
    if all(run.attended is None for run in report.runs):
        return None
    pickers = (tag("label", tag("span", name), tag("select", name=name)) for name in PICKERS)
    body = tag(
        "div",
        tag("div", *pickers, class_="pickers"),
        *_fewer(report),
        tag("div", _stage(), _side(), class_="view"),
        tag("noscript", "Where heads look is drawn by a script, which this browser does not run."),
        class_="looks",
    )
    return figure(SAYS, body)


def _fewer(report: Report) -> Iterator[Markup]:
    """Of each run whose samples are not all shown, that they are not."""
    for run, kept in zip(report.runs, thinned(report).runs, strict=True):
        all_of, shown = (
            0 if one.attended is None else len(one.attended.samples) for one in (run, kept)
        )
        if shown < all_of:
            of = f"{run.name}: " if len(report.runs) > 1 else ""
            yield tag(
                "p",
                f"{of}measured on {all_of:,} samples, of which the first {shown} are shown.",
                class_="how",
            )


def _stage() -> Markup:
    stage = tag(
        "div",
        class_="stage",
        tabindex="0",
        role="application",
        aria_label="Query: arrow keys move it",
        aria_describedby="how looks-says",
    )
    low, high = tag("span", "0"), tag("span", class_="largest")
    scale = tag("p", low, tag("i", class_="ramp"), high, tag("span", class_="unit"), class_="scale")
    strength = tag(
        "label",
        tag("span", "colour"),
        tag("input", type="range", min="0", max="100", value="70", name="strength"),
    )
    return tag(
        "div",
        stage,
        tag("div", scale, strength, class_="under"),
        tag("p", class_="told", id="looks-says", aria_live="polite"),
        tag("p", HOW, class_="how", id="how"),
        tag("p", class_="how some"),
    )


def _side() -> Markup:
    return tag(
        "div",
        tag("h3", "All heads for this query"),
        tag("div", class_="matrix", role="grid", aria_label="Layers and heads"),
        tag("h3", "It looks most at"),
        tag("ol", class_="most"),
        class_="side",
    )
