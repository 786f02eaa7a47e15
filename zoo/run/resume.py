"""Which checkpoint a run goes on from, and where."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from zoo.config import Recipe
from zoo.errors import CheckpointError
from zoo.run import atomic_io, checkpoint
from zoo.run import run_dir as folder
from zoo.run.callbacks.ema import LIVE

log = logging.getLogger("zoo")


def find(recipe: Recipe, run_dir: Path | None, resume: str) -> tuple[Path | None, Path | None]:
    """The checkpoint to go on from, and the run directory to go on in; None for none, and for a new one.

    `resume` is never, auto, or names a checkpoint. Raises CheckpointError where there are checkpoints but none will do.
    """
    if resume == "never":
        return None, None
    home = run_dir or folder.latest(recipe)
    return (
        _newest(recipe, home, run_dir is not None)
        if resume == "auto"
        else _named(recipe, home, run_dir, resume)
    )


def contents(recipe: Recipe, path: Path) -> dict[str, Any]:
    """The contents of a checkpoint that this recipe can go on from. Raises CheckpointError."""
    content = checkpoint.read(path)
    if "loops" not in content:
        raise CheckpointError(f"{path}: it holds weights, but no training to go on with")
    ours, theirs = recipe.plain(), content["zoo"]["recipe"]
    telling = ("seed", "init_from", "model", "data", "task", "optim")
    different = [key for key in telling if ours[key] != theirs.get(key)]
    if different:
        raise CheckpointError(f"{path}: of another recipe, it differs in {', '.join(different)}")
    if LIVE in content and recipe.trainer.ema_decay is None:
        raise CheckpointError(
            f"{path}: its weights are an average, which this recipe does not keep; set trainer.ema_decay"
        )
    if recipe.trainer.fast_dev_run != theirs["trainer"].get("fast_dev_run", False):
        raise CheckpointError(f"{path}: of another recipe, it differs in trainer.fast_dev_run")
    return content


def _named(
    recipe: Recipe, home: Path, run_dir: Path | None, resume: str
) -> tuple[Path, Path | None]:
    named = home / resume if resume in ("last", "best") else Path(resume)
    last = named / "checkpoints" / "last.ckpt"
    start, run = (
        (last, None if run_dir else named) if last.is_file() else (checkpoint.locate(named), None)
    )
    contents(recipe, start)
    return start, run


def _newest(recipe: Recipe, home: Path, wanted: bool) -> tuple[Path | None, Path | None]:
    found = sorted((home / "checkpoints").glob("*.ckpt"))
    if not found:
        log.info("nothing to resume in %s: starting anew", home)
        return None, None
    newest = _furthest(found)
    try:
        contents(recipe, newest)
    except CheckpointError as error:
        if wanted:
            raise
        log.info("%s; starting anew", error)
        return None, None
    if newest.stem != "last":  # which may be all that was missing
        atomic_io.copy(newest, newest.with_name("last.ckpt"))
    return newest, home


def _furthest(found: list[Path]) -> Path:
    """Of the checkpoints that are whole, the one that has trained longest; of equals, `last`. Says what it skips."""
    whole: list[tuple[int, bool, Path]] = []
    skipped: list[str] = []
    for path in found:
        try:
            whole.append((checkpoint.read(path).get("global_step", -1), path.stem == "last", path))
        except CheckpointError as error:
            skipped.append(str(error))
    if not whole:
        raise CheckpointError("\n  ".join(["no checkpoint of the run is whole:", *skipped]))
    for told in skipped:
        log.warning("skipped %s", told)
    return max(whole)[2]
