"""`zoo diff`: the keys in which two recipes differ once they are resolved."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.cli.commands import Command
from zoo.errors import DataError, OptionError, RecipeError
from zoo.reporting.numbers import as_json
from zoo.reporting.tables import format_table
from zoo.run.shipped import PREFIX, find_folder
from zoo.utils import escape_text, follow_latest

if TYPE_CHECKING:
    from zoo.config import Edit, Overrides, Recipe
    from zoo.data.spec import DataSpec

CHECKPOINT_NAMES = ("last", "best")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("one", metavar="RECIPE|RUN|CHECKPOINT")
    parser.add_argument("other", metavar="RECIPE|RUN|CHECKPOINT")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of both")


def read(args: argparse.Namespace) -> list[Edit]:
    """Return the overrides. Raises RecipeError where one, or a recipe, is wrong."""
    from zoo import config
    from zoo.config.command_line import parse_overrides

    edits = parse_overrides(args.overrides)
    for name in (args.one, args.other):
        path = _find_path(name)
        if not (path / "recipe.yaml").is_file() and not _is_checkpoint(path):
            config.load(name, edits)
    return edits


def run(args: argparse.Namespace) -> None:
    """Print the differences as a table or as JSON."""
    result = compare_recipes(args.one, args.other, read(args))
    print(as_json(result) if args.json else format_differences(result))


class LoadedRecipe(NamedTuple):
    """A recipe, and the specification of its data where a checkpoint holds one."""

    recipe: Recipe
    spec: DataSpec | None


def compare_recipes(left_name: str, right_name: str, overrides: Overrides) -> dict[str, Any]:
    """Return the differing keys with values and locations, parameters and tokens of both.

    Args:
        left_name: A recipe, run directory or checkpoint.
        right_name: Another.
        overrides: Changes of both.

    Raises:
        RecipeError: One of them is no recipe.
        CheckpointError: One of them is a damaged checkpoint.
    """
    from zoo.config.recipe import diff_recipes, format_sides

    left, right = (_load_recipe(name, overrides) for name in (left_name, right_name))
    differences = [
        {
            "key": key,
            "values": [a.value, b.value],
            "locations": [a.location, b.location],
            "text": format_sides(a, b),
        }
        for key, a, b in diff_recipes(left.recipe, right.recipe)
    ]
    result: dict[str, Any] = {
        "recipes": [left_name, right_name],
        "equal": not differences,
        "differences": differences,
    }
    sizes = [_measure_model(loaded) for loaded in (left, right)]
    for key in ("parameters", "tokens"):
        result[key] = [size[key] for size in sizes]
    return result


def format_differences(result: Mapping[str, Any]) -> str:
    """Write a line for each key with its locations, then parameters and tokens if they differ.

    Where two components differ by name, a line each lists the options that the other lacks.
    """
    left, right = map(escape_text, result["recipes"])
    if result["equal"]:
        lines = [f"{left} and {right} are equal once resolved"]
    else:
        differences = {difference["key"]: difference for difference in result["differences"]}
        options: dict[tuple[str, str], list[str]] = {}
        rows = []
        for key, difference in differences.items():
            parent, _, option = key.rpartition(".")
            names = differences.get(f"{parent}.name")
            if names is None or option == "name" or all(difference["locations"]):
                rows.append(_format_row(difference))
                continue
            side = 0 if difference["locations"][0] else 1
            text = f"{option} {difference['text'][side]}"
            options.setdefault((parent, names["text"][side]), []).append(text)
        lines = [f"{left} -> {right}", format_table(rows, left=(0, 3, 4), gap=" ")]
        for (parent, name), texts in options.items():
            lines.append(f"{parent}, options of {name} only: {', '.join(texts)}")

    for key, title in (("parameters", "parameters of the model"), ("tokens", "tokens per sample")):
        a, b = (f"{count:,}" if isinstance(count, int) else "unknown" for count in result[key])
        if a != b:
            lines.append(f"{title}: {a} -> {b}")
    return "\n".join(lines)


def _format_row(difference: Mapping[str, Any]) -> tuple[str, ...]:
    """Return key, both values and where they are set."""
    before, after = difference["text"]
    locations = dict.fromkeys(location or "absent" for location in difference["locations"])
    return f"{difference['key']}:", before, "->", after, f"({' -> '.join(locations)})"


def _load_recipe(name: str, overrides: Overrides) -> LoadedRecipe:
    """Load the recipe of a run directory, checkpoint, file or registered name."""
    from zoo import config
    from zoo.run import checkpoint

    path = _find_path(name)
    if (path / "recipe.yaml").is_file():
        return LoadedRecipe(config.load(path / "recipe.yaml", overrides), None)
    # a run directory is compared by its recipe file, which needs no checkpoint and no torch
    if not _is_checkpoint(path):
        return LoadedRecipe(config.load(name, overrides), None)

    file = checkpoint.locate(name)
    content = checkpoint.read(file)
    about = content["zoo"]
    recipe = config.from_plain(about["recipe"], overrides, origin=str(file), name=about["name"])
    return LoadedRecipe(recipe, checkpoint.read_spec(content, file))


def _find_path(name: str) -> Path:
    return find_folder(name) if name.startswith(PREFIX) else follow_latest(Path(name))


def _is_checkpoint(path: Path) -> bool:
    return path.suffix == ".ckpt" or path.name in CHECKPOINT_NAMES


def _measure_model(loaded: LoadedRecipe) -> dict[str, int | None]:
    """Count parameters and tokens per sample; None if model or data are not to be had."""
    import torch

    from zoo.run.build import Experiment
    from zoo.run.preflight import count_tokens

    try:
        with torch.device("meta"):
            experiment = Experiment(loaded.recipe, loaded.spec)
            model = experiment.meta_model
            count = sum(parameter.numel() for parameter in model.parameters())
            return {"parameters": count, "tokens": count_tokens(model, experiment.spec)}
    except (OptionError, DataError, RecipeError):
        return {"parameters": None, "tokens": None}


COMMAND = Command(
    summary="compare two recipes, runs or checkpoints key by key",
    example="zoo diff lm_rope lm_alibi",
    add_arguments=add_arguments,
    run=run,
    read=read,
    prints_json=True,
)
