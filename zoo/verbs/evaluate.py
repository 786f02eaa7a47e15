"""`zoo eval`: measure a checkpoint, as it was trained and at other resolutions or lengths."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L

from zoo.build import build_data, build_trainer
from zoo.data.source import Source
from zoo.errors import Invalid, RecipeError
from zoo.loading import restore
from zoo.recipe import Recipe
from zoo.run import checkpoints, folder, storage
from zoo.run.processes import Processes
from zoo.run.progress import Tested
from zoo.run.stopping import stoppable
from zoo.samples import Images, Passages, Samples, Text
from zoo.tasks.task import Task
from zoo.verbs import figures
from zoo.verbs.together import together

log = logging.getLogger("zoo")

KEPT = "evaluation.json"  # beside the figure of an evaluation at several sizes, what `--json` prints
UNLESS_SAID = ("trainer.accelerator=auto", "trainer.devices=1", "trainer.num_nodes=1", "trainer.strategy=auto")


def evaluate(place: str, overrides: Sequence[str], words: Sequence[str] = ()) -> dict[str, Any] | None:
    """Test a checkpoint; returns what `--json` prints, in the process that speaks to the user.

    The trainer of training is not taken over unless overridden. `words` as in `fit`.
    """
    path = checkpoints.locate(place)
    recipe, task = restore(path, [*UNLESS_SAID, *overrides])
    processes = together(recipe, words or ["eval", place, *overrides])
    result = None if processes is None else _measured(path, recipe, task, processes)
    return result if processes and processes.first else None


def _measured(path: Path, recipe: Recipe, task: Task, processes: Processes) -> dict[str, Any]:
    trainer = build_trainer(recipe, logger=False, callbacks=[Tested()])
    data = build_data(recipe)
    result: dict[str, Any] = {"recipe": recipe.name, "checkpoint": str(path), "data": data.title}
    try:
        result |= tested(trainer, task, data)
    except Invalid as error:
        raise RecipeError(recipe.fault(f"data.{error.key}" if error.key else "data", str(error))) from None
    if recipe.evaluate.resolutions:
        sizes = {str(size): {"size": size} for size in recipe.evaluate.resolutions}
        result["resolutions"] = _sweep(recipe, trainer, task, sizes)
    if recipe.evaluate.lengths:
        result["lengths"] = _sweep(recipe, trainer, task, _lengths(recipe))
    if processes.first and (recipe.evaluate.resolutions or recipe.evaluate.lengths):
        result["size"] = recipe.data.options["size" if isinstance(task.samples, Images) else "length"]
        trained = result["size"] if isinstance(task.samples, Images) else task.samples.length
        result["figure"] = str(figures.draw(recipe, result, folder.holder(path), trained))
        kept = io.BytesIO((json.dumps(result, indent=2) + "\n").encode())
        storage.write(kept, folder.holder(path) / KEPT)
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
            measured = tested(trainer, task, build_data(recipe, **options))
        except Invalid as error:
            found[size] = {"refused": str(error)}
            continue
        found[size] = measured["metrics"] | {key: measured[key] for key in ("positions",) if key in measured}
    return found


def table(result: dict[str, Any]) -> str:
    """The result for people to read."""
    names = list(result["metrics"])
    rows = [("", *names), ("test", *(f"{result['metrics'][name]:.4f}" for name in names))]
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


def tested(trainer: L.Trainer, task: Task, data: Source) -> dict[str, Any]:
    """count, metrics, and where the task tells it, the loss by position. Raises Stopped where a signal comes."""
    adopt(task, data)
    with stoppable(trainer):
        (metrics,) = trainer.test(task, datamodule=data, verbose=False)
    told = {"count": data.count("test"), "metrics": {name: float(value) for name, value in metrics.items()}}
    positions = getattr(task, "positions", None)
    if not positions or not isinstance(data.samples, Text):
        return told
    return told | {"positions": positions[: data.samples.length]}  # a task counts to the length of training at least


def adopt(task: Task, data: Source) -> None:
    """Raises Invalid where data cannot be read as what the model was trained on."""
    data.adopt(task.samples)
    known, found = task.samples, data.samples
    if isinstance(known, Images):
        _refuse_others(known, found, "channels", "classes")
        return
    vocabulary = None if isinstance(found, Images) else found.vocabulary
    if vocabulary is None or vocabulary.plain() != known.vocabulary.plain():
        told = f"{type(data).__name__.lower()} does not yield the vocabulary that the model was trained with"
        raise Invalid("name", f"{told}; measure on text")
    _refuse_others(known, found, *(("classes",) if isinstance(known, Passages) else ()))


def _refuse_others(known: Samples, found: Samples, *keys: str) -> None:
    """Raises Invalid where samples are not such as the model was trained on; their size may be another."""
    if type(found) is not type(known):
        raise Invalid("name", f"the model reads {type(known).__name__.lower()}")
    for key in keys:
        if getattr(found, key) != getattr(known, key):
            raise Invalid(key, f"{getattr(found, key)} {key}, the model was trained with {getattr(known, key)}")
