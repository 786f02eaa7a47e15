"""What a run directory keeps that a report draws: the metrics of training, and an evaluation at other sizes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from zoo.diagnostics.report import trends
from zoo.errors import DataError
from zoo.panels import Curves
from zoo.recipe import Recipe
from zoo.run import folder, metrics
from zoo.samples import Images, Samples
from zoo.verbs.evaluate import KEPT

log = logging.getLogger("zoo")


class Kept(NamedTuple):
    """What lies beside a checkpoint."""

    recipe: str  # as YAML
    training: tuple[Curves, ...]
    extrapolation: tuple[Curves, ...]


def beside(checkpoint: Path, found: Recipe, samples: Samples) -> Kept:
    """None of the curves where nothing is kept. Raises DataError where it cannot be read.

    The recipe is that of the run directory, else the one found in the checkpoint, which has no trainer of training.
    """
    run = folder.holder(checkpoint)
    unit = "patches" if isinstance(samples, Images) else "tokens"
    trained = samples.height if isinstance(samples, Images) else samples.length
    return Kept(
        recipe=_recipe(run / "recipe.yaml", checkpoint, found),
        training=_training(run / "metrics.csv", unit),
        extrapolation=_extrapolation(run / KEPT, checkpoint, trained),
    )


def _recipe(file: Path, checkpoint: Path, found: Recipe) -> str:
    inside = checkpoint.resolve().parent.name == "checkpoints"
    with _readable(file):
        return file.read_text(encoding="utf-8") if inside and file.is_file() else found.yaml()


def _training(file: Path, unit: str) -> tuple[Curves, ...]:
    with _readable(file):
        curves = trends.training(metrics.read(file)[1], unit) if file.exists() else ()
        return _told(file, curves)


def _extrapolation(file: Path, checkpoint: Path, trained: int) -> tuple[Curves, ...]:
    """Of this very checkpoint."""
    with _readable(file):
        if not file.exists():
            return ()
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if Path(result["checkpoint"]).name != checkpoint.name:
            log.info("%s is of %s, so it is left out", file, result["checkpoint"])
            return ()
        return _told(file, trends.extrapolation(result, trained))


def _told(file: Path, curves: tuple[Curves, ...]) -> tuple[Curves, ...]:
    if not curves and file.exists():
        log.info("%s: nothing in it can be drawn, so it is left out", file)
    return curves


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{file}: cannot be read, {error.strerror or error}") from None
    except KeyError as error:
        raise _strange(file, f"it has no key {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _strange(file, str(error)[:80]) from None


def _strange(file: Path, problem: str) -> DataError:
    return DataError(f"{file}: not as zoo writes it, {problem}; remove it, or have it written anew")
