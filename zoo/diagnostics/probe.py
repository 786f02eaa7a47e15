"""Attention looked at while a model trains: the same few samples, every so many steps, within a share of the time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor

from zoo.diagnostics import pictures
from zoo.diagnostics.cadence import Cadence
from zoo.diagnostics.looking import Look, check, watch
from zoo.diagnostics.summary import kinds
from zoo.errors import Invalid
from zoo.panels import Numbers
from zoo.recipe.sections import DiagnosticsOptions
from zoo.tasks.task import Task

log = logging.getLogger("zoo")


class Probe(L.Callback):
    """Logs attention/<layer>/... as scalars to every logger, and as histograms and pictures to TensorBoard.

    All processes look, so that none waits in vain where weights are in shards; each has its own share of the validation's
    first batch, and the first one speaks. `agreed` gives all of them what the first one says, and `most` the largest number.
    Training goes on as if nobody had looked: random states, modes of modules and weights are left as they were.
    """

    def __init__(
        self, options: DiagnosticsOptions, agreed: Callable[[int], int] = int, most: Callable[[int], int] = int
    ) -> None:
        assert options.every is not None
        self.options, self.agreed, self.most = options, agreed, most
        self.cadence = Cadence(options.every, options.budget)
        self.inputs: tuple[Tensor | None, ...] | None = None
        self.due: int | None = None  # never

    def on_train_start(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        self.first, self.start = trainer.global_step, time.monotonic()
        every = self.cadence.every
        self.due = (self.first // every + 1) * every

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Task, outputs: Any, batch: Any, batch_idx: int  # type: ignore[override]
    ) -> None:  # fmt: skip
        step = trainer.global_step
        if self.due is None or step < self.due:
            return
        elapsed = time.monotonic() - self.start
        self.due = self.agreed(self.cadence.next(step, step - self.first, elapsed))
        if self.due > step or not self._begun(trainer, pl_module):  # it would take too much of the time by now
            return
        began = _now(trainer)
        with isolate_rng():
            self._look(trainer, pl_module, step - 1)  # as the losses of this step are counted
        self.cadence.took(_now(trainer) - began)
        self.due = step + self.cadence.every
        share = self.cadence.share(time.monotonic() - self.start)
        self._log(trainer, {"perf/diagnostics_share": share}, step - 1)

    def _begun(self, trainer: L.Trainer, task: Task) -> bool:
        """Whether there is something to look at, the same in all processes; what short trainings never see is not read."""
        if self.inputs is not None:
            return True
        began = time.monotonic()
        with isolate_rng():
            problem = self._begin(trainer, task)
        self.cadence.spent += time.monotonic() - began
        if self.most(bool(problem)):
            log.info("attention is not looked at: %s", problem or "another process cannot")
            self.due = None
            return False
        return True

    def _begin(self, trainer: L.Trainer, task: Task) -> str:
        """Take the samples that are looked at; says why not, where there are none."""
        try:
            check(task.model, self.options.layers)
            with _not_training(trainer):
                batch = next(iter(trainer.datamodule.val_dataloader()))  # type: ignore[attr-defined]
                batch = trainer.strategy.batch_to_device(
                    trainer.precision_plugin.convert_input(batch), dataloader_idx=0
                )
                inputs = task.inputs(batch)
        except Invalid as error:
            return str(error)
        except StopIteration:
            return "there is nothing to validate with"
        self.inputs = tuple(one if one is None else one[: self.options.samples].clone() for one in inputs)
        return ""

    def _look(self, trainer: L.Trainer, task: Task, step: int) -> None:
        assert self.inputs is not None
        scalars: dict[str, float] = {}
        writers = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]

        def see(one: Look) -> None:
            if trainer.is_global_zero:
                scalars.update({f"attention/{one.layer}/{name}": value for name, value in numbers(one).items()})
                for writer in writers:
                    _draw(writer, one, step)

        with trainer.precision_plugin.forward_context():
            watch(task.model, self.inputs, see, self.options.queries, self.options.layers)
        if trainer.is_global_zero:
            self._log(trainer, scalars, step)

    def _log(self, trainer: L.Trainer, metrics: Mapping[str, float], step: int) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(dict(metrics), step)


@torch.no_grad()
def numbers(look: Look) -> dict[str, float]:
    """Each measure of a layer as the mean over its heads, and what its encodings tell of themselves in numbers."""
    found = {kind.name: kind.of(look) for kind in kinds(look)}
    told = {name: float(value.nanmean()) for name, value in found.items()}
    for panel in look.chain.findings(look.terms):
        if isinstance(panel, Numbers):
            values = [*panel.values.values()]
            told[panel.title.replace(": ", "/").replace(" ", "_").lower()] = sum(values) / max(len(values), 1)
    return {name: value for name, value in told.items() if math.isfinite(value)}  # else there is nothing to say


def _draw(writer: Any, look: Look, step: int) -> None:
    tag = f"attention/{look.layer}"
    for name, values in (("weights", look.weights), ("scores", look.scores)):
        if values is not None and len(told := values[values.isfinite() & (values != 0)]):
            writer.add_histogram(f"{tag}/{name}", told.cpu(), step)
    writer.add_image(f"{tag}/looks", pictures.attended(look), step)


def _now(trainer: L.Trainer) -> float:
    """The time at which a device has done what it was told so far."""
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize(trainer.strategy.root_device)
    return time.monotonic()


@contextmanager
def _not_training(trainer: L.Trainer) -> Iterator[None]:
    """Batches come as an evaluation has them, not augmented."""
    trainer.training = False
    try:
        yield
    finally:
        trainer.training = True
