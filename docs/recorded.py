"""What the heads of the recipes record: the page of results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from zoo.config import Recipe, recipe_files

MEANT = """One run each, by the code of its day, of recipes that differ in more
than their encodings: it shows that they train, and what to expect. Which encoding is better is a question for
[comparisons](overview.md), where it is all that differs and seeds tell how far chance goes."""


def head(path: Path) -> dict[str, str]:
    """The lines of a recipe's opening comment by their first word, and its `claim`."""
    lines = [
        line.lstrip("# ")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    ]
    return {
        "claim": lines[0],
        **{line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:] if line},
    }


def results(recipes: Mapping[str, Recipe]) -> str:
    """What the heads of all recipes record, a table for each source of data."""
    lines = [
        "# Recorded results",
        "",
        f"Made by `python docs/pages.py` from the heads of the recipes. {MEANT}",
        "",
    ]
    by_data: dict[str, list[str]] = {}
    for name, recipe in sorted(recipes.items()):
        by_data.setdefault(recipe.data.name, []).append(name)
    parts = (
        _results(data, {name: recipes[name] for name in names})
        for data, names in sorted(by_data.items())
    )
    return "\n".join([*lines, *(line for part in parts for line in part)])


def _results(data: str, recipes: Mapping[str, Recipe]) -> Iterator[str]:
    heads = {name: head(recipe_files()[name]) for name in recipes}
    conditions = {
        found[1] for one in heads.values() if (found := re.search(r"\(([^()]*)\)", one["number"]))
    }
    yield from (f"## {data}", "")
    if conditions:
        yield from ("; ".join(sorted(conditions)), "")
    yield from ("| recipe | encoding | recorded | elsewhere | cost |", "|---|---|---|---|---|")
    for name, one in heads.items():
        links = (
            f"[{entry.name}](encodings/{entry.name}.md)"
            for entry in recipes[name].model.options["encoding"]
        )
        number, lengths = re.sub(r" \([^()]*\)", "", one["number"], count=1), one.get("lengths", "")
        yield f"| `{name}` | {' + '.join(links)} | {number} | {lengths} | {one['cost']} |"
    yield ""
