"""Find the checkpoint that a run resumes from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from zoo import config
from zoo.config import Recipe
from zoo.errors import CheckpointError, RecipeError, Setting
from zoo.run import checkpoint, run_dir
from zoo.run.callbacks.ema import LIVE

log = logging.getLogger("zoo")

COMPARED = ("seed", "init_from", "model", "data", "task", "optim")  # sections that must be equal


class ResumePoint(NamedTuple):
    """The point where a run resumes; empty for one that starts anew.

    Attributes:
        checkpoint: The checkpoint to resume from.
        run: The run directory to continue in; None for a new one.
        step: Optimizer steps done.
        threads: CPU threads of the process that saved it; None if it does not say.
    """

    checkpoint: Path | None = None
    run: Path | None = None
    step: int = 0
    threads: int | None = None

    @classmethod
    def describe(cls, path: Path, run: Path | None, content: Mapping[str, Any]) -> Self:
        """Return the point of a checkpoint with some content."""
        return cls(path, run, content["global_step"], content.get("num_threads"))


def find_resume_point(recipe: Recipe, folder: Path | None, resume: str) -> ResumePoint:
    """Find the checkpoint that a run resumes from.

    Args:
        recipe: The recipe of the run.
        folder: The run directory that the user chose.
        resume: "auto", "last", "best", or a run directory or checkpoint.

    Returns:
        The resume point, empty where the run starts anew.

    Raises:
        CheckpointError: There are checkpoints, but none that this recipe can resume from.
    """
    home = folder or run_dir.find_latest(recipe)
    if resume == "auto":
        return _find_newest(recipe, home, must_fit=folder is not None)

    named = home / resume if resume in ("last", "best") else Path(resume)
    last = named / "checkpoints" / "last.ckpt"
    if last.is_file():
        content = _read_compatible(recipe, last)
        return ResumePoint.describe(last, None if folder else named, content)
    path = checkpoint.locate(named)
    return ResumePoint.describe(path, None, _read_compatible(recipe, path))


def _read_compatible(recipe: Recipe, path: Path) -> dict[str, Any]:
    """Read a checkpoint that a recipe can resume from. Raises CheckpointError."""
    content = checkpoint.read(path)
    # converted and exported weights have no state of the optimizer
    if "loops" not in content:
        raise CheckpointError(f"{path}: it holds weights, but no training state to resume")
    # compared with defaults filled in, since later versions add keys
    ours, theirs = recipe.plain(), _complete_recipe(content["zoo"], path)
    different = [key for key in COMPARED if ours[key] != theirs.get(key)]
    # a trial of one batch is no run to continue, nor does it continue one
    if recipe.trainer.fast_dev_run != theirs["trainer"].get("fast_dev_run", False):
        different.append("trainer.fast_dev_run")
    if different:
        raise CheckpointError(f"{path}: of another recipe, it differs in {', '.join(different)}")
    epoch, most = content["epoch"] + 1, recipe.trainer.max_epochs
    # Lightning refuses this too, but only after all is built, and without a remedy
    if most is not None and epoch > most + 1:
        problem = f"{path}: it was saved in epoch {epoch}, after trainer.max_epochs={most}"
        remedy = f"allow {epoch} or more, or set "
        raise CheckpointError(f"{problem}; {remedy}", Setting("resume", "never"))
    if LIVE in content and recipe.trainer.ema_decay is None:
        problem = "its weights are an average, which this recipe does not keep"
        raise CheckpointError(f"{path}: {problem}; set trainer.ema_decay")
    return content


def _complete_recipe(metadata: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return a stored recipe with the defaults of keys that are newer than the checkpoint."""
    stored: Mapping[str, Any] = metadata["recipe"]
    try:
        return config.from_plain(stored, origin=str(path), name=metadata["name"]).plain()
    except RecipeError:
        # of a plug-in that is not there: it differs anyway
        return stored


def _find_newest(recipe: Recipe, home: Path, must_fit: bool) -> ResumePoint:
    paths = sorted((home / "checkpoints").glob("*.ckpt"))
    if not paths:
        log.info("No checkpoint to resume from in %s: starting anew", home)
        return ResumePoint()

    newest = _choose_furthest(paths)
    try:
        content = _read_compatible(recipe, newest)
    except CheckpointError as error:
        # a directory that the user named may not silently start anew; `latest` may be of an older
        # recipe
        if must_fit:
            raise
        log.info("%s; starting anew", error)
        return ResumePoint()
    if newest.stem != "last":
        # `last` is missing or damaged
        checkpoint.copy(newest, newest.with_name("last.ckpt"))
    return ResumePoint.describe(newest, home, content)


def _choose_furthest(paths: list[Path]) -> Path:
    """Return the intact checkpoint that has trained longest, of equals `last`; log the others."""
    intact: list[tuple[int, bool, Path]] = []
    problems: list[str] = []
    for path in paths:
        try:
            step = checkpoint.read(path).get("global_step", -1)
            # compared in this order: steps, then `last` before its equals
            intact.append((step, path.stem == "last", path))
        except CheckpointError as error:
            problems.append(str(error))
    if not intact:
        raise CheckpointError("\n  ".join(["no checkpoint of the run is intact:", *problems]))
    for problem in problems:
        log.warning("Skipped %s", problem)
    return max(intact)[2]
