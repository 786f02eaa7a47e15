"""One of several processes of a training or an evaluation that another process has started.

`python -m zoo.cli.worker FOLDER` reads the job in the folder; rank 0 writes its result there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zoo.cli.main import main
from zoo.config import Recipe, from_plain


def _fit(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any] | None:
    from zoo.run.fit import fit

    run = options["run"] and Path(options["run"])
    result = fit(recipe, **{**options, "run": run})
    return None if result is None else result.to_dict()


def _evaluate(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any] | None:
    from zoo.evaluation.evaluate import evaluate_recipe

    result = evaluate_recipe(recipe, Path(options["checkpoint"]))
    return None if result is None else result.to_dict()


TASKS: Mapping[str, Callable[[Recipe, Mapping[str, Any]], dict[str, Any] | None]] = (
    MappingProxyType({"fit": _fit, "evaluate": _evaluate})
)


def work(folder: Path) -> None:
    """Do the job of a folder together with the other processes."""
    from zoo import files
    from zoo.run.processes import JOB, RESULT

    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    recipe = from_plain(job["recipe"], origin=f"recipe {job['name']}", name=job["name"])
    result = TASKS[job["task"]](recipe, job["options"])
    # only rank 0 has a result
    if result is not None:
        files.write_json(result, folder / RESULT)


if __name__ == "__main__":
    sys.exit(main(work=partial(work, Path(sys.argv[1]))))
