"""Colours of the page that stand for numbers: ramps that grow evenly from the paper on, in light and in dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zoo.diagnostics.drawing.markup import Markup, tag

LEVELS = 17  # of a cell of a table, odd so that 0 has its own


@dataclass(frozen=True)
class Ramp:
    """Colours from the lowest to the highest number, evenly apart, on light and on dark paper."""

    letter: str  # of the classes of its levels: w0, w1, ...
    light: tuple[str, ...]
    dark: tuple[str, ...]


RAMPS = {
    "weights": Ramp(
        "w",
        ("#f6f5ee", "#dfe9cb", "#a9d5bf", "#62b3bd", "#3287b1", "#2c5a9a", "#1b2a63"),
        ("#22262e", "#273b5b", "#2f5b86", "#3e87a3", "#6cb4a6", "#b5d88f", "#f4f3a1"),
    ),
    "signed": Ramp(
        "d",
        ("#1f4e8c", "#5f93c4", "#b5cfe3", "#f5f4f0", "#f1c9a0", "#dd8a45", "#9a4708"),
        ("#8cc2f5", "#3f7fc0", "#294a6d", "#24282f", "#6b4526", "#c47a35", "#ffbd80"),
    ),
}


def at(colours: Sequence[str], share: float) -> str:
    """The colour at a share from 0 to 1 of a ramp."""
    place = share * (len(colours) - 1)
    first = min(int(place), len(colours) - 2)
    near, far = _channels(colours[first]), _channels(colours[first + 1])
    mixed = (round(a + (b - a) * (place - first)) for a, b in zip(near, far, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def style() -> Markup:
    """Custom properties and classes of all ramps; a class sets --c to its colour."""
    classes = (
        f".{ramp.letter}{level}{{--c:var(--{ramp.letter}{level})}}"
        for ramp in RAMPS.values()
        for level in range(LEVELS)
    )
    light, dark = _properties("light"), _properties("dark")
    return Markup(
        f":root{{{light}}}\n@media screen{{:root[data-theme=dark]{{{dark}}}}}\n{''.join(classes)}"
    )


def filters() -> Markup:
    """Filters that give the grey levels of a picture, from 1 of 255 on, the colours of a ramp."""
    return tag(
        "svg",
        *(
            _filter(f"{name}-{theme}", getattr(ramp, theme))
            for name, ramp in RAMPS.items()
            for theme in ("light", "dark")
        ),
        class_="filters",
        width=0,
        height=0,
        aria_hidden="true",
    )


def _properties(theme: str) -> str:
    words = []
    for name, ramp in RAMPS.items():
        colours = ramp.light if theme == "light" else ramp.dark
        words += [
            f"--{ramp.letter}{level}:{at(colours, level / (LEVELS - 1))}" for level in range(LEVELS)
        ]
        words += [f"--{name}:{','.join(colours)}", f"--{name}-filter:url(#{name}-{theme})"]
    return ";".join(words)


def _filter(name: str, colours: Sequence[str]) -> Markup:
    columns = zip(*(_channels(colour) for colour in colours), strict=True)
    tables = [" ".join(f"{channel / 255:.3f}" for channel in column) for column in columns]
    parts = (
        tag(f"feFunc{letter}", type="table", tableValues=table)
        for letter, table in zip("RGB", tables, strict=True)
    )
    return tag(
        "filter", tag("feComponentTransfer", *parts), id=name, color_interpolation_filters="sRGB"
    )


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue
