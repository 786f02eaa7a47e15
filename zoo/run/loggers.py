"""Where metrics go: metrics.csv always, and the trackers that a recipe names."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.util import find_spec
from pathlib import Path

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from zoo.errors import RecipeError
from zoo.recipe import Recipe
from zoo.run.metrics import MetricsFile


def check(recipe: Recipe) -> None:
    """Raises RecipeError where a tracker that the recipe names is not installed."""
    absent = [name for name in recipe.trainer.trackers if find_spec(name) is None]
    if absent:
        remedy = "pip install {}, or leave it out"
        raise RecipeError(
            *(recipe.fault("trainer.logger", f"{name} is not installed", remedy.format(name)) for name in absent)
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
        place, files = f"sqlite:///{run.resolve() / 'mlflow.db'}", (run / "mlflow").resolve().as_uri()
    return MLFlowLogger(experiment_name=recipe.name, run_name=run.name, tracking_uri=place, artifact_location=files)
