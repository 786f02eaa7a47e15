"""`zoo predict`: what a trained model says of files and folders."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from zoo.config import Recipe
from zoo.data.base import Given
from zoo.data.spec import ImageSpec, TextClassificationSpec
from zoo.errors import ConfigIssue, DataError, OptionError, RecipeError
from zoo.evaluation.evaluate import UNLESS_SAID
from zoo.evaluation.generate import device
from zoo.run import checkpoint
from zoo.run.build import build_data
from zoo.run.callbacks.progress import QUIET, clock
from zoo.run.load import restore
from zoo.tasks.base import Task
from zoo.tasks.causal_lm import CausalLM
from zoo.tasks.classification import Classification


class Classified:
    """The `top` likeliest classes of each file, by their names where the data of training had them."""

    def __init__(self, task: Classification, top: int) -> None:
        assert isinstance(task.samples, ImageSpec | TextClassificationSpec)
        self.task, self.top = task, min(top, task.samples.classes)
        self.labels: Sequence[str | int] = task.samples.names or range(task.samples.classes)

    def say(self, batches: Iterable[Given]) -> Iterator[dict[str, Any]]:
        """{path, label, probability, top: [{label, probability}, ...]} of each file."""
        for given in batches:
            logits = self.task(given.batch.to(self.task.device))
            shares, classes = logits.float().softmax(-1).topk(self.top)
            for path, row, numbers in zip(given.paths, shares, classes, strict=True):
                yield {"path": str(path), **(top := self._top(row, numbers))[0], "top": top}

    def _top(self, shares: Tensor, classes: Tensor) -> list[dict[str, Any]]:
        pairs = zip(classes.tolist(), shares.tolist(), strict=True)
        return [{"label": self.labels[number], "probability": share} for number, share in pairs]

    def lines(self, one: dict[str, Any], width: int, first: bool) -> list[str]:
        """The path, then its classes, the likeliest first."""
        told = (f"{each['label']} {each['probability']:.4f}" for each in one["top"])
        return ["  ".join([one["path"].ljust(width), *told])]


class Measured:
    """The loss of each text in nats for each token, its perplexity, and bits per character or byte."""

    def __init__(self, task: CausalLM) -> None:
        self.task = task

    def say(self, batches: Iterable[Given]) -> Iterator[dict[str, Any]]:
        """{path, tokens, loss, perplexity, accuracy, bits_per_...} of each text; `tokens` are those that were asked."""
        for (path,), windows in groupby(batches, key=lambda given: given.paths):
            self.task.on_test_epoch_start()  # each text is a test of its own
            for number, given in enumerate(windows):
                self.task.test_step(move_data_to_device(given.batch, self.task.device), number)
            counts = self.task.test_tally.compute()
            measures = {**counts.measures(), **counts.bits(self.task.unit)}
            found = {name: float(value) for name, value in measures.items()}
            yield {"path": str(path), "tokens": int(counts.targets.sum()), **found}

    def lines(self, one: dict[str, Any], width: int, first: bool) -> list[str]:
        """The path, then its numbers below their names."""
        path, tokens, *measures = one.values()
        titles = [title.replace("_per_", "/") for title in one]
        row = [path.ljust(width), f"{tokens:>9}", *(f"{number:.4f}" for number in measures)]
        sizes = [max(width, 4), 9, *(max(len(title), 9) for title in titles[2:])]
        rows = [[titles[0].ljust(sizes[0]), *titles[1:]], row] if first else [row]
        return [
            "  ".join(cell.rjust(size) for cell, size in zip(each, sizes, strict=True))
            for each in rows
        ]


TEXTS = (".txt",)


class Found(NamedTuple):
    """Files, each once, and what is wrong with the folders that could not be looked into."""

    paths: list[Path]
    faults: dict[Path, str]


def parted(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Paths and overrides: what has a `=` or begins with `~`, and is no path that exists, is an override."""
    overrides = [
        word
        for word in words
        if ("=" in word or word.startswith("~")) and not os.path.lexists(word)
    ]
    return [Path(word) for word in words if word not in overrides], overrides


def images() -> frozenset[str]:
    """The suffixes of images that can be read."""
    from PIL import Image

    Image.init()
    return frozenset(suffix for suffix, kind in Image.EXTENSION.items() if kind in Image.OPEN)


