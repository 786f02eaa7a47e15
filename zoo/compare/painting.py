"""What all figures of a comparison have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.compare.answer import question
from zoo.compare.result import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, LINE = "#6b6f76", "#d8d6ce"
LONGEST, WHOLE = 40, 90  # letters of a name, and of the title of a figure


def framed(comparison: Comparison, count: int, abreast: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure under the question, with so many drawings of a size in inches, in rows of so many; the others are hidden."""
    from matplotlib.figure import Figure

    columns = min(count, abreast)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns + 1, size[1] * rows + 0.6), layout="constrained", dpi=150)
    figure.suptitle(plain(question(comparison), WHOLE), fontsize=12)
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in every[count:]:
        axes.set_axis_off()
    return figure, every[:count]


def finish(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)


def plain(text: str, longest: int = LONGEST) -> str:
    """Short enough, and no formula."""
    short = text if len(text) <= longest else f"{text[: longest - 1]}\u2026"
    return "".join(letter for letter in short if letter.isprintable()).replace("$", r"\$")
