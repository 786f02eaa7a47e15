"""`zoo diagnose`: a page about what the attention of trained models does, one of them or several side by side."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from zoo import __version__
from zoo.build import build_trainer
from zoo.diagnostics.looking import check
from zoo.diagnostics.report.contents import Report
from zoo.errors import Fault, Invalid, NonFiniteError, RecipeError
from zoo.loading import restore
from zoo.recipe.tree import COMMAND_LINE
from zoo.registry import Count
from zoo.run import checkpoints, folder, storage
from zoo.tasks.task import Task
from zoo.verbs.destination import destination
from zoo.verbs.diagnosed import Subject, Wanted, diagnosed
from zoo.verbs.evaluate import UNLESS_SAID
from zoo.verbs.kept import beside
from zoo.verbs.options import parted, typed
from zoo.verbs.paths import parted as parted_paths

log = logging.getLogger("zoo")


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """What `zoo diagnose` looks at, and where it writes."""

    samples: Count = 4  # the first ones of the test part
    queries: Count = 64  # places to look from at most; class and register tokens come in addition
    layers: tuple[int, ...] | int | None = None  # which to show, from 0; None: all
    to: str | None = None  # the page; None: diagnosis.html in the run directory, or here where there are several runs
    controls: bool = True  # test again with places shuffled, shifted, zeroed and reversed
    limit: Count | None = None  # batches that are tested; None: all

    @property
    def chosen(self) -> tuple[int, ...] | None:
        """`layers` as a list."""
        return (self.layers,) if isinstance(self.layers, int) else self.layers


def diagnose(words: Sequence[str]) -> Path:
    """Write the page of one or several runs, and the same numbers as JSON beside it; returns the page's path."""
    from zoo.diagnostics.page import writing

    report, path = reported(words)
    writing.write(report, path)
    return path


def reported(words: Sequence[str]) -> tuple[Report, Path]:
    """The report of the runs that `words` name, and where it goes. Whatever can be wrong is told before long work begins."""
    places, changes = parted_paths(words)
    told, overrides = parted(changes, [DiagnoseOptions])
    options = DiagnoseOptions(**typed(told, [DiagnoseOptions])[0])
    if not places or "" in words:
        problem = "an empty name" if places else "nothing to diagnose"
        raise RecipeError(Fault(COMMAND_LINE, "", problem, "name a run directory or a checkpoint"))
    subjects = _subjects([checkpoints.locate(place) for place in places], overrides)
    path = destination(options.to, [one.path for one in subjects])
    _check_layers(options, subjects)
    lying = [beside(one.path, one.recipe, one.task.samples) for one in subjects]
    wanted = Wanted(options.samples, options.queries, options.chosen, options.controls, options.limit)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    runs = tuple(diagnosed(one, found, wanted) for one, found in zip(subjects, lying, strict=True))
    return Report(version=__version__, made=made, runs=runs), path


def _subjects(paths: Sequence[Path], overrides: Sequence[str]) -> list[Subject]:
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise RecipeError(Fault(COMMAND_LINE, str(path), "named twice", "name each checkpoint once"))
    loaded = [(path, *restore(path, [*UNLESS_SAID, *overrides])) for path in paths]
    for path, recipe, task in loaded:
        _check_weights(path, task)
        if build_trainer(recipe, logger=False).world_size > 1:
            raise RecipeError(recipe.fault("trainer.devices", "a diagnosis works in one process", "start it in one"))
    names = _names([(recipe.name, path) for path, recipe, _ in loaded])
    return [Subject(name, *one) for name, one in zip(names, loaded, strict=True)]


def _check_weights(path: Path, task: Task) -> None:
    """Raises NonFiniteError where there is nothing to look at but NaN."""
    broken = next((name for name, weight in task.named_parameters() if not weight.isfinite().all()), None)
    if broken is not None:
        good = storage.kept(path.parent, path)
        raise NonFiniteError(f"{path}: {broken} has weights that are infinite or NaN; {good}")


def _names(known: Sequence[tuple[str, Path]]) -> list[str]:
    """The shortest kind of name that tells all apart: the recipe's, with the run directory, with the checkpoint, by number."""
    kinds: list[Callable[[str, Path], str]] = [
        lambda recipe, path: recipe,
        lambda recipe, path: f"{recipe} {folder.holder(path).name}",
        lambda recipe, path: f"{recipe} {folder.holder(path).name} {path.stem}",
    ]
    for kind in kinds:
        names = [kind(*one) for one in known]
        if len(set(names)) == len(names):
            return names
    return [f"{recipe} {number + 1}" for number, (recipe, _) in enumerate(known)]


def _check_layers(options: DiagnoseOptions, subjects: Sequence[Subject]) -> None:
    """Raises RecipeError where a model has no such layer."""
    if options.chosen == ():
        raise RecipeError(Fault(COMMAND_LINE, "layers", "a list of none", "name one at least, or leave it out for all"))
    for subject in subjects:
        try:
            check(subject.task.model, options.chosen)
        except Invalid as error:
            raise RecipeError(Fault(COMMAND_LINE, error.key, f"{subject.name}: {error}")) from None
