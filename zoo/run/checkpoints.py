"""Checkpoints: plain data and tensors, written whole or not at all, read with `weights_only` and nothing else."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from zoo import __version__
from zoo.data.vocabulary import from_plain
from zoo.errors import CheckpointError
from zoo.recipe import Recipe
from zoo.run.folder import holder
from zoo.samples import Samples, Text


class Checkpoints(L.Callback):
    """Writes `last` after every epoch whatever the metric says, and `best` when the metric that a task names improves."""

    def __init__(self, folder: Path, recipe: Recipe, monitor: str, mode: str) -> None:
        self.folder, self.recipe, self.monitor = folder / "checkpoints", recipe, monitor
        self.sign = 1.0 if mode == "max" else -1.0
        self.best: float | None = None
        self._resumed: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        facts = remembered(trainer.datamodule.samples)  # type: ignore[attr-defined]
        about = {"version": __version__, "name": self.recipe.name, "recipe": self.recipe.plain()}
        checkpoint["zoo"] = {**about, "samples": facts} if facts else about
        checkpoint["random"] = random_state()
        checkpoint["loader"] = trainer.train_dataloader.state_dict()  # type: ignore[union-attr]
        checkpoint["best"] = self.best

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            self.best, self._resumed = checkpoint["best"], checkpoint

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._resumed is None:
            return
        # Lightning makes the loader before it reads a checkpoint, so that its own restoration comes too late
        trainer.train_dataloader.load_state_dict(self._resumed["loader"])  # type: ignore[union-attr]
        restore_random(self._resumed["random"])
        self._resumed = None

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        # of equals the later one counts, which has seen more
        improved = value is not None and (self.best is None or self.sign * float(value) >= self.sign * self.best)
        if improved and value is not None:
            self.best = float(value)
            self.save(trainer, "best")
        self.save(trainer, "last")

    def save(self, trainer: L.Trainer, name: str) -> Path:
        """Write checkpoints/<name>.ckpt: into a file beside it first, so that no kill leaves half of one."""
        path, fresh = self.folder / f"{name}.ckpt", self.folder / f".{name}.writing"
        trainer.save_checkpoint(fresh)
        fresh.replace(path)
        return path


def remembered(samples: Samples) -> dict[str, Any] | None:
    """What a checkpoint keeps of the facts of its data, as plain data: those that only the data itself could tell."""
    if not isinstance(samples, Text):
        return None
    return {"length": samples.length, "vocabulary": samples.vocabulary.plain()}


def recalled(content: Mapping[str, Any], path: Path) -> Samples | None:
    """The facts that a checkpoint's contents keep, None where the recipe tells them. Raises CheckpointError."""
    facts = content["zoo"].get("samples")
    if facts is None:
        return None
    try:
        vocabulary = from_plain(facts["vocabulary"])
        len(vocabulary)  # a tokenizer is only read when it is asked something
        return Text(int(facts["length"]), vocabulary)
    except Exception as error:  # the library of tokenizers fails in its own ways
        raise CheckpointError(f"{path}: its vocabulary cannot be read, {_brief(error)}; {_good(path)}") from None


def random_state() -> dict[str, Any]:
    """The state of every random generator that training draws from, as plain data."""
    kind, keys, *rest = np.random.get_state()
    version, words, spare = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": [version, list(words), spare],
    }


def restore_random(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == torch.cuda.device_count() and state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, spare = state["python"]
    random.setstate((version, tuple(words), spare))


def locate(place: str | Path) -> Path:
    """The checkpoint that a run directory (its best, else its last), `RUN/last`, `RUN/best` or a file names."""
    path = Path(place)
    if path.is_file():
        return path
    if path.is_dir():
        for name in ("best", "last"):
            if (found := path / "checkpoints" / f"{name}.ckpt").is_file():
                return found
        raise CheckpointError(
            f"{place}: no checkpoint in it; a run directory holds checkpoints/best.ckpt and last.ckpt"
        )
    if path.name in ("last", "best"):
        named = path.parent / "checkpoints" / f"{path.name}.ckpt"
        if named.is_file():
            return named
        path = named
    raise CheckpointError(f"{path}: no such checkpoint; {_good(path)}")


def read(path: Path) -> dict[str, Any]:
    """A checkpoint's contents. Raises CheckpointError where it is corrupt, would run code, or is none of zoo's."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "weights_only" not in str(error) and "Unsupported" not in str(error):
            raise CheckpointError(f"{path}: corrupt, {_brief(error)}; {_good(path)}") from None
        raise CheckpointError(
            f"{path}: unsafe, it holds more than plain data and tensors; nothing of it was run"
        ) from None
    except Exception as error:  # a damaged zip file fails in many ways
        raise CheckpointError(f"{path}: unreadable, {_brief(error)}; {_good(path)}") from None
    if not isinstance(content, dict) or not {"zoo", "state_dict"} <= content.keys():
        raise CheckpointError(f"{path}: not a checkpoint of zoo, it carries no recipe; {_good(path)}")
    return content


def _brief(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _good(path: Path) -> str:
    """What else is there."""
    folder = holder(path) / "checkpoints"
    others = sorted(str(p.name) for p in folder.glob("*.ckpt") if p.name != path.name) if folder.is_dir() else []
    return f"still there: {', '.join(others)} in {folder}" if others else "no other checkpoint lies beside it"
