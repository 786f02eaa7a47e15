"""`zoo diff`: what differs between two recipes, runs or checkpoints once they are resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from zoo import config as recipes
from zoo.config import Recipe
from zoo.config.recipe import diff_recipes, format_sides
from zoo.data.spec import Samples
from zoo.errors import DataError, OptionError, RecipeError
from zoo.run import checkpoint
from zoo.run.build import build_model
from zoo.run.preflight import tokens

ENDS = ("last", "best")


class Subject(NamedTuple):
    """A recipe, and the facts of its data where a checkpoint keeps them."""

    recipe: Recipe
    samples: Samples | None


def diff(one: str, other: str, overrides: Sequence[str]) -> dict[str, Any]:
    """What `--json` prints; overrides change both."""
    left, right = (_subject(place, overrides) for place in (one, other))
    found = [
        {
            "key": key,
            "values": [a.value, b.value],
            "places": [a.location, b.location],
            "told": format_sides(a, b),
        }
        for key, a, b in diff_recipes(left.recipe, right.recipe)
    ]
    sizes = [_sizes(subject) for subject in (left, right)]
    return {"recipes": [one, other], "equal": not found, "differences": found} | {
        key: [size[key] for size in sizes] for key in ("parameters", "tokens")
    }


def table(result: Mapping[str, Any]) -> str:
    """A line for each key, with where each value is from; then parameters and tokens where they differ."""
    one, other = result["recipes"]
    if result["equal"]:
        lines = [f"{one} and {other} are equal once resolved"]
    else:
        rows = [
            (f"{each['key']}:", *each["told"], *_places(each["places"]))
            for each in result["differences"]
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{one} -> {other}"]
        for key, a, b, *places in rows:
            told = f"{key.ljust(widths[0])}  {a.rjust(widths[1])} -> {b.ljust(widths[2])}"
            lines.append(f"{told}  ({' -> '.join(places)})")
    for key in ("parameters", "tokens"):
        a, b = (f"{count:,}" if isinstance(count, int) else "unknown" for count in result[key])
        lines += [
            f"{key} of the model: {a} -> {b}"
            if key == "parameters"
            else f"tokens per sample: {a} -> {b}"
        ] * (a != b)
    return "\n".join(lines)


def _places(places: Sequence[str | None]) -> list[str]:
    return [place or "not there" for place in dict.fromkeys(places)]


def _subject(place: str, overrides: Sequence[str]) -> Subject:
    """The recipe of a run directory, of a checkpoint, of a file or of a name. Raises RecipeError or CheckpointError."""
    path = Path(place)
    if (path / "recipe.yaml").is_file():
        return Subject(recipes.load(path / "recipe.yaml", overrides), None)
    if path.suffix != ".ckpt" and path.name not in ENDS:
        return Subject(recipes.load(place, overrides), None)
    found = checkpoint.locate(place)
    content = checkpoint.read(found)
    about = content["zoo"]
    read = recipes.from_plain(about["recipe"], overrides, origin=str(found), name=about["name"])
    return Subject(read, checkpoint.recalled(content, found))


def _sizes(subject: Subject) -> dict[str, int | None]:
    """Parameters and tokens per sample; None where the model cannot be made, or its data is not there."""
    try:
        with torch.device("meta"):
            model = build_model(subject.recipe, subject.samples)
            count = sum(parameter.numel() for parameter in model.parameters())
            return {"parameters": count, "tokens": tokens(subject.recipe, model, subject.samples)}
    except (OptionError, DataError, RecipeError):
        return {"parameters": None, "tokens": None}
