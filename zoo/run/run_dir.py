"""The run directory: `runs/<recipe>/<UTC time>-<hash>/`, and `latest` beside it."""

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
    recipe: Recipe, wanted: Path | None = None, again: bool = False, processes: int = 1
) -> Path:
    """A new run directory for a recipe, with `recipe.yaml` and `environment.json`.

    An existing run is never overwritten; but `again` takes the directory of one that was killed before it saved anything.
    """
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = wanted or Path("runs") / recipe.name / f"{now}-{recipe.hash}"
    if wanted is None:
        for count in range(2, 100):
            if not folder.exists():
                break
            folder = folder.with_name(f"{now}-{recipe.hash}-{count}")
    elif _occupied(folder) and not (again and _nothing_saved(folder)):
        raise RecipeError(
            ConfigIssue(
                "command line",
                "--run-dir",
                f"{folder} exists already",
                "name a new directory, or add --resume auto",
            )
        )
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text(recipe.yaml(), encoding="utf-8")
        (folder / "environment.json").write_text(
            json.dumps(environment(recipe, processes), indent=2) + "\n", encoding="utf-8"
        )
        if wanted is None:
            _point(folder.with_name("latest"), folder.name)
    except OSError as error:
        raise RecipeError(
            ConfigIssue(
                "run directory",
                str(folder),
                error.strerror or str(error),
                "choose another with --run-dir",
            )
        ) from None
    return folder


def _occupied(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _nothing_saved(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir() and not any((folder / "checkpoints").glob("*.ckpt"))


def latest(recipe: Recipe) -> Path:
    """The newest run directory of a recipe in `runs`, whether or not there is one."""
    link = Path("runs") / recipe.name / "latest"
    return link.parent / link.readlink() if link.is_symlink() else link


def environment(recipe: Recipe, processes: int = 1) -> dict[str, object]:
    """What a run depends on beside its recipe."""
    return {
        "zoo": __version__,
        "packages": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": sys.argv,
        "git": _git(),
        "seed": recipe.seed,
        "devices": _devices(),
        "processes": processes,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def holder(checkpoint: Path) -> Path:
    """The run directory that a checkpoint file belongs to, or the folder it lies in."""
    folder = checkpoint.resolve().parent
    return folder.parent if folder.name == "checkpoints" else folder


def _devices() -> dict[str, object]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"processor": platform.machine(), "threads": torch.get_num_threads(), "cuda": names}


def _git() -> dict[str, object] | None:
    """Of the code that runs, wherever it was called: None where it is no part of a repository."""
    home = Path(__file__).parent.parent

    def ask(*words: str) -> str:
        found = subprocess.run(
            ["git", *words], cwd=home, capture_output=True, text=True, check=True, timeout=10
        )
        return found.stdout.strip()

    try:
        ask(
            "ls-files", "--error-unmatch", "__init__.py"
        )  # a repository around it may have other things
        return {
            "commit": ask("rev-parse", "HEAD"),
            "changed": bool(ask("status", "--porcelain", "--", ".")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def _point(link: Path, target: str) -> None:
    """Make a symbolic link point to `target`, in one step."""
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)
