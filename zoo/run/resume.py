"""Find the checkpoint that a run resumes from."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from zoo import config
from zoo.config import Recipe
from zoo.config.overrides import BATCHES
from zoo.config.recipe import diff_recipes, format_sides
from zoo.errors import CheckpointError, Message, RecipeError, Setting
from zoo.run import checkpoint, run_dir
from zoo.run.accepted_changes import ACCEPTABLE
from zoo.suggestions import join_words
from zoo.utils import follow_latest

log = logging.getLogger("zoo")

UNCOMPARED = ("data.workers", "data.prefetch_factor")
"""Keys that change nothing of a run: the order of samples does not depend on them."""
SHOWN = 4
"""Differences that a message lists."""
COMPARED = ("seed", "init_from", "model", "data", "task", "optim")  # sections that must be equal


class ResumePoint(NamedTuple):
    """The point where a run resumes; empty for one that starts anew.

    Attributes:
        checkpoint: The checkpoint to resume from.
        run: The run directory to continue in; None for a new one.
        step: Optimizer steps done.
        threads: CPU threads of the process that saved it; None if it does not say.
        epochs: Epochs done, if the batch size has changed since; the steps to come are counted
            anew.
    """

    checkpoint: Path | None = None
    run: Path | None = None
    step: int = 0
    threads: int | None = None
    epochs: int | None = None

    @classmethod
    def describe(
        cls, path: Path, run: Path | None, content: Mapping[str, Any], recipe: Recipe
    ) -> Self:
        """Return the point of a checkpoint with some content, which a recipe resumes from."""
        before, now = content["zoo"]["recipe"]["data"], recipe.data.options
        is_changed = any(before.get(word) != now.get(word) for word in BATCHES)
        epochs = content["epoch"] + 1 if is_changed else None
        return cls(path, run, content["global_step"], content.get("num_threads"), epochs)


def find_resume_point(
    recipe: Recipe, folder: Path | None, resume: str, accepted: Sequence[str] = ()
) -> ResumePoint:
    """Find the checkpoint that a run resumes from.

    Args:
        recipe: The recipe of the run.
        folder: The run directory that the user chose.
        resume: "auto", "last", "best", or a run directory or checkpoint.
        accepted: Keys of the recipe that may differ from those of the checkpoint.

    Returns:
        The resume point, empty where the run starts anew.

    Raises:
        CheckpointError: There are checkpoints, but none that this recipe can resume from.
    """
    home = folder or run_dir.find_latest(recipe)
    if resume == "auto":
        return _find_newest(recipe, home, accepted, must_fit=folder is not None)

    is_part = resume in ("last", "best")
    named = home / resume if is_part else follow_latest(Path(resume))
    last_checkpoint = named / "checkpoints" / "last.ckpt"
    if checkpoint.exists(last_checkpoint):
        content = _read_compatible(recipe, last_checkpoint, accepted)
        return ResumePoint.describe(last_checkpoint, None if folder else named, content, recipe)
    try:
        path = checkpoint.locate(named)
    except CheckpointError as error:
        # words that mean `auto` to a user, and are no paths
        if resume.lower() not in ("true", "yes", "1", "latest", "newest"):
            raise
        hint = Setting("resume", "auto")
        raise CheckpointError(error.message, ", or write ", hint, " for the latest run") from None
    content = _read_compatible(recipe, path, accepted)
    return ResumePoint.describe(path, None, content, recipe)


def _read_compatible(recipe: Recipe, path: Path, accepted: Sequence[str]) -> dict[str, Any]:
    """Read a checkpoint that a recipe can resume from. Raises CheckpointError."""
    content = checkpoint.read_description(path)
    # converted and exported weights have no state of the optimizer
    if "loops" not in content:
        raise CheckpointError(f"{path}: it holds weights, but no training state to resume")
    # compared with defaults filled in, since later versions add keys
    differences = _list_differences(recipe, content["zoo"], path)
    # where one replaces the other, both differ
    allowed = {*accepted, *ACCEPTABLE} if accepted else set[str]()
    if not differences.keys() <= allowed:
        raise CheckpointError(*_explain_differences(differences, path, recipe))
    if differences or _divides_otherwise(recipe, content):
        _check_end_of_epoch(recipe, content, path)
    epoch, most = content["epoch"] + 1, recipe.trainer.max_epochs
    # Lightning refuses this too, but only after all is built, and without a remedy
    if most is not None and epoch > most + 1:
        message = f"{path}: it was saved in epoch {epoch}, after trainer.max_epochs={most}"
        hint = f"allow {epoch} or more, or set "
        raise CheckpointError(f"{message}; {hint}", Setting("resume", "never"))
    if checkpoint.LIVE in content and recipe.trainer.ema_decay is None:
        message = "its weights are an average, which this recipe does not keep"
        raise CheckpointError(f"{path}: {message}; set trainer.ema_decay")
    return content


def _list_differences(recipe: Recipe, metadata: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return {key: both values} of what a stored recipe has otherwise than the recipe of a run."""
    stored: Mapping[str, Any] = metadata["recipe"]
    try:
        theirs = config.from_plain(stored, origin=str(path), name=metadata["name"])
    except RecipeError:
        # of a plug-in that is not there: it differs anyway
        ours = recipe.plain()
        return {key: key for key in COMPARED if ours[key] != stored.get(key)}
    differences = {}
    for key, there, here in diff_recipes(theirs, recipe):
        # a trial of one batch is no run to continue, nor does it continue one
        is_compared = key.partition(".")[0] in COMPARED or key == "trainer.fast_dev_run"
        if is_compared and key not in UNCOMPARED:
            values = format_sides(there, here)
            differences[key] = f"{key} ({values[0]} there, {values[1]} here)"
    return differences


