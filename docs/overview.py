"""Every encoding at a glance: means of the recorded comparisons, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from answered import shown
from compared import QUESTIONS

from zoo.compare.ranking import Standing, ranking
from zoo.compare.results import TRAINED, Comparison
from zoo.compare.text import decimals, number

HEAD = """# Every encoding at a glance

Made by `python docs/pages.py` from recorded comparisons. Each number is a mean over three seeds, of cells in which
nothing differs but the encoding. **Bold**: the best of its column, or within the spread of seeds of that. Read down a column,
not along a row, and mind what a column is: small models, trained for minutes. What they found, with intervals and each seed:
[resolution](questions/resolution.md), [length](questions/length.md), [small tasks](questions/memory.md).

"""


@dataclass(frozen=True)
class Column:
    """One place of a recorded comparison."""

    path: str
    place: str
    head: str

    @property
    def comparison(self) -> Comparison:
        return _read(QUESTIONS / f"{self.path}.json")


GROUPS = {
    "Images": (
        "accuracy",
        Column("resolution/digits", TRAINED, "digits, 16 pixels"),
        Column("resolution/digits", "32", "32"),
        Column("resolution/digits", "64", "64"),
        Column("resolution/cifar10", TRAINED, "CIFAR-10, 32 pixels"),
        Column("resolution/cifar10", "48", "48"),
        Column("resolution/cifar10", "64", "64"),
    ),
    "Texts": (
        "loss in nats",
        Column("length/shakespeare", TRAINED, "Shakespeare, 128 characters"),
        Column("length/shakespeare", "256", "256"),
        Column("length/shakespeare", "1024", "1024"),
        Column("length/wikitext2", TRAINED, "WikiText-2, 128 subwords"),
        Column("length/wikitext2", "256", "256"),
        Column("length/wikitext2", "1024", "1024"),
    ),
    "Small tasks": (
        "accuracy",
        Column("memory/flipflop", TRAINED, "flip-flop, 64 tokens"),
        Column("memory/flipflop", "256", "256"),
        Column("memory/recall", TRAINED, "recall, 64 tokens"),
        Column("memory/recall", "256", "256"),
        Column("memory/counting", TRAINED, "counting, to 32"),
        Column("memory/counting", "longer", "to 64"),
        Column("memory/selective_copy", TRAINED, "copied from 32 blanks"),
        Column("memory/selective_copy", "sparse", "64"),
        Column("memory/passkey", TRAINED, "passkey, 64 words"),
        Column("memory/passkey", "256", "256"),
        Column("memory/copying", TRAINED, "20 letters copied"),
        Column("memory/copying", "longer", "40"),
        Column("memory/addition", TRAINED, "sums of 3 digits"),
        Column("memory/addition", "longer", "of 6"),
    ),
}
"""{what is trained: (what is measured, at which places)}"""


@cache
def _read(path: Path) -> Comparison:
    return Comparison.read(path)


def overview() -> str:
    """The page."""
    return HEAD + "\n".join(line for title in GROUPS for line in _table(title))


def _table(title: str) -> Iterator[str]:
    measure, *columns = GROUPS[title]
    found = [standings(column) for column in columns]
    yield from (f"## {title}", "", f"Test {measure}, the best first at the first place.", "")
    yield f"| encoding | {' | '.join(column.head for column in columns)} |"
    yield "|---|" + "---:|" * len(columns)
    for name in rows(title):
        shown = (
            _shown(column, each.get(name)) for column, each in zip(columns, found, strict=True)
        )
        yield f"| {name} | {' | '.join(shown)} |"
    yield ""


def rows(title: str) -> list[str]:
    """Names of variants, by the first place that has them."""
    return list(dict.fromkeys(name for column in GROUPS[title][1:] for name in standings(column)))


def standings(column: Column) -> dict[str, Standing]:
    return {one.variant.name: one for one in ranking(column.comparison, column.place)}


def _shown(column: Column, one: Standing | None) -> str:
    if one is None:
        return ""
    places = decimals(column.comparison)
    return shown(one, lambda mean: number(mean.mean, places))
