"""`zoo predict`: what a trained model says of files and folders."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.build import build_data
from zoo.data.given import Given
from zoo.errors import DataError, Fault, Invalid, RecipeError
from zoo.loading import restore
from zoo.recipe import Recipe
from zoo.run import checkpoints
from zoo.run.progress import QUIET, clock
from zoo.samples import Images
from zoo.tasks.classify import Classify
from zoo.tasks.predict import Predict
from zoo.tasks.task import Task
from zoo.verbs.classified import Classified
from zoo.verbs.device import device
from zoo.verbs.evaluate import UNLESS_SAID
from zoo.verbs.measured import Measured
from zoo.verbs.paths import TEXTS, Found, found, images, parted

log = logging.getLogger("zoo")


def predict(place: str, words: Sequence[str], quiet: bool = False) -> dict[str, Any]:
    """What the model of a checkpoint says of files; unless `quiet` each has its line on standard output.

    The data that it was trained on need not be there. Raises DataError where no file could be read.
    """
    places, overrides = parted(words)
    if not places:
        raise RecipeError(Fault("command line", "", "nothing to predict", "name a file or a folder after the run"))
    path = checkpoints.locate(place)
    recipe, task = restore(path, [*UNLESS_SAID, *map(_override, overrides)])
    speaker = _speaker(recipe, task)
    asked = found(places, images() if isinstance(task.samples, Images) else TEXTS)
    said, faults = _said(recipe, task, speaker, asked, (lambda line: None) if quiet else _print)
    if not said:
        raise DataError(f"{_told(faults)[0]}; none of {len(faults)} could be read")
    skipped = [{"path": str(path), "problem": problem} for path, problem in faults.items()]
    return {"recipe": recipe.name, "checkpoint": str(path), "predictions": said, "skipped": skipped}


def _override(word: str) -> str:
    """`top=3` as `predict.top=3`."""
    return word if "." in word.partition("=")[0] else f"predict.{word}"


def _speaker(recipe: Recipe, task: Task) -> Classified | Measured:
    if isinstance(task, Classify):
        return Classified(task, recipe.predict.top)
    if isinstance(task, Predict):
        return Measured(task)
    told = f"{recipe.task.name} says nothing of a file by itself"
    raise RecipeError(recipe.fault("task.name", told, "zoo eval measures it, zoo generate lets a decoder write"))


def _said(
    recipe: Recipe, task: Task, speaker: Classified | Measured, asked: Found, show: Callable[[str], None]
) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """What is said of each file that can be read, shown as soon as it is known, and what is wrong with the others."""
    faults = dict(asked.faults)
    for told in _told(faults):
        log.warning("skipped %s", told)
    try:
        batches = build_data(recipe).read(asked.paths, task.samples)
    except Invalid as error:
        raise RecipeError(recipe.fault(f"data.{error.key}", str(error))) from None
    task.to(device(recipe))
    width = max((len(str(path)) for path in asked.paths), default=0)
    said: list[dict[str, Any]] = []
    try:
        with torch.inference_mode():
            for one in speaker.say(_sound(batches, faults, len(asked.paths))):
                for line in speaker.lines(one, width, first=not said):
                    show(line)
                said.append(one)
    except Invalid as error:  # a size or a length that the model cannot follow
        raise RecipeError(recipe.fault(f"model.{error.key}", str(error))) from None
    return said, faults


def _sound(batches: Iterable[Given], faults: dict[Path, str], count: int) -> Iterator[Given]:
    """Batches of what could be read; tells and notes what could not, and now and then how far it is."""
    began = spoken = time.monotonic()
    seen: set[Path] = set()
    for given in batches:
        faults |= given.faults
        for told in _told(given.faults):
            log.warning("skipped %s", told)
        if given.paths:
            yield given
        seen |= {*given.paths, *given.faults}
        if (now := time.monotonic()) - spoken > QUIET:
            spoken = now
            log.info("%d of %d files, %s left", len(seen), count, clock((now - began) * (count / len(seen) - 1)))


def _print(line: str) -> None:
    """A line with the name of a file, which need not be text."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _told(faults: dict[Path, str]) -> list[str]:
    return [f"{path}: {problem}" for path, problem in faults.items()]