def _explain_differences(
    differences: Mapping[str, str], path: Path, recipe: Recipe
) -> list[str | Setting | Message]:
    """Return the message that a checkpoint is of another recipe, and the ways on."""
    listed = join_words(differences.values(), most=SHOWN)
    parts: list[str | Setting | Message] = [f"{path}: of another recipe: it differs in {listed}; "]
    if differences.keys() <= {*ACCEPTABLE}:
        changeable = [
            key for key in differences if key.removeprefix("data.") in recipe.data.options
        ]
        for key in changeable:
            parts += ["go on all the same with ", Setting("accept_changes", key), ", or "]
    parts += ["start a new run from its weights with ", Setting("init_from", str(path))]
    return parts


def _divides_otherwise(recipe: Recipe, content: Mapping[str, Any]) -> bool:
    """Return whether accumulation divides the same samples of a step into other batches."""
    before = content["zoo"]["recipe"]["trainer"].get("accumulate_grad_batches", 1)
    is_divided = "global_batch_size" in recipe.data.options
    return is_divided and before != recipe.trainer.accumulate_grad_batches


def _check_end_of_epoch(recipe: Recipe, content: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError where batches of another size cannot follow those of a checkpoint."""
    progress = content["loops"]["fit_loop"]["epoch_progress"]["current"]
    hint = ("start a new run from its weights with ", Setting("init_from", str(path)))
    if progress["processed"] < progress["ready"]:
        message = f"{path}: it was saved within an epoch, whose batches have one size; "
        raise CheckpointError(message, "resume from the end of an epoch, or ", *hint)
    options = recipe.data.options
    if options.get("streams") or recipe.data.name == "text_stream":
        raise CheckpointError(f"{path}: the batch size cuts the streams of this data; ", *hint)


def _find_newest(
    recipe: Recipe, home: Path, accepted: Sequence[str], must_fit: bool
) -> ResumePoint:
    paths = sorted((home / "checkpoints").glob("*.ckpt"))
    if not paths:
        log.info("No checkpoint to resume from in %s: starting anew", home)
        return ResumePoint()

    newest = _choose_furthest(paths)
    try:
        content = _read_compatible(recipe, newest, accepted)
    except CheckpointError as error:
        # a directory that the user named may not silently start anew; `latest` may be of an older
        # recipe
        if must_fit:
            raise
        log.info("%s; starting anew", error.message)
        return ResumePoint()
    if newest.stem != "last":
        # `last` is missing or damaged
        checkpoint.copy(newest, newest.with_name("last.ckpt"))
    return ResumePoint.describe(newest, home, content, recipe)


def _choose_furthest(paths: list[Path]) -> Path:
    """Return the intact checkpoint that has trained longest, of equals `last`; log the others."""
    intact: list[tuple[int, bool, Path]] = []
    problems: list[str] = []
    for path in paths:
        try:
            step = checkpoint.read_description(path).get("global_step", -1)
            # compared in this order: steps, then `last` before its equals
            intact.append((step, path.stem == "last", path))
        except CheckpointError as error:
            problems.append(str(error))
    if not intact:
        raise CheckpointError("\n  ".join(["no checkpoint of the run is intact:", *problems]))
    for message in problems:
        log.warning("Skipped %s", message)
    return max(intact)[2]
