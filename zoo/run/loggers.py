"""Loggers: metrics.csv always, the trackers that a recipe names, and train.log."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import logging
import os
import platform
from argparse import Namespace
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from zoo.config import Recipe
from zoo.errors import RecipeError
from zoo.run import atomic_io

log = logging.getLogger("zoo")

LARGEST_TABLE = 20  # classes of a confusion matrix that TensorBoard can show


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Write the log within the block to a file too, debug messages included."""
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
        """Ignore a full disk; the run itself reports it."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def read(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return columns and rows of a file of metrics, without a last line that a full disk cut."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(line for line in file if line.endswith("\n"))
        return list(reader.fieldnames or ()), list(reader)


class MetricsFile(Logger):
    """Writes metrics.csv: appends rows; a new metric adds a column.

    Args:
        path: The file. Its rows from before are kept.
        keep_until: Drop rows from this step on, which a resumed run repeats.
    """

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
        """Ignore the recipe, which is beside this file already."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        self.rows.append(row)
        new = [name for name in row if name not in self.columns]
        self.columns += new
        if new or not self.path.exists():
            self._rewrite()
        else:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.columns).writerow(row)

    def _rewrite(self) -> None:
        unfinished = self.path.with_suffix(".writing")
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)
        unfinished.replace(self.path)


def check_installed(recipe: Recipe) -> None:
    """Raise RecipeError where a tracker that the recipe names is not installed."""
    issues = [
        recipe.make_issue(
            "trainer.logger", f"{name} is not installed", f"pip install {name}, or leave it out"
        )
        for name in recipe.trainer.trackers
        if find_spec(name) is None
    ]
    if issues:
        raise RecipeError(*issues)


def build_loggers(recipe: Recipe, run: Path, keep_until: int) -> list[Logger]:
    """Build the loggers: metrics.csv, keeping rows before a step, and trackers with the recipe."""
    builders = {"tensorboard": _build_tensorboard, "wandb": _build_wandb, "mlflow": _build_mlflow}
    trackers = [builders[name](recipe, run) for name in dict.fromkeys(recipe.trainer.trackers)]
    for tracker in trackers:
        tracker.log_hyperparams(recipe.plain())
    return [MetricsFile(run / "metrics.csv", keep_until=keep_until), *trackers]


def log_results(
    loggers: list[Logger], recipe: Recipe, metrics: dict[str, float], step: int
) -> None:
    """Add the results to TensorBoard's table of hyperparameters."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.log_hyperparams(recipe.plain(), metrics, step)
            # write it now
            logger.finalize("success")


def write_confusion(
    loggers: list[Logger],
    path: Path,
    classes: Sequence[str],
    counts: Sequence[Sequence[int]],
    step: int,
) -> None:
    """Write the confusion matrix of a test as JSON, and show a small one in TensorBoard.

    Args:
        loggers: The loggers of the run.
        path: The file.
        classes: The names of the classes, in their order.
        counts: Samples by label (rows) and predicted class (columns).
        step: Optimizer steps done.
    """
    # a row of counts is a line of the file
    rows = ",\n".join(f"    {json.dumps(row)}" for row in counts)
    text = (
        f'{{\n  "rows": "label",\n  "columns": "prediction",\n  "classes": {json.dumps(classes)},\n'
        f'  "counts": [\n{rows}\n  ]\n}}\n'
    )
    atomic_io.write(io.BytesIO(text.encode()), path)
    if len(classes) > LARGEST_TABLE:
        return

    heads = ["label", *classes]
    body = [[name, *map(str, row)] for name, row in zip(classes, counts, strict=True)]
    table = [heads, ["---"] * len(heads), *body]
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            lines = ("| " + " | ".join(cells) + " |" for cells in table)
            logger.experiment.add_text("test/confusion", "\n".join(lines), step)


def _build_tensorboard(recipe: Recipe, run: Path) -> Logger:
    return TensorBoardLogger(run, name="", version="tensorboard", default_hp_metric=False)


def _build_wandb(recipe: Recipe, run: Path) -> Logger:
    """Build W&B's logger: offline unless WANDB_MODE=online; a resumed run keeps its identity."""
    identity = f"{platform.node()} {run.resolve()}"
    return WandbLogger(
        name=run.name,
        id=hashlib.sha256(identity.encode()).hexdigest()[:12],
        project=os.environ.get("WANDB_PROJECT", "zoo"),
        save_dir=run,
        offline=os.environ.get("WANDB_MODE", "offline") != "online",
    )


def _build_mlflow(recipe: Recipe, run: Path) -> Logger:
    """Build MLflow's logger, which writes to MLFLOW_TRACKING_URI, else into the run directory."""
    uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
    if not uri:
        # a database, since MLflow 3.13 refuses plain files
        uri = f"sqlite:///{run.resolve() / 'mlflow.db'}"
        artifacts = (run / "mlflow").resolve().as_uri()
    return MLFlowLogger(
        experiment_name=recipe.name,
        run_name=run.name,
        tracking_uri=uri,
        artifact_location=artifacts,
    )
