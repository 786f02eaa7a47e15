"""One run of a recipe: its parts, put together and set going."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
from torch import nn

from zoo import transfer
from zoo.build import build_data, build_task, build_trainer
from zoo.check import plan
from zoo.data.source import Source
from zoo.diagnostics.probe import Probe
from zoo.models.trunk import recompute
from zoo.recipe import Recipe
from zoo.run import checkpoints, costs, folder, loggers, resumption
from zoo.run.averaging import Average
from zoo.run.costs import Costs
from zoo.run.guards import Finite, Signals
from zoo.run.processes import Processes
from zoo.run.progress import Progress, Tested, clock
from zoo.run.saving import Checkpoints, Storage
from zoo.run.starting import Start
from zoo.tasks.task import Task
from zoo.transfer import Report

log = logging.getLogger("zoo")


def train(
    recipe: Recipe, run: Path, start: Path | None, donor: Path | None, processes: Processes
) -> dict[str, Any]:  # fmt: skip
    """Train, then test the best checkpoint; returns what there is to tell.

    It goes on from the checkpoint `start`, or begins, with the weights of the checkpoint `donor` where there is one.
    """
    L.seed_everything(recipe.seed, workers=True, verbose=False)
    done = 0 if start is None else int(resumption.contents(recipe, start)["global_step"])
    data = build_data(recipe)
    task, adopted = _task(recipe, data, processes, donor)
    saving = Checkpoints(run, recipe, Storage(background=recipe.trainer.save == "async"), task, processes)
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
        best = checkpoints.locate(run)
        trainer.test(task, datamodule=data, ckpt_path=best, weights_only=True, verbose=False)
    finally:
        signals.remove()
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if key.startswith("test/")}
    loggers.conclude(trainer.loggers, recipe, metrics, trainer.global_step)
    baselines = data.baselines()
    _conclude(run, metrics, baselines, saving.best, task.monitor, minutes)
    told: dict[str, Any] = {} if adopted is None else {"init_from": adopted.plain()}
    told |= {
        "recipe": recipe.name, "run": str(run), "checkpoint": str(best), "count": data.count("test"),
        "metrics": metrics, "baselines": baselines, "data": data.title, "minutes": minutes,
    }  # fmt: skip
    if processes.first:
        costs.write(run, {**told, **_spent(recipe, trainer, run, spending["memory"], processes)})
    return told


def _begin(
    recipe: Recipe, task: Task, data: Source, trainer: L.Trainer, run: Path, start: Path | None, adopted: Report | None
) -> None:  # fmt: skip
    """Tell what begins, and have a new run write it down."""
    device = trainer.strategy.root_device.type
    planned = dict.fromkeys(plan(recipe, task.model, device, data.samples))  # each once, however many layers
    _announce(recipe, task, data, run, start, adopted, [*planned])
    if start is None:
        interpreters = [*dict.fromkeys(name for name, _ in planned)]
        known = {"interpreters": interpreters, "monitor": task.monitor, "device": device}
        trainer.callbacks.append(Start(run, task.model, known))  # type: ignore[attr-defined]


def _spent(
    recipe: Recipe, trainer: L.Trainer, run: Path, memory: int | None, processes: Processes
) -> dict[str, Any]:  # fmt: skip
    """What the run came to cost, and where: of this try, the last."""
    return {
        "steps": trainer.global_step,
        "step_seconds": costs.step_seconds(recipe, run, processes.count),
        "memory": memory,
        "device": trainer.strategy.root_device.type,
        "environment": folder.environment(recipe, processes.count),
    }


def _task(recipe: Recipe, data: Source, processes: Processes, donor: Path | None) -> tuple[Task, Report | None]:
    """The task with its first weights, and what became of those of another recipe."""
    shaped = recipe.trainer.strategy == "fsdp" and not processes.first  # its weights will be those of the first
    task = build_task(recipe, data.samples, device="meta" if shaped else "cpu")
    return task, None if shaped or donor is None else transfer.begin(recipe, task.model, donor)


def _trainer(recipe: Recipe, run: Path, saving: Checkpoints, last: list[L.Callback], done: int) -> L.Trainer:
    average = [] if recipe.trainer.ema is None else [Average(recipe.trainer.ema)]
    watchers = [*average, *_probes(recipe, saving.processes), Progress(), Tested(), Finite(saving), saving, *last]
    kept = loggers.made(recipe, run, done) if saving.processes.first else []
    return build_trainer(recipe, logger=kept, callbacks=watchers, plugins=[saving.storage])


def _probes(recipe: Recipe, processes: Processes) -> list[Probe]:
    """What looks at attention; of a trial of one batch too, whatever that takes."""
    options = recipe.diagnostics
    if options.every is None:
        return []
    if recipe.trainer.fast_dev_run:
        options = replace(options, every=1, budget=1.0)
    return [Probe(options, processes.told, processes.most)]


def _modify(model: nn.Module, recipe: Recipe) -> None:
    """How it is computed, in place: names of weights stay."""
    if recipe.trainer.activation_checkpointing:
        recompute(model)
    if recipe.trainer.compile:
        model.compile()


def _announce(
    recipe: Recipe, task: Task, data: Source, run: Path, start: Path | None, adopted: Report | None,
    planned: list[tuple[str, str]],
) -> None:  # fmt: skip
    count = sum(p.numel() for p in task.model.parameters())
    log.info("%s: %s parameters, run directory %s", recipe.name, f"{count:,}", run)
    log.info("data %s", data.title)
    if start is not None:
        log.info("going on from %s", start)
    for name, why in planned:
        if name == "dense" or "mask" in why:
            log.info("attention is computed by %s: %s", name, why)
    for line in () if adopted is None else adopted.lines():
        log.info(line)


def _conclude(
    run: Path, metrics: dict[str, float], baselines: dict[str, float], best: float | None, monitor: str, minutes: float
) -> None:
    told = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    reached = (
        f"no validation gave a finite {monitor}: the last weights" if best is None else f"best {monitor} {best:.4f}"
    )
    log.info("%s after %s; %s", reached, clock(60 * minutes), told)
    for name, loss in baselines.items():
        log.info("a %s model has test/loss %.4f", name, loss)
    log.info("run directory: %s", run)
    log.info("next: zoo eval %s    zoo diagnose %s    tensorboard --logdir %s", run, run, run)
