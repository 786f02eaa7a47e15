"""Where metrics go: metrics.csv always, and the trackers that a recipe names."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import logging
import os
import platform
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from zoo.config import Recipe
from zoo.errors import RecipeError

log = logging.getLogger("zoo")


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """All that is told meanwhile goes to a file too, and what only a developer asks for."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.setLevel(logging.DEBUG)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A full disk is told by the run itself."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def read(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of a file of metrics; a last line that a full disk cut is left out."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(line for line in file if line.endswith("\n"))
        return list(reader.fieldnames or ()), list(reader)


class MetricsFile(Logger):
    """Appends rows; a new metric widens the table. Rows of a resumed run that lie after its checkpoint are dropped."""

    def __init__(self, path: Path, keep_until: int | None = None) -> None:
        super().__init__()
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.columns = ["step", "epoch"]
        if path.is_file():
            columns, rows = read(path)
            self.columns = columns or self.columns
            self.rows = [row for row in rows if keep_until is None or int(row["step"]) < keep_until]
            self._rewrite()

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @property
    def experiment(self) -> None:
        return None

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """The recipe lies beside this file already."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        self.rows.append(row)
        fresh = [name for name in row if name not in self.columns]
        self.columns += fresh
        if fresh or not self.path.exists():
            self._rewrite()
        else:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.columns).writerow(row)

    def _rewrite(self) -> None:
        fresh = self.path.with_suffix(".writing")
        with fresh.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)
        fresh.replace(self.path)


def check(recipe: Recipe) -> None:
    """Raises RecipeError where a tracker that the recipe names is not installed."""
    absent = [name for name in recipe.trainer.trackers if find_spec(name) is None]
    if absent:
        remedy = "pip install {}, or leave it out"
        raise RecipeError(
            *(
                recipe.make_issue("trainer.logger", f"{name} is not installed", remedy.format(name))
                for name in absent
            )
        )


def made(recipe: Recipe, run: Path, keep_until: int) -> list[Logger]:
    """metrics.csv, with what it has from before step `keep_until`, and the trackers, all of which are told the recipe."""
    makers = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
    trackers = [makers[name](recipe, run) for name in dict.fromkeys(recipe.trainer.trackers)]
    for tracker in trackers:
        tracker.log_hyperparams(recipe.plain())
    return [MetricsFile(run / "metrics.csv", keep_until=keep_until), *trackers]


def conclude(kept: list[Logger], recipe: Recipe, metrics: dict[str, float], step: int) -> None:
    """Tell TensorBoard what came of the recipe: a line of its table of hyperparameters."""
    for logger in kept:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(recipe.plain(), metrics, step)
            logger.finalize("success")  # or it would be written some time later


def _tensorboard(recipe: Recipe, run: Path) -> Logger:
    return TensorBoardLogger(run, name="", version="tensorboard", default_hp_metric=False)


def _wandb(recipe: Recipe, run: Path) -> Logger:
    """Nothing leaves the machine unless WANDB_MODE says so; a resumed run goes on under its identity."""
    place = f"{platform.node()} {run.resolve()}"
    return WandbLogger(
        name=run.name,
        id=hashlib.sha256(place.encode()).hexdigest()[:12],
        project=os.environ.get("WANDB_PROJECT", "zoo"),
        save_dir=run,
        offline=os.environ.get("WANDB_MODE", "offline") != "online",
    )


def _mlflow(recipe: Recipe, run: Path) -> Logger:
    """Into the run directory, unless MLFLOW_TRACKING_URI names a place; a database, as MLflow 3.13 refuses plain files."""
    place, files = os.environ.get("MLFLOW_TRACKING_URI"), None
    if not place:
        place, files = (
            f"sqlite:///{run.resolve() / 'mlflow.db'}",
            (run / "mlflow").resolve().as_uri(),
        )
    return MLFlowLogger(
        experiment_name=recipe.name, run_name=run.name, tracking_uri=place, artifact_location=files
    )
