"""`zoo eval`: measure a checkpoint, as it was trained and at other resolutions or lengths."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import lightning as L

from zoo.build import build_data, build_trainer
from zoo.data.source import Source
from zoo.errors import Invalid
from zoo.loading import restore
from zoo.recipe import Recipe
from zoo.run import checkpoints, folder
from zoo.tasks.task import Task
from zoo.verbs import figures

log = logging.getLogger("zoo")

UNLESS_SAID = ("trainer.accelerator=auto", "trainer.devices=1", "trainer.num_nodes=1", "trainer.strategy=auto")


def evaluate(place: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Test a checkpoint; returns what `--json` prints. The trainer of training is not taken over unless overridden."""
    path = checkpoints.locate(place)
    recipe, task = restore(path, [*UNLESS_SAID, *overrides])
    trainer = build_trainer(recipe, logger=False)
    result: dict[str, Any] = {"recipe": recipe.name, "checkpoint": str(path)}
    data = build_data(recipe)
    result |= _test(trainer, task, data)
    if data.digest is not None:
        result["data"] = f"{recipe.data.name} {data.digest}"
    if recipe.evaluate.resolutions:
        sizes = {str(size): {"size": size} for size in recipe.evaluate.resolutions}
        result["resolutions"] = _sweep(recipe, trainer, task, sizes)
    if recipe.evaluate.lengths:
        result["lengths"] = _sweep(recipe, trainer, task, _lengths(recipe))
    if recipe.evaluate.resolutions or recipe.evaluate.lengths:
        result["figure"] = str(figures.draw(recipe, result, folder.holder(path)))
    return result


def _lengths(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Options of the data for each length: about as many tokens in a batch as in training."""
    options = recipe.data.options
    tokens = options["length"] * options["batch_size"]
    asked = {"stride": recipe.evaluate.stride} if recipe.evaluate.stride else {}
    return {
        str(length): {"length": length, "batch_size": max(1, tokens // length), **asked}
        for length in recipe.evaluate.lengths or ()
    }


def _sweep(
    recipe: Recipe, trainer: L.Trainer, task: Task, changes: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Metrics with options of the data changed; where the model cannot follow, why."""
    found: dict[str, dict[str, Any]] = {}
    for size, options in changes.items():
        try:
            tested = _test(trainer, task, build_data(recipe, **options))
        except Invalid as error:
            found[size] = {"refused": str(error)}
            continue
        found[size] = tested["metrics"] | {key: tested[key] for key in ("positions",) if key in tested}
    return found


def table(result: dict[str, Any]) -> str:
    """The result for people to read."""
    names = list(result["metrics"])
    rows = [("", *names), ("as trained", *(f"{result['metrics'][name]:.4f}" for name in names))]
    swept = {f"{size} x {size}": found for size, found in result.get("resolutions", {}).items()}
    swept |= {f"{length} tokens": found for length, found in result.get("lengths", {}).items()}
    rows += [(title, *(f"{found[name]:.4f}" for name in names)) for title, found in swept.items() if names[0] in found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [f"{title}: refused: {found['refused']}" for title, found in swept.items() if "refused" in found]
    lines.append(f"{result['count']} samples, {result['checkpoint']}")
    if "figure" in result:
        lines.append(f"figure: {result['figure']}")
    return "\n".join(lines)


def _test(trainer: L.Trainer, task: Task, data: Source) -> dict[str, Any]:
    """count, metrics, and where the task tells it, the loss by position."""
    data.adopt(task.samples)
    (metrics,) = trainer.test(task, datamodule=data, verbose=False)
    told = {"count": data.count("test"), "metrics": {name: float(value) for name, value in metrics.items()}}
    positions = getattr(task, "positions", None)
    return told | ({"positions": positions} if positions else {})
