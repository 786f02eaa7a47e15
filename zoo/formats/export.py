"""Write a trained model in a format that other programs read."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from zoo import files
from zoo.config import Recipe
from zoo.config.overrides import Change, Overrides, join_overrides
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError, Stopped, ZooError
from zoo.packages import explain_imports
from zoo.run import atomic_io, checkpoint, run_dir
from zoo.run.load import restore
from zoo.tasks.base import Task
from zoo.utils import escape_text, stop_on_signal

log = logging.getLogger("zoo")

WRITERS: Mapping[str, str] = MappingProxyType(
    {
        "hf": "zoo.formats.huggingface:write_huggingface",
        "llama": "zoo.formats.native:write_llama",
        "vit": "zoo.formats.native:write_vit",
        "onnx": "zoo.formats.traced:write_onnx",
        "safetensors": "zoo.formats.export:write_weights",
        "torch_export": "zoo.formats.traced:write_torch_export",
    }
)
"""The function that writes each target, `module:name`; it is called with an ExportSource, the
options, and an empty folder. It returns the difference of a graph from the model, or None, and
raises RecipeError with every option that stands in the way."""

CPU = (
    Change("trainer.accelerator", "cpu"),
    Change("trainer.devices", 1),
    Change("trainer.num_nodes", 1),
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The format of an export, and where it goes."""

    to: Literal["hf", "llama", "vit", "onnx", "safetensors", "torch_export"]
    """What to write: hf, a folder for Hugging Face transformers; llama or vit, one that needs no
    zoo, if the recipe is one; onnx, a graph for ONNX Runtime; safetensors, weights and recipe
    alone, which zoo reads again; torch_export, a graph for PyTorch."""

    push: str | None = None
    """A new repository of the Hugging Face Hub, owner/name, that the folder is uploaded to."""


@dataclass(frozen=True)
class ExportSource:
    """The trained model that is exported.

    Attributes:
        checkpoint: The file that it was read from.
        recipe: Its recipe.
        task: The task, in evaluation mode; `task.model` is the model, `task.spec` its data.
    """

    checkpoint: Path
    recipe: Recipe
    task: Task

    def metadata(self) -> dict[str, Any]:
        """Return recipe and facts of the data as plain data, enough to build the model."""
        return checkpoint.build_metadata(self.recipe, self.task.spec)


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What an export wrote.

    Attributes:
        recipe: The name of the recipe.
        checkpoint: The checkpoint of the model.
        to: The format.
        folder: The folder.
        files: The files in it, sorted.
        difference: For graphs, the largest difference of logits between the graph and the model,
            relative to 1 + |logit|.
        pushed: The address of the repository that the folder was uploaded to.
    """

    recipe: str
    checkpoint: Path
    to: str
    folder: Path
    files: tuple[str, ...]
    difference: float | None = None
    pushed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without what does not apply."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain |= {"checkpoint": str(self.checkpoint), "folder": str(self.folder)}
        plain["files"] = [*self.files]
        return {key: value for key, value in plain.items() if value is not None}


def export_model(
    run: str | os.PathLike[str], folder: Path, options: ExportOptions, overrides: Overrides = ()
) -> ExportResult:
    """Export a trained model to a new folder.

    Args:
        run: A run directory or a checkpoint.
        folder: The folder to write.
        options: The format, and where the folder is uploaded to.
        overrides: Changes of the stored recipe.

    Raises:
        RecipeError: The folder exists, or the recipe does not fit the format.
        CheckpointError: As `zoo.load` raises it.
    """
    if options.push is not None:
        check_token(options.push)
    path = checkpoint.locate(os.fspath(run))
    # the machine that trained the model may have had GPUs
    experiment, task = restore(path, join_overrides(CPU, overrides))
    source = ExportSource(path, experiment.recipe, task)

    module, _, function = WRITERS[options.to].partition(":")
    write = getattr(importlib.import_module(module), function)
    with new_folder(folder) as unfinished:
        difference = write(source, options, unfinished)
    return ExportResult(
        recipe=source.recipe.name,
        checkpoint=path,
        to=options.to,
        folder=folder,
        files=tuple(
            sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
        ),
        difference=difference,
        pushed=None if options.push is None else push_folder(folder, options.push),
    )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write in, which gets its name once the block has ended well.

    Nothing is left behind if the block fails or a signal ends it. What a killed process has left is
    removed by the next that writes a folder of this name.

    Args:
        folder: The name; there must be nothing, or an empty folder.

    Raises:
        RecipeError: The folder holds something, or cannot be created.
        LockedError: Another process is writing it.
        ZooError: The disk is full, or the folder got its name from another process.
        Stopped: A signal ended the block.
    """
    shown = escape_text(str(folder))
    created = [parent for parent in folder.parents if not parent.exists()]
    outer = folder.with_name(f".{folder.name}{files.WRITING}") if folder.name else folder
    unfinished, is_written = outer / folder.name, False
    with ExitStack() as stack:
        _require_free(folder)
        stack.callback(_remove_empty, created)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            name = f"{run_dir.LOCK}.{folder.name}"
            message = f"another process is writing {shown}"
            stack.enter_context(run_dir.lock(folder.parent, message, name=name))
            _require_free(folder)
            _remove_remnants(outer)
            unfinished.mkdir(parents=True)
        except OSError as error:
            problem, remedy = error.strerror or str(error), "name another folder"
            raise RecipeError(ConfigIssue(ARGUMENT, shown, problem, remedy)) from None
        try:
            with stop_on_signal() as received:
                yield unfinished
                unfinished.rename(folder)
        except OSError as error:
            problem = f"cannot be written, {error.strerror or error}; nothing was kept"
            raise ZooError(f"{shown}: {problem}") from None
        finally:
            is_written = not unfinished.exists()
            shutil.rmtree(outer, ignore_errors=True)
    if received:
        outcome = "it was written" if is_written else "nothing was written"
        raise Stopped(received[0], f"stopped by {received[0].name}; {outcome}")


