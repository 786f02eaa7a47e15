"""What the heads of the recipes record: the page of results, and the figure of lengths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.recipe import Recipe, recipe_files

RISE = 0.1  # from the length of training to eight times that: what tells encodings that extrapolate from others
STYLES = ("-", "--")


def head(path: Path) -> dict[str, str]:
    """The lines of a recipe's opening comment by their first word, and its `claim`."""
    lines = [line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return {"claim": lines[0], **{line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:] if line}}


def results(recipes: Mapping[str, Recipe]) -> str:
    """What the heads of all recipes record, a table for each source of data."""
    lines = ["# Recorded results", "", "Made by `python docs/pages.py` from the heads of the recipes.", ""]
    by_data: dict[str, list[str]] = {}
    for name, recipe in sorted(recipes.items()):
        by_data.setdefault(recipe.data.name, []).append(name)
    parts = (_results(data, {name: recipes[name] for name in names}) for data, names in sorted(by_data.items()))
    return "\n".join([*lines, *(line for part in parts for line in part)])


def _results(data: str, recipes: Mapping[str, Recipe]) -> Iterator[str]:
    heads = {name: head(recipe_files()[name]) for name in recipes}
    conditions = {number.partition(" (")[2].rstrip(")") for number in (one["number"] for one in heads.values())}
    yield from (f"## {data}", "", "; ".join(sorted(filter(None, conditions))), "")
    yield from ("| recipe | encoding | recorded | elsewhere | cost |", "|---|---|---|---|---|")
    for name, one in heads.items():
        links = (f"[{entry.name}](encodings/{entry.name}.md)" for entry in recipes[name].model.options["encoding"])
        number, lengths = one["number"].partition(" (")[0], one.get("lengths", "")
        yield f"| `{name}` | {' + '.join(links)} | {number} | {lengths} | {one['cost']} |"
    yield ""


def lengths(path: Path) -> None:
    """Draw the recorded loss of the recipes of language against the length of windows, apart by how much it rises."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained", dpi=130)
    rising, holding = figure.subplots(1, 2)
    curves = sorted(_curves().items(), key=lambda curve: curve[1][-1][1])
    _drawn(holding, f"rises by less than {RISE} nats, or falls", [one for one in curves if _rise(one[1]) < RISE])
    _drawn(rising, f"rises by {RISE} nats or more", [one for one in curves if _rise(one[1]) >= RISE])
    rising.set_ylabel("test loss in nats per character")
    figure.savefig(path)


def _curves() -> dict[str, list[tuple[int, float]]]:
    """{recipe: [(length, loss)]} of those that were measured at several lengths."""
    found = {}
    for name, recipe in recipe_files().items():
        points = re.findall(r"([\d.]+) at (\d+)", head(recipe).get("lengths", "")) if name.startswith("lm_") else []
        if len(points) > 1:
            found[name.removeprefix("lm_")] = [(int(size), float(loss)) for loss, size in points]
    return found


def _rise(points: list[tuple[int, float]]) -> float:
    return points[-1][1] - points[0][1]


def _drawn(axes: Any, title: str, curves: list[tuple[str, list[tuple[int, float]]]]) -> None:
    losses = [loss for _, points in curves for _, loss in points]
    below, step = 0.0, (max(losses) - min(losses)) * 0.042  # so that names do not lie on each other
    for number, (name, points) in enumerate(curves):
        style = STYLES[number // 10 % len(STYLES)]  # there are ten colours
        (line,) = axes.plot(*zip(*points, strict=True), style, marker="o", markersize=3, linewidth=1.2)
        size, loss = points[-1]
        below = max(loss, below + step)
        axes.annotate(name, (size, loss), (size * 1.06, below), fontsize=8, color=line.get_color(), va="center")
    axes.axvline(128, color="#999999", linestyle="--", linewidth=1)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("length of windows in tokens (trained at 128)")
    axes.set_xscale("log", base=2)
    axes.set_xticks([128, 256, 512, 1024], ["128", "256", "512", "1024"])
    axes.spines[["top", "right"]].set_visible(False)