def found(places: Iterable[Path], suffixes: Iterable[str]) -> Found:
    """Files as they are named, and those of folders with one of `suffixes`, sorted. Raises DataError where there is none.

    Names that begin with a dot are left out of folders.
    """
    known, faults = frozenset(suffixes), dict[Path, str]()
    paths = dict.fromkeys(path for place in places for path in _files(place, known, faults))
    return Found([*paths], faults)


def _files(place: Path, suffixes: frozenset[str], faults: dict[Path, str]) -> Iterator[Path]:
    if not place.exists():
        raise DataError(f"{place}: no such file or folder")
    if not place.is_dir():
        yield place
        return
    below, unseen = [*_below(place, suffixes, faults)], len(faults)
    if not below and not unseen:
        kinds = ", ".join(sorted(suffixes)) if len(suffixes) < 5 else "that of an image"
        raise DataError(f"{place}: there is no file to read in it; its name must end with {kinds}")
    yield from below


def _below(folder: Path, suffixes: frozenset[str], faults: dict[Path, str]) -> Iterator[Path]:
    def note(error: OSError) -> None:
        faults[Path(error.filename)] = error.strerror or str(error)

    for place, folders, names in os.walk(folder, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and path.suffix.lower() in suffixes and path.is_file():
                yield path


log = logging.getLogger("zoo")


def predict(place: str, words: Sequence[str], quiet: bool = False) -> dict[str, Any]:
    """What the model of a checkpoint says of files; unless `quiet` each has its line on standard output.

    The data that it was trained on need not be there. Raises DataError where no file could be read.
    """
    places, overrides = parted(words)
    if not places:
        raise RecipeError(
            ConfigIssue(
                "command line", "", "nothing to predict", "name a file or a folder after the run"
            )
        )
    path = checkpoint.locate(place)
    recipe, task = restore(path, [*UNLESS_SAID, *map(_override, overrides)])
    speaker = _speaker(recipe, task)
    asked = found(places, images() if isinstance(task.samples, ImageSpec) else TEXTS)
    said, faults = _said(recipe, task, speaker, asked, (lambda line: None) if quiet else _print)
    if not said:
        raise DataError(f"{_told(faults)[0]}; none of {len(faults)} could be read")
    skipped = [{"path": str(path), "problem": problem} for path, problem in faults.items()]
    return {"recipe": recipe.name, "checkpoint": str(path), "predictions": said, "skipped": skipped}


def _override(word: str) -> str:
    """`top=3` as `predict.top=3`."""
    return word if "." in word.partition("=")[0] else f"predict.{word}"


def _speaker(recipe: Recipe, task: Task) -> Classified | Measured:
    if isinstance(task, Classification):
        return Classified(task, recipe.predict.top)
    if isinstance(task, CausalLM):
        return Measured(task)
    told = f"{recipe.task.name} says nothing of a file by itself"
    raise RecipeError(
        recipe.make_issue(
            "task.name", told, "zoo eval measures it, zoo generate lets a decoder write"
        )
    )


def _said(
    recipe: Recipe,
    task: Task,
    speaker: Classified | Measured,
    asked: Found,
    show: Callable[[str], None],
) -> tuple[list[dict[str, Any]], dict[Path, str]]:
    """What is said of each file that can be read, shown as soon as it is known, and what is wrong with the others."""
    faults = dict(asked.faults)
    for told in _told(faults):
        log.warning("skipped %s", told)
    try:
        batches = build_data(recipe).read(asked.paths, task.samples)
    except OptionError as error:
        raise RecipeError(recipe.make_issue(f"data.{error.key}", str(error))) from None
    task.to(device(recipe))
    width = max((len(str(path)) for path in asked.paths), default=0)
    said: list[dict[str, Any]] = []
    try:
        with torch.inference_mode():
            for one in speaker.say(_sound(batches, faults, len(asked.paths))):
                for line in speaker.lines(one, width, first=not said):
                    show(line)
                said.append(one)
    except OptionError as error:  # a size or a length that the model cannot follow
        raise RecipeError(recipe.make_issue(f"model.{error.key}", str(error))) from None
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
            log.info(
                "%d of %d files, %s left",
                len(seen),
                count,
                clock((now - began) * (count / len(seen) - 1)),
            )


def _print(line: str) -> None:
    """A line with the name of a file, which need not be text."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _told(faults: dict[Path, str]) -> list[str]:
    return [f"{path}: {problem}" for path, problem in faults.items()]
