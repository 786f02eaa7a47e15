"""`zoo fit`: train a recipe in a run directory, then test its best checkpoint."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
from torch import nn

from zoo.config import Recipe, from_plain
from zoo.data.base import DataModule
from zoo.diagnostics.callback import Probe
from zoo.errors import OptionError, RecipeError, ZooError
from zoo.models.transformer import enable_activation_checkpointing
from zoo.run import atomic_io, checkpoint, init_from, loggers, resume, run_dir
from zoo.run import resume as resumption
from zoo.run import run_dir as folder
from zoo.run.build import build_data, build_task, build_trainer
from zoo.run.callbacks import manifest
from zoo.run.callbacks.checkpointing import Checkpoints, Storage
from zoo.run.callbacks.ema import Average
from zoo.run.callbacks.guards import Finite, Signals
from zoo.run.callbacks.manifest import Costs, Start
from zoo.run.callbacks.progress import Progress, Tested, clock
from zoo.run.distributed import Processes
from zoo.run.init_from import Report
from zoo.run.load import load_recipe
from zoo.run.loggers import written
from zoo.run.preflight import plan
from zoo.run.spawn import together
from zoo.tasks.base import Task

log = logging.getLogger("zoo")


def train(
    recipe: Recipe, run: Path, start: Path | None, donor: Path | None, processes: Processes
) -> dict[str, Any]:
    """Train, then test the best checkpoint; returns what there is to tell.

    It goes on from the checkpoint `start`, or begins, with the weights of the checkpoint `donor` where there is one.
    """
    L.seed_everything(recipe.seed, workers=True, verbose=False)
    done = 0 if start is None else int(resume.contents(recipe, start)["global_step"])
    data = build_data(recipe)
    task, adopted = _task(recipe, data, processes, donor)
    saving = Checkpoints(
        run, recipe, Storage(background=recipe.trainer.async_checkpoint), task, processes
    )
    signals, spent = Signals(saving), Costs()
    trainer = _trainer(recipe, run, saving, [spent, signals], done)
    if processes.first:
        _begin(recipe, task, data, trainer, run, start, adopted)
    _modify(task.model, recipe)
    signals.install()
    try:
        trainer.fit(task, datamodule=data, ckpt_path=start, weights_only=True)
        spending = spent.state_dict()
        minutes = spending["seconds"] / 60
        best = checkpoint.locate(run)
        trainer.test(task, datamodule=data, ckpt_path=best, weights_only=True, verbose=False)
    finally:
        signals.remove()
    metrics = {
        key: float(value)
        for key, value in trainer.callback_metrics.items()
        if key.startswith("test/")
    }
    loggers.conclude(trainer.loggers, recipe, metrics, trainer.global_step)
    baselines = data.baselines()
    _conclude(run, metrics, baselines, saving.best, task.monitor, minutes)
    told: dict[str, Any] = {} if adopted is None else {"init_from": adopted.plain()}
    told |= {
        "recipe": recipe.name,
        "run": str(run),
        "checkpoint": str(best),
        "count": data.count("test"),
        "metrics": metrics,
        "baselines": baselines,
        "data": data.title,
        "minutes": minutes,
    }
    if processes.first:
        manifest.write(run, {**told, **_spent(recipe, trainer, run, spending["memory"], processes)})
    return told


def _begin(
    recipe: Recipe,
    task: Task,
    data: DataModule,
    trainer: L.Trainer,
    run: Path,
    start: Path | None,
    adopted: Report | None,
) -> None:
    """Tell what begins, and have a new run write it down."""
    device = trainer.strategy.root_device.type
    planned = dict.fromkeys(
        plan(recipe, task.model, device, data.samples)
    )  # each once, however many layers
    _announce(recipe, task, data, run, start, adopted, [*planned])
    if start is None:
        interpreters = [*dict.fromkeys(name for name, _ in planned)]
        known = {"interpreters": interpreters, "monitor": task.monitor, "device": device}
        trainer.callbacks.append(Start(run, task.model, known))  # type: ignore[attr-defined]


def _spent(
    recipe: Recipe, trainer: L.Trainer, run: Path, memory: int | None, processes: Processes
) -> dict[str, Any]:
    """What the run came to cost, and where: of this try, the last."""
    return {
        "steps": trainer.global_step,
        "step_seconds": manifest.step_seconds(recipe, run, processes.count),
        "memory": memory,
        "device": trainer.strategy.root_device.type,
        "environment": run_dir.environment(recipe, processes.count),
    }


def _task(
    recipe: Recipe, data: DataModule, processes: Processes, donor: Path | None
) -> tuple[Task, Report | None]:
    """The task with its first weights, and what became of those of another recipe."""
    shaped = (
        recipe.trainer.strategy == "fsdp" and not processes.first
    )  # its weights will be those of the first
    task = build_task(recipe, data.samples, device="meta" if shaped else "cpu")
    return task, None if shaped or donor is None else init_from.begin(recipe, task.model, donor)


def _trainer(
    recipe: Recipe, run: Path, saving: Checkpoints, last: list[L.Callback], done: int
) -> L.Trainer:
    average = [] if recipe.trainer.ema_decay is None else [Average(recipe.trainer.ema_decay)]
    watchers = [
        *average,
        *_probes(recipe, saving.processes),
        Progress(),
        Tested(),
        Finite(saving),
        saving,
        *last,
    ]
    kept = loggers.made(recipe, run, done) if saving.processes.first else []
    return build_trainer(recipe, logger=kept, callbacks=watchers, plugins=[saving.storage])


def _probes(recipe: Recipe, processes: Processes) -> list[Probe]:
    """What looks at attention; of a trial of one batch too, whatever that takes."""
    options = recipe.diagnostics
    if options.every_n_steps is None:
        return []
    if recipe.trainer.fast_dev_run:
        options = replace(options, every_n_steps=1, max_overhead=1.0)
    return [Probe(options, processes.broadcast, processes.all_reduce_max)]


def _modify(model: nn.Module, recipe: Recipe) -> None:
    """How it is computed, in place: names of weights stay."""
    if recipe.trainer.activation_checkpointing:
        enable_activation_checkpointing(model)
    if recipe.trainer.compile:
        model.compile()


def _announce(
    recipe: Recipe,
    task: Task,
    data: DataModule,
    run: Path,
    start: Path | None,
    adopted: Report | None,
    planned: list[tuple[str, str]],
) -> None:
    count = sum(p.numel() for p in task.model.parameters())
    log.info("%s: %s parameters, run directory %s", recipe.name, f"{count:,}", run)
    log.info("data %s", data.title)
    if start is not None:
        log.info("going on from %s", start)
    for name, why in planned:
        if name == "reference" or "mask" in why:
            log.info("attention is computed by %s: %s", name, why)
    for line in () if adopted is None else adopted.lines():
        log.info(line)


def _conclude(
    run: Path,
    metrics: dict[str, float],
    baselines: dict[str, float],
    best: float | None,
    monitor: str,
    minutes: float,
) -> None:
    told = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    reached = (
        f"no validation gave a finite {monitor}: the last weights"
        if best is None
        else f"best {monitor} {best:.4f}"
    )
    log.info("%s after %s; %s", reached, clock(60 * minutes), told)
    for name, loss in baselines.items():
        log.info("a %s model has test/loss %.4f", name, loss)
    log.info("run directory: %s", run)
    log.info("next: zoo eval %s    zoo diagnose %s    tensorboard --logdir %s", run, run, run)


def fit(
    name: str,
    overrides: Sequence[str],
    run_dir: Path | None,
    resume: str,
    words: Sequence[str] = (),
) -> dict[str, Any] | None:
    """Train and test; returns what `--json` prints, in the process that speaks to the user.

    Where several processes are wanted and nobody has started them, each of them is `zoo WORDS`, by default this very call.
    """
    recipe = load_recipe(name, overrides)
    _locate(recipe)
    place = [] if run_dir is None else ["--run-dir", str(run_dir)]
    processes = together(recipe, words or ["fit", name, *overrides, *place, "--resume", resume])
    if processes is None:
        return None
    plain, run, start, donor = processes.run_on_rank_zero(
        lambda: _prepared(recipe, run_dir, resume, processes.count)
    )
    recipe = from_plain(plain, origin=recipe.name, name=recipe.name)
    with (
        written(run / "train.log") if processes.first else contextlib.nullcontext(),
        _told(run, processes),
    ):
        result = train(recipe, run, start, donor, processes)
    return result if processes.first else None


def _locate(recipe: Recipe) -> None:
    """Raises DataError or RecipeError where the data is not what the recipe says, before there is a run directory."""
    try:
        build_data(recipe).locate()
    except OptionError as error:
        raise RecipeError(recipe.make_issue(f"data.{error.key}", str(error))) from None


def _prepared(
    recipe: Recipe, run_dir: Path | None, resume: str, count: int
) -> tuple[dict[str, Any], Path, Path | None, Path | None]:
    """The recipe as plain data, the run directory, and the checkpoint to go on from or that of another to start from."""
    loggers.check(recipe)
    start, run = resumption.find(recipe, run_dir, resume)
    donor = init_from.find(recipe) if start is None else None  # before a run directory is made
    run = run or folder.create(recipe, run_dir, again=resume == "auto", processes=count)
    atomic_io.clear(run)
    return recipe.plain(), run, start, donor


@contextlib.contextmanager
def _told(run: Path, processes: Processes) -> Iterator[None]:
    """Failures of the machine in plain words, and all failures in the log."""
    try:
        yield
    except Exception as error:
        log.debug("failed", exc_info=error)
        good = atomic_io.kept(run / "checkpoints")
        if isinstance(error, OSError) and error.filename is None:  # as of a full disk
            raise ZooError(f"{run}: {error.strerror or error}; {good}") from None
        if processes.lost(error):
            told = f"process {processes.rank} cannot reach another one, which has died or hangs"
            raise ZooError(f"{told}; {good}") from None
        raise
