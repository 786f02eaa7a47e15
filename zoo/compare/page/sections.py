"""What stands below the first screen, in the order in which it is read."""

from __future__ import annotations

from zoo.compare.page import charts, making, tables
from zoo.compare.results import Comparison
from zoo.diagnostics.document.section import Section

SECTIONS: tuple[Section[Comparison], ...] = (
    Section(
        "numbers",
        "All numbers",
        "Means with their 95 % intervals over seeds; below them the difference to the best, seed by seed. A heading sorts.",
        tables.numbers,
    ),
    Section(
        "sizes",
        "By size",
        "The same models at other sizes than those they were trained at.",
        charts.sizes,
    ),
    Section(
        "positions",
        "By place in the window",
        "Where in a window the loss is made.",
        charts.positions,
    ),
    Section("training", "Training", "What was monitored, at each validation.", charts.training),
    Section("costs", "What it costs", "What was reached, against what it took.", charts.costs),
    Section(
        "cells",
        "Cells",
        "One training run each, with its run directory beside this page.",
        tables.cells,
    ),
    Section(
        "made",
        "How it was made",
        "The command repeats the comparison, and goes on where it stood.",
        making.made,
    ),
    Section(
        "recipe",
        "Base recipe",
        "What all cells share; each run directory has the recipe of its own.",
        making.recipe,
    ),
)
