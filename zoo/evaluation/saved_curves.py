"""Read what is beside a checkpoint: the recipe, training curves, an evaluation."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from zoo.config import Recipe
from zoo.data.spec import DataSpec, ImageSpec
from zoo.diagnostics import training_curves
from zoo.errors import DataError
from zoo.evaluation.evaluate import RESULT
from zoo.reporting.panel import Curves
from zoo.run import loggers, run_dir

log = logging.getLogger("zoo")


class Saved(NamedTuple):
    """The recipe as YAML, and curves; no curves where the run directory has none."""

    recipe: str
    training: tuple[Curves, ...]
    extrapolation: tuple[Curves, ...]


def read_saved(checkpoint: Path, stored: Recipe, spec: DataSpec) -> Saved:
    """Read what is beside a checkpoint.

    The recipe is that of the run directory, else the one stored in the checkpoint, which has
    another trainer. Raises DataError where a file cannot be read.
    """
    run = run_dir.find_run_dir(checkpoint)
    is_image = isinstance(spec, ImageSpec)
    unit = "patches" if is_image else "tokens"
    trained = spec.height if isinstance(spec, ImageSpec) else spec.length
    return Saved(
        recipe=_read_recipe(run / "recipe.yaml", checkpoint, stored),
        training=_read_training(run / "metrics.csv", unit),
        extrapolation=_read_extrapolation(run / RESULT, checkpoint, trained),
    )


def _read_recipe(file: Path, checkpoint: Path, stored: Recipe) -> str:
    is_of_run = checkpoint.resolve().parent.name == "checkpoints"
    with _explain_errors(file):
        return file.read_text(encoding="utf-8") if is_of_run and file.is_file() else stored.yaml()


def _read_training(file: Path, unit: str) -> tuple[Curves, ...]:
    if not file.exists():
        return ()
    with _explain_errors(file):
        return _log_if_empty(
            file, training_curves.draw_training_curves(loggers.read(file)[1], unit)
        )


def _read_extrapolation(file: Path, checkpoint: Path, trained: int) -> tuple[Curves, ...]:
    """Read the evaluation of this very checkpoint."""
    if not file.exists():
        return ()
    with _explain_errors(file):
        result = json.loads(file.read_text(encoding="utf-8"))
        if Path(result["checkpoint"]).name != checkpoint.name:
            log.info("%s is of %s, so it is left out", file, result["checkpoint"])
            return ()
        return _log_if_empty(file, training_curves.draw_extrapolation(result, trained))


def _log_if_empty(file: Path, curves: tuple[Curves, ...]) -> tuple[Curves, ...]:
    if not curves:
        log.info("%s: nothing in it can be drawn, so it is left out", file)
    return curves


@contextmanager
def _explain_errors(file: Path) -> Iterator[None]:
    """Raise DataError where a file cannot be read, or is not as zoo writes it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{file}: cannot be read, {error.strerror or error}") from None
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        problem = str(error)[:80]
        if isinstance(error, KeyError):
            problem = f"it has no key {error.args[0]}"
        remedy = "remove it, or have it written anew"
        raise DataError(f"{file}: not as zoo writes it, {problem}; {remedy}") from None
