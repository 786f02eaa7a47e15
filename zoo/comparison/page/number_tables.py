"""Tables that a click on a heading sorts: all numbers of each variant, and all cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from zoo.comparison.curves import mean_of
from zoo.comparison.number_text import count_decimals
from zoo.comparison.page.ranking_table import describe_flags
from zoo.comparison.race_text import name_drop
from zoo.comparison.ranking import Standing, rank_variants
from zoo.comparison.results import Comparison, ComparisonCell, Variant
from zoo.comparison.text import (
    format_difference,
    format_measure,
    format_standing,
    join_names,
    name_extreme,
)
from zoo.reporting import numbers
from zoo.reporting.sections import SectionTable


@dataclass(frozen=True)
class TableEntry:
    """A cell of a table, and the number or word it is sorted by.

    Args:
        text: The text.
        key: What it is sorted by; None comes last.
        kind: What the template shows it as: "", "name", "run", "value" or "missing".
        notes: Small lines below the text.
        classes: CSS classes.
        flag: Flags of a variant, in a word each and in full.
    """

    text: str
    key: float | str | None
    kind: str = ""
    notes: tuple[str, ...] = ()
    classes: str = ""
    flag: tuple[str, str] = ("", "")

    @property
    def sort_kind(self) -> str:
        if self.key is None:
            return "none"
        return "word" if isinstance(self.key, str) else "number"


@dataclass(frozen=True)
class SortableTable:
    """Headings and rows; `descending` are columns whose largest numbers come first."""

    heads: list[str]
    rows: list[list[TableEntry]]
    descending: frozenset[int] = field(default_factory=frozenset)


def build_variants_table(comparison: Comparison) -> SortableTable:
    """Return a row for each variant, in the order of the first condition."""
    columns = [
        {ranked.variant.name: ranked for ranked in rank_variants(comparison, condition)}
        for condition in comparison.conditions
    ]
    axes = comparison.axes if len(comparison.axes) > 1 else ()
    title = " \u00d7 ".join(axis.title for axis in comparison.axes)
    measures = [
        f"{format_measure(comparison)}, {condition.describe()}"
        for condition in comparison.conditions
    ]
    rows = []
    for name, standing in columns[0].items():
        variant = standing.variant
        row = [TableEntry(name, name, "name", flag=describe_flags(variant))]
        row += [_build_word(variant.values.get(axis.key, "")) for axis in axes]
        rows.append([*row, *(_build_value(comparison, column[name]) for column in columns)])
    start = 1 + len(axes)
    highest_first = range(start, start + len(measures)) if comparison.better == "high" else ()
    heads = [title, *(axis.title for axis in axes), *measures]
    return SortableTable(heads, rows, frozenset(highest_first))


def build_costs_table(comparison: Comparison) -> SortableTable | None:
    """Return what each variant has and takes, in the order of the first condition.

    Returns:
        The table; None if no cell has begun.
    """
    standings = rank_variants(comparison, comparison.trained)
    if not any(cell.parameters for cell in comparison.cells):
        return None
    step = "step, ms"
    # the driver runs this many cells at once, so that times of steps include waiting
    if int(comparison.machine.get("jobs", 1)) > 1:
        step += f" ({comparison.machine['jobs']} at once)"
    heads = ["variant", "parameters", "forward, MFLOPs", step, "memory, MiB", "backend"]
    rows = [
        [
            TableEntry(standing.variant.name, standing.variant.name, "name"),
            *_build_costs(standing.variant),
        ]
        for standing in standings
    ]
    return SortableTable([*heads, "seeds done"], rows)


def build_text_table(table: SectionTable) -> SortableTable:
    """Return a table of texts, which are sorted as words."""
    rows = [[_build_word(entry) for entry in row] for row in table.rows]
    return SortableTable([*table.heads], rows)


def build_cells_table(comparison: Comparison) -> SortableTable:
    """Return a row for each cell."""
    heads = ["variant", "seed", "state", "steps", "minutes", "run directory"]
    cells = [(variant, cell) for variant in comparison.variants for cell in variant.cells]
    return SortableTable(heads, [_build_cell_row(*pair) for pair in cells])


def _build_cell_row(variant: Variant, cell: ComparisonCell) -> list[TableEntry]:
    differs = (
        f"did not start as the others: {join_names(cell.different_start)}"
        if cell.different_start
        else ""
    )
    notes = tuple(filter(None, [cell.error, differs]))
    return [
        TableEntry(variant.name, variant.name, "name"),
        TableEntry(str(cell.seed), cell.seed),
        TableEntry(cell.state, cell.state, classes=f"state {cell.state}"),
        _build_count(cell.steps),
        _build_minutes(cell.minutes),
        TableEntry(cell.run_dir, cell.run_dir, "run", notes, "run"),
    ]


def _build_word(word: str) -> TableEntry:
    return TableEntry(word, word)


def _build_value(comparison: Comparison, standing: Standing) -> TableEntry:
    """Return the mean with its interval, its difference to the first and its verdict."""
    if standing.mean is None:
        shown = "; ".join(standing.missing_reasons) or numbers.NOTHING
        return TableEntry(shown, None, "missing", classes="missing")
    digits = count_decimals(comparison)
    verdicts: Mapping[str, str] = {
        "best": name_extreme(comparison),
        "possible": "may be best",
        "worse": "worse",
    }
    behind = format_difference(standing, digits)
    verdict = verdicts.get(standing.verdict, "")
    if standing.dropped is not None:
        verdict = name_drop(standing.dropped)
    notes = tuple(filter(None, [behind, verdict]))
    shown = format_standing(standing, digits)
    return TableEntry(shown, standing.mean.mean, "value", notes, standing.verdict)


def _build_minutes(minutes: float | None) -> TableEntry:
    shown = numbers.NOTHING if minutes is None else numbers.format_number(minutes, 2)
    return TableEntry(shown, minutes)


def _build_costs(variant: Variant) -> list[TableEntry]:
    parameters = mean_of(variant, lambda cell: cell.parameters)
    flops = mean_of(variant, lambda cell: cell.flops)
    seconds = mean_of(variant, lambda cell: cell.step_seconds)
    memory = mean_of(variant, lambda cell: cell.peak_memory)
    names = list(dict.fromkeys(name for cell in variant.cells for name in cell.backends))
    done = sum(cell.state == "done" for cell in variant.cells)
    milliseconds = None if seconds is None else seconds * 1e3
    step = TableEntry(numbers.NOTHING, None)
    if milliseconds is not None:
        step = TableEntry(numbers.format_number(milliseconds, 3), milliseconds)
    return [
        _build_count(parameters),
        _build_count(None if flops is None else flops / 1e6, decimals=1),
        step,
        _build_count(None if memory is None else memory / 2**20),
        _build_word(join_names(names) if names else numbers.NOTHING),
        TableEntry(f"{done} of {len(variant.cells)}", done),
    ]


def _build_count(value: float | None, decimals: int = 0) -> TableEntry:
    if value is None or not isfinite(value):
        return TableEntry(numbers.NOTHING, None)
    return TableEntry(numbers.format_fixed(value, decimals), value)