def _require_free(folder: Path) -> None:
    """Raise RecipeError if there is something other than an empty folder."""
    is_folder = folder.is_dir() and not folder.is_symlink() and folder.name not in ("", "..")
    if os.path.lexists(folder) and not (is_folder and not any(folder.iterdir())):
        name = escape_text(str(folder))
        raise RecipeError(ConfigIssue(ARGUMENT, name, "exists already", "name a new folder"))


def _remove_remnants(outer: Path) -> None:
    """Remove what a killed process has left, and say so."""
    if outer.exists():
        shutil.rmtree(outer)
        log.info("removed %s, unfinished: the process that wrote it was killed", outer)


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders up to the first that holds something, each before the one that it is in."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def check_token(repository: str) -> None:
    """Check that a folder could be uploaded, before it is written.

    Raises:
        RecipeError: There is no token, or the name is none.
    """
    with explain_imports():
        from huggingface_hub import get_token

    problem = ""
    if not _is_repository(repository):
        problem, remedy = f"{repository!r} is no repository", "write owner/name"
    elif get_token() is None:
        problem, remedy = "there is no token of the Hub", "run hf auth login, or set HF_TOKEN"
    if problem:
        raise RecipeError(ConfigIssue(ARGUMENT, "push", problem, remedy))


def _is_repository(name: str) -> bool:
    """Tell whether a text has the form of a repository with an owner."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name


def push_folder(folder: Path, repository: str) -> str:
    """Upload a folder to a new repository and return its address.

    Raises:
        ZooError: The repository exists, or the upload fails; the folder stays as it is.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(repository)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:
        # of the library, or of what it uploads with
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        problem = f"was written, but not uploaded to {repository}: {cause}"
        remedy = f"hf upload {repository} {folder} tries again"
        raise ZooError(f"{folder} {problem}; {remedy}") from None
    return str(address)


def write_weights(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write `model.safetensors`, which carries the recipe, and `recipe.yaml`.

    The names of weights are those of a checkpoint, `model.` and the name in the model. zoo reads
    the folder as it reads a run directory.
    """
    atomic_io.write_safetensors(
        source.task.state_dict(), source.metadata(), folder / checkpoint.SAFETENSORS
    )
    (folder / "recipe.yaml").write_text(source.recipe.yaml(), encoding="utf-8")
