"""Pages of questions: prose up to a mark, then the comparisons that were recorded in the folder of the page's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from compared import FIGURES, QUESTIONS

from zoo.bench.table import grid
from zoo.compare.ranking import Standing, ranking
from zoo.compare.results import Comparison
from zoo.compare.statistics import Estimate
from zoo.compare.table import conditions, costs
from zoo.compare.text import answers, capital, decimals, named, question, spread

MARK = "## Recorded\n"
BOLD = "Bold: the best of a column, or within the spread of seeds of that. *Mind*: what a variant has otherwise than most."


def questions() -> dict[Path, str]:
    """{path: text} of all pages, each as it is written up to its mark, then a section for each file of its folder."""
    return {page: _page(page) for page in sorted(QUESTIONS.glob("*.md"))}


def _page(page: Path) -> str:
    written, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        return written
    sections = [
        line for path in sorted(page.with_suffix("").glob("*.json")) for line in _section(path)
    ]
    told = f"Made by `python docs/pages.py` from the files in docs/questions/{page.stem}."
    return written + MARK + "\n".join(["", told, "", *(sections or ["Nothing yet.", ""])])


def _section(path: Path) -> Iterator[str]:
    """The answers, the figures, and a table with a column for each place; the rest is on the whole page."""
    comparison = Comparison.read(path)
    yield from (f"### {path.stem.replace('_', ' ')}: {question(comparison)}", "")
    yield from (*(f"- {answer}" for answer in answers(comparison).values()), "")
    for name, told in FIGURES.items():
        picture = path.with_name(f"{path.stem}_{name}.png")
        if picture.exists():
            yield from (f"![{told}: {path.stem}]({path.parent.name}/{picture.name})", "")
    yield from (
        f"[The whole page]({path.parent.name}/{path.stem}.html), with each seed and each difference.",
        "",
    )
    yield from (_places(comparison), "", BOLD, "")
    yield from (
        re.sub(r"^## ", "#### ", costs(comparison)),
        "",
        *conditions(comparison).splitlines(),
        "",
    )


def _places(comparison: Comparison) -> str:
    """All variants by all places, the best at the first of them first."""
    found = [
        {one.variant.name: one for one in ranking(comparison, place)} for place in comparison.places
    ]
    head = [
        comparison.axes[0].title,
        *(capital(named(comparison, place)) for place in comparison.places),
        "mind",
    ]
    places = decimals(comparison)
    rows = [
        [
            name,
            *(shown(each[name], lambda mean: spread(mean, places)) for each in found),
            ", ".join(one.variant.marks),
        ]
        for name, one in found[0].items()
    ]
    return grid(head, rows, (head[0], head[-1]))


def shown(one: Standing, tell: Callable[[Estimate], str]) -> str:
    """A variant at a place, as a table has it: bold where it is best or as good, a word where there is no value."""
    if one.mean is None:
        return one.lacking[0].partition(":")[0]
    return f"**{tell(one.mean)}**" if one.verdict in ("best", "within") else tell(one.mean)
