"""`zoo eval`: measure a checkpoint, as it was trained, at other sizes, by other rules and on variants of its data."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from zoo.build import build_data, build_trainer
from zoo.errors import Invalid, RecipeError, Stopped
from zoo.loading import restore
from zoo.recipe import Recipe
from zoo.recipe.sizes import titled
from zoo.run import checkpoints, folder, storage
from zoo.run.processes import Processes
from zoo.run.progress import Tested
from zoo.samples import Images, Samples
from zoo.tasks.task import Task
from zoo.verbs import figures
from zoo.verbs.sweeps import Swept, swept
from zoo.verbs.tested import tested
from zoo.verbs.together import together

KEPT = "evaluation.json"  # beside the figure of an evaluation of more than the data as they are, what `--json` prints
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
    weights = task.state_dict() if recipe.evaluate.rules else {}  # now: a strategy may keep them in shards later
    data = build_data(recipe)
    result: dict[str, Any] = {"recipe": recipe.name, "checkpoint": str(path), "data": data.title}
    try:
        result |= tested(trainer, task, data)
    except Invalid as error:
        raise RecipeError(recipe.fault(f"data.{error.key}" if error.key else "data", str(error))) from None
    known = {"size": _size(data.samples), "trained": _size(task.samples)} | (
        {"shown": data.shown} if data.shown else {}
    )
    run, parts = folder.holder(path), list[Swept]()

    def keep(found: Swept) -> None:
        parts.append(found)
        if processes.first:
            write({**result, **found, **known, "partial": True}, run / KEPT)

    try:
        found = swept(recipe, trainer, task, weights, keep)
    except Stopped as stopped:
        if not parts:
            raise
        told = f"stopped by {Signals(stopped.code - 128).name} while testing; what was measured before stands in {run / KEPT}"
        raise Stopped(stopped.code - 128, told) from None
    if processes.first and found:
        result |= found | known
        write(result, run / KEPT)  # whatever becomes of the figure
        result["figure"] = str(figures.draw(recipe, result, run, result["trained"]))
        write(result, run / KEPT)
    return result


def write(result: Mapping[str, Any], file: Path) -> None:
    storage.write(io.BytesIO((json.dumps(result, indent=2) + "\n").encode()), file)


def _size(samples: Samples) -> int | str:
    """A number of tokens or pixels, or HxW where images are no squares."""
    if not isinstance(samples, Images):
        return samples.length
    return samples.height if samples.height == samples.width else titled((samples.height, samples.width))
