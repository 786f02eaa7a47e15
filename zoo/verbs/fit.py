"""`zoo fit`: train a recipe in a run directory, then test its best checkpoint."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L

from zoo import transfer
from zoo.build import build_data, build_task, build_trainer
from zoo.check import plan
from zoo.data.source import Source
from zoo.errors import ZooError
from zoo.loading import load_recipe
from zoo.models.trunk import recompute
from zoo.recipe import Recipe, from_plain
from zoo.run import checkpoints, folder, loggers, resumption, storage
from zoo.run.averaging import Average
from zoo.run.guards import Finite, Signals
from zoo.run.processes import Processes
from zoo.run.progress import Progress, clock
from zoo.run.saving import Checkpoints, Storage
from zoo.tasks.task import Task
from zoo.verbs.together import together

log = logging.getLogger("zoo")


def fit(
    name: str, overrides: Sequence[str], run_dir: Path | None, resume: str, words: Sequence[str] = ()
) -> dict[str, Any] | None:
    """Train and test; returns what `--json` prints, in the process that speaks to the user.

    Where several processes are wanted and nobody has started them, each of them is `zoo WORDS`, by default this very call.
    """
    recipe = load_recipe(name, overrides)
    placed = [] if run_dir is None else ["--run-dir", str(run_dir)]
    processes = together(recipe, words or ["fit", name, *overrides, *placed, "--resume", resume])
    if processes is None:
        return None
    plain, place, found = processes.agreed(lambda: _prepared(recipe, run_dir, resume, processes.count))
    recipe = from_plain(plain, origin=recipe.name, name=recipe.name)
    return _logged(recipe, Path(place), Path(found) if found else None, processes)


def _prepared(recipe: Recipe, run_dir: Path | None, resume: str, count: int) -> tuple[dict[str, Any], str, str | None]:
    """The recipe, the run directory, and the checkpoint to go on from, as plain data."""
    loggers.check(recipe)
    start, run = resumption.find(recipe, run_dir, resume)
    if start is None:
        transfer.find(recipe)  # refused before a run directory is made
    run = run or folder.create(recipe, run_dir, again=resume == "auto", processes=count)
    storage.clear(run)
    return recipe.plain(), str(run), str(start) if start else None


def _logged(recipe: Recipe, run: Path, start: Path | None, processes: Processes) -> dict[str, Any] | None:
    to_file = _log_to(run / "train.log" if processes.first else Path(os.devnull))
    try:
        result = _train(recipe, run, start, processes)
        return result if processes.first else None
    except Exception as error:
        log.debug("failed", exc_info=error)
        good = storage.kept(run / "checkpoints")
        if isinstance(error, OSError) and error.filename is None:  # as of a full disk
            raise ZooError(f"{run}: {error.strerror or error}; {good}") from None
        if processes.lost(error):
            raise ZooError(
                f"process {processes.rank} cannot reach another one, which has died or hangs; {good}"
            ) from None
        raise
    finally:
        log.removeHandler(to_file)
        to_file.close()


def _train(recipe: Recipe, run: Path, start: Path | None, processes: Processes) -> dict[str, Any]:
    L.seed_everything(recipe.seed, workers=True, verbose=False)
    content = None if start is None else resumption.contents(recipe, start)
    data = build_data(recipe)
    shaped = recipe.trainer.strategy == "fsdp" and not processes.first  # its weights will be those of the first
    task = build_task(recipe, data.samples, device="meta" if shaped else "cpu")
    adopted = transfer.begin(recipe, task.model) if start is None and not shaped else None
    disk = Storage(background=recipe.trainer.save == "async")
    saving = Checkpoints(run, recipe, disk, task, processes)
    signals = Signals(saving)
    watchers = [Progress(), Finite(saving), saving, signals]
    if recipe.trainer.ema is not None:
        watchers.insert(0, Average(recipe.trainer.ema))
    kept = loggers.made(recipe, run, content["global_step"] if content else 0) if processes.first else []
    trainer = build_trainer(recipe, logger=kept, callbacks=watchers, plugins=[disk])
    if processes.first:
        _announce(recipe, task, data, run, start, trainer.strategy.root_device.type)
        for line in () if adopted is None else adopted.lines():
            log.info(line)
    if recipe.trainer.activation_checkpointing:
        recompute(task.model)
    if recipe.trainer.compile:
        task.model.compile()  # in place: the names of the weights stay
    began = time.monotonic()
    signals.install()
    try:
        trainer.fit(task, datamodule=data, ckpt_path=start, weights_only=True)
        minutes = (time.monotonic() - began) / 60
        best = checkpoints.locate(run)
        trainer.test(task, datamodule=data, ckpt_path=best, weights_only=True, verbose=False)
    finally:
        signals.remove()
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("test/")}
    baselines = data.baselines()
    _conclude(run, metrics, baselines, saving.best, task.monitor, minutes)
    told = {} if adopted is None else {"init_from": adopted.plain()}
    return told | {
        "recipe": recipe.name, "run": str(run), "checkpoint": str(best), "count": data.count("test"),
        "metrics": metrics, "baselines": baselines, "data": data.title, "minutes": minutes,
    }  # fmt: skip


def _announce(recipe: Recipe, task: Task, data: Source, run: Path, start: Path | None, device: str) -> None:
    count = sum(p.numel() for p in task.model.parameters())
    log.info("%s: %s parameters, run directory %s", recipe.name, f"{count:,}", run)
    log.info("data %s", data.title)
    if start is not None:
        log.info("going on from %s", start)
    for name, why in dict.fromkeys(plan(recipe, task.model, device, data.samples)):  # once, however many layers
        if name == "dense" or "mask" in why:
            log.info("attention is computed by %s: %s", name, why)


def _conclude(
    run: Path, metrics: dict[str, float], baselines: dict[str, float], best: float | None, monitor: str, minutes: float
) -> None:
    told = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    if best is not None:
        log.info("best %s %.4f after %s; %s", monitor, best, clock(60 * minutes), told)
    for name, loss in baselines.items():
        log.info("a %s model has test/loss %.4f", name, loss)
    log.info("run directory: %s", run)
    log.info("next: zoo eval %s    tensorboard --logdir %s", run, run)


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A full disk is told by the run itself."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


def _log_to(path: Path) -> logging.Handler:
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.setLevel(logging.DEBUG)
    log.addHandler(handler)
    return handler
