"""Run the part of a training or an evaluation that belongs to a process started by zoo.

`python -m zoo.cli.worker FOLDER` is one of several processes of a training or an evaluation: it
reads the job in the folder, and rank 0 writes its result there. `run_cell` is a cell of a
comparison.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zoo.cli.imports import defer_imports
from zoo.cli.main import is_secondary_process, main
from zoo.config import Recipe, from_plain

# cells are forked from a process that imports this module first, and torchmetrics after it
defer_imports()


def _fit(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    from zoo.run.fit import fit

    run = options["run"] and Path(options["run"])
    return fit(recipe, **{**options, "run": run}).to_dict()


def _evaluate(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    from zoo.evaluation.evaluate import evaluate_task
    from zoo.run.checkpoint import read
    from zoo.run.load import restore_content

    path = Path(options["checkpoint"])
    experiment, task = restore_content(read(path), path, recipe)
    return evaluate_task(task, experiment, path, options["to"]).to_dict()


TASKS: Mapping[str, Callable[[Recipe, Mapping[str, Any]], dict[str, Any]]] = MappingProxyType(
    {"fit": _fit, "evaluate": _evaluate}
)


def work(folder: Path) -> None:
    """Do the job of a folder together with the other processes."""
    from zoo.run.processes import JOB, RESULT
    from zoo.utils import write_json

    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    recipe = from_plain(job["recipe"], origin=f"recipe {job['name']}", name=job["name"])
    result = TASKS[job["task"]](recipe, job["options"])
    # the results of all ranks are equal
    if not is_secondary_process():
        write_json(result, folder / RESULT)


def run_cell(run: Path, work: str) -> int:
    """Do the work of a cell, and return the exit code of its process.

    Args:
        run: The run directory.
        work: What is done there, `module:function`.
    """
    module, _, name = work.partition(":")
    # imported within `main`, which explains what is missing
    return main(work=lambda: getattr(import_module(module), name)(run))


if __name__ == "__main__":
    sys.exit(main(work=partial(work, Path(sys.argv[1]))))
