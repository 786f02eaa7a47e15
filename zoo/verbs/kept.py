"""What a run directory keeps that a report draws: the metrics of training, and an evaluation at other sizes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zoo.diagnostics.report import trends
from zoo.errors import DataError
from zoo.panels import Curves
from zoo.recipe import Recipe
from zoo.run import folder, metrics
from zoo.samples import Images, Samples
from zoo.verbs.evaluate import KEPT

log = logging.getLogger("zoo")


def recipe(checkpoint: Path, found: Recipe) -> str:
    """The recipe of training as YAML: that of the run directory, else the one found, which has no trainer of training."""
    file = folder.holder(checkpoint) / "recipe.yaml"
    inside = checkpoint.resolve().parent.name == "checkpoints"
    return file.read_text(encoding="utf-8") if inside and file.is_file() else found.yaml()


def training(checkpoint: Path, unit: str) -> tuple[Curves, ...]:
    """Curves of what was logged in training, none where it is not there. Raises DataError where it cannot be read."""
    file = folder.holder(checkpoint) / "metrics.csv"
    with _readable(file):
        return trends.training(metrics.read(file)[1], unit) if file.is_file() else ()


def extrapolation(checkpoint: Path, samples: Samples) -> tuple[Curves, ...]:
    """Curves of what `zoo eval` found of this very checkpoint. Raises DataError where it cannot be read."""
    file = folder.holder(checkpoint) / KEPT
    if not file.is_file():
        return ()
    with _readable(file):
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if Path(result["checkpoint"]).name != checkpoint.name:
            log.info("%s is of %s, so it is left out", file, result["checkpoint"])
            return ()
        return trends.extrapolation(result, samples.height if isinstance(samples, Images) else samples.length)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: not as zoo writes it ({str(error)[:80]}); remove it, or have it written anew"
        ) from None
