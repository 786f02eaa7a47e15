"""`zoo fit`: train a recipe in a run directory, then test its best checkpoint."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zoo import transfer
from zoo.build import build_data
from zoo.errors import Invalid, RecipeError, ZooError
from zoo.loading import load_recipe
from zoo.recipe import Recipe, from_plain
from zoo.run import folder, loggers, resumption, storage
from zoo.run.log import written
from zoo.run.processes import Processes
from zoo.verbs.together import together
from zoo.verbs.training import train

log = logging.getLogger("zoo")


def fit(
    name: str, overrides: Sequence[str], run_dir: Path | None, resume: str, words: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Train and test; returns what `--json` prints, in the process that speaks to the user.

    Where several processes are wanted and nobody has started them, each of them is `zoo WORDS`, by default this very call.
    """
    recipe = load_recipe(name, overrides)
    _locate(recipe)
    place = [] if run_dir is None else ["--run-dir", str(run_dir)]
    processes = together(recipe, words or ["fit", name, *overrides, *place, "--resume", resume])
    if processes is None:
        return None
    plain, run, start, donor = processes.agreed(lambda: _prepared(recipe, run_dir, resume, processes.count))
    recipe = from_plain(plain, origin=recipe.name, name=recipe.name)
    with written(run / "train.log") if processes.first else contextlib.nullcontext(), _told(run, processes):
        result = train(recipe, run, start, donor, processes)
    return result if processes.first else None


def _locate(recipe: Recipe) -> None:
    """Raises DataError or RecipeError where the data is not what the recipe says, before there is a run directory."""
    try:
        build_data(recipe).locate()
    except Invalid as error:
        raise RecipeError(recipe.fault(f"data.{error.key}", str(error))) from None


def _prepared(
    recipe: Recipe, run_dir: Path | None, resume: str, count: int
) -> tuple[dict[str, Any], Path, Path | None, Path | None]:
    """The recipe as plain data, the run directory, and the checkpoint to go on from or that of another to start from."""
    loggers.check(recipe)
    start, run = resumption.find(recipe, run_dir, resume)
    donor = transfer.find(recipe) if start is None else None  # before a run directory is made
    run = run or folder.create(recipe, run_dir, again=resume == "auto", processes=count)
    storage.clear(run)
    return recipe.plain(), run, start, donor


@contextlib.contextmanager
def _told(run: Path, processes: Processes) -> Iterator[None]:
    """Failures of the machine in plain words, and all failures in the log."""
    try:
        yield
    except Exception as error:
        log.debug("failed", exc_info=error)
        good = storage.kept(run / "checkpoints")
        if isinstance(error, OSError) and error.filename is None:  # as of a full disk
            raise ZooError(f"{run}: {error.strerror or error}; {good}") from None
        if processes.lost(error):
            told = f"process {processes.rank} cannot reach another one, which has died or hangs"
            raise ZooError(f"{told}; {good}") from None
        raise
