"""The process of one cell: train, test and evaluate it in its run directory."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from signal import SIG_IGN, SIGUSR2, signal
from typing import Any

from zoo import config
from zoo.comparison.cell_files import MEASURED, TRIAL, UNTESTED, read_entries, read_run
from zoo.comparison.plan import RECIPES
from zoo.errors import DataError, NonFiniteError
from zoo.evaluation.evaluate import evaluate
from zoo.launch.executor import PATIENCE, STATE, make_run_dir, write_state
from zoo.run import run_dir
from zoo.run.callbacks.manifest import END, START
from zoo.run.fit import fit
from zoo.run.load import load_recipe
from zoo.run.loggers import group_runs
from zoo.utils import read_object, write_json

log = logging.getLogger("zoo")

# a file, since cells may run on another machine, in a queue
DEADLINE = ".until.json"
WORK = "zoo.comparison.cell:run_cell"
"""What the process of a cell does."""


def run_cell(run: Path) -> None:
    """Run the remaining steps of a cell: training, then evaluation.

    Args:
        run: The run directory, in the folder of the comparison.
    """
    # SLURM sends it to all processes of a job whose time is over; its executor asks a cell to save
    signal(SIGUSR2, SIG_IGN)
    path = run.parent.parent / RECIPES / f"{run.name}.yaml"
    message = "another process is working on this cell"
    with run_dir.lock(make_run_dir(run), message, PATIENCE):
        if is_time_over(run.parent.parent):
            # what has begun keeps what it has saved
            write_state(run, "stopped" if (run / START).exists() else "waiting")
            return
        (run / STATE).unlink(missing_ok=True)
        with group_runs(run.parent.parent.resolve().name):
            train_cell(path, run, is_tested=not (run / UNTESTED).exists())


def train_cell(path: Path, run: Path, *, is_tested: bool) -> None:
    """Run the remaining steps of a cell or trial: training, then tests unless it is a trial.

    Args:
        path: Its recipe.
        run: Its run directory.
        is_tested: Whether test samples are read.
    """
    if not is_tested:
        _run_trial(path, run)
        return
    if not os.path.lexists(run / END):
        fit(config.load(path), run, "auto")
    # a damaged one would leave a cell without results that counts as done
    read_run(run)
    recipe = load_recipe(path)
    conditions = recipe.evaluate
    if conditions.resolutions or conditions.lengths or conditions.data_variants:
        measured = evaluate(run, {"trainer.accelerator": recipe.trainer.accelerator})
        write_json(measured.to_dict() if measured else {}, run / MEASURED)
    write_state(run, "done")


def write_deadline(folder: Path, until: float | None) -> None:
    """Set the time, in seconds since 1970, after which no cell of an output folder begins."""
    if until is None:
        (folder / DEADLINE).unlink(missing_ok=True)
    else:
        write_json({"until": until}, folder / DEADLINE)


def is_time_over(folder: Path) -> bool:
    """Return whether no cell of an output folder may begin any more."""
    path, message = folder / DEADLINE, "holds no time"
    if not os.path.lexists(path):
        return False
    until = read_object(path, message).get("until")
    if isinstance(until, bool) or not isinstance(until, int | float):
        raise DataError(f"{path}: {message}; remove it, and no cell waits")
    return time.time() > until


def _run_trial(path: Path, run: Path) -> None:
    """Train one trial and write its best validation metric; no test sample is read."""
    if not read_entries(run, TRIAL)[1]:
        outcome: dict[str, Any] = {"monitor": "", "mode": "", "best": None}
        try:
            result = fit(config.load(path), run, "auto", is_tested=False)
        except NonFiniteError as error:
            # a setting that cannot be trained with is a finding too
            log.info("non-finite: %s", error)
        else:
            outcome = {
                key: getattr(result, key) for key in (*outcome, "minutes", "processor_minutes")
            }
        write_json(outcome, run / TRIAL)
    write_state(run, "done")
