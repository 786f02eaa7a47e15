"""The run directory: `runs/<recipe>/<UTC time>-<hash>/`, and the link `latest` beside it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from zoo import __version__
from zoo.config import Recipe
from zoo.errors import ConfigIssue, RecipeError

PACKAGES = ("torch", "lightning", "torchmetrics", "omegaconf", "numpy")


def create(
    recipe: Recipe, path: Path | None = None, replace_unsaved: bool = False, processes: int = 1
) -> Path:
    """Create a run directory with `recipe.yaml` and `environment.json`.

    Args:
        recipe: The recipe of the run.
        path: The directory. None: a new one under `runs`, which `latest` then links to.
        replace_unsaved: Take the directory of a run that was killed before it saved anything.
            A run with checkpoints is never overwritten.
        processes: The world size, written to `environment.json`.

    Raises:
        RecipeError: The directory holds something already, or cannot be written.
    """
    folder = path or _choose_new(recipe)
    if path and _is_occupied(path) and not (replace_unsaved and _has_saved_nothing(path)):
        problem, remedy = f"{path} exists already", "name a new directory, or add --resume auto"
        raise RecipeError(ConfigIssue("command line", "--run-dir", problem, remedy))
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text(recipe.yaml(), encoding="utf-8")
        environment = json.dumps(describe_environment(recipe, processes), indent=2) + "\n"
        (folder / "environment.json").write_text(environment, encoding="utf-8")
        if path is None:
            _link(folder.with_name("latest"), folder.name)
    except OSError as error:
        problem, remedy = error.strerror or str(error), "choose another with --run-dir"
        raise RecipeError(ConfigIssue("run directory", str(folder), problem, remedy)) from None
    return folder


def _choose_new(recipe: Recipe) -> Path:
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{recipe.hash}"
    folder = Path("runs") / recipe.name / name
    for count in range(2, 100):
        if not folder.exists():
            break
        folder = folder.with_name(f"{name}-{count}")
    return folder


def _is_occupied(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _has_saved_nothing(folder: Path) -> bool:
    checkpoints = folder / "checkpoints"
    return checkpoints.is_dir() and not any(checkpoints.glob("*.ckpt"))


def find_latest(recipe: Recipe) -> Path:
    """Return the newest run directory of a recipe in `runs`; it need not exist."""
    link = Path("runs") / recipe.name / "latest"
    return link.parent / link.readlink() if link.is_symlink() else link


def find_run_dir(checkpoint: Path) -> Path:
    """Return the run directory that a checkpoint file belongs to, else the file's folder."""
    folder = checkpoint.resolve().parent
    return folder.parent if folder.name == "checkpoints" else folder


def describe_environment(recipe: Recipe, processes: int = 1) -> dict[str, object]:
    """Return what a run depends on beside its recipe."""
    return {
        "zoo": __version__,
        "packages": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": sys.argv,
        "git": _describe_git(),
        "seed": recipe.seed,
        "devices": _describe_devices(),
        "processes": processes,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _describe_devices() -> dict[str, object]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"processor": platform.machine(), "threads": torch.get_num_threads(), "cuda": names}


def _describe_git() -> dict[str, object] | None:
    """Return the commit of zoo's own code; None where it is no part of a repository."""
    home = Path(__file__).parent.parent

    def run_git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=home, capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        # a repository around an installed package tracks other files
        run_git("ls-files", "--error-unmatch", "__init__.py")
        changes = run_git("status", "--porcelain", "--", ".")
        return {"commit": run_git("rev-parse", "HEAD"), "changed": bool(changes)}
    except (OSError, subprocess.SubprocessError):
        return None


def _link(link: Path, target: str) -> None:
    """Make a symbolic link point to `target`, in one step."""
    temporary = link.with_name(f".{link.name}-{os.getpid()}")
    temporary.symlink_to(target)
    temporary.replace(link)
