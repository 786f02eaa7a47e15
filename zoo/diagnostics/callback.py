"""Log attention during training: the same samples at intervals, within a budget of time."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.nn import functional as F

from zoo.config.schema import DiagnosticsOptions
from zoo.data.base import DataModule
from zoo.diagnostics.capture import LayerAttention, capture_layers, number_layers
from zoo.diagnostics.head_metrics import list_metrics
from zoo.diagnostics.layer_states import hook_states
from zoo.errors import OptionError
from zoo.reporting.panel import Bars
from zoo.tasks.base import Task


@dataclass
class LookSchedule:
    """A schedule of captures: every `every` steps, or less often if that exceeds the budget.

    Times are in seconds since training began, including diagnostics; `budget` is a fraction of it.
    """

    every: int
    budget: float
    spent: float = 0.0
    cost: float | None = None  # seconds of the last capture

    def estimate_cost(self, pace: float) -> float:
        """Estimate the seconds of the next capture from the last one.

        Args:
            pace: Seconds of a training step.
        """
        # The first capture is assumed to cost as much as two steps: it has fewer samples, but
        # computes weights.
        return 2 * pace if self.cost is None else self.cost

    def next_step(self, step: int, steps: int, elapsed: float) -> int:
        """Return the step of the next capture, after `steps` steps in `elapsed` seconds."""
        pace = max(elapsed - self.spent, 1e-9) / max(steps, 1)
        cost = self.estimate_cost(pace)
        # The time at which all captures, including the next one, are exactly the budget.
        needed = (self.spent + cost) / self.budget - cost
        later = step + math.ceil(max(0.0, needed - elapsed) / pace)
        return -(-later // self.every) * self.every

    def record(self, seconds: float) -> None:
        """Record the seconds of a capture."""
        self.cost, self.spent = seconds, self.spent + seconds

    def share(self, elapsed: float) -> float:
        """Return the fraction of the elapsed time that captures took."""
        return self.spent / max(elapsed, 1e-9)


# A colour scale from dark blue to yellow that is readable with colour blindness.
STOPS = ((0, 32, 76), (87, 92, 109), (166, 157, 117), (255, 234, 70))
MARK = (214, 40, 57)
# Pictures of a grid: largest number of queries, smallest side of a cell and gap between cells in
# pixels.
QUERIES, SIDE, GAP = 6, 96, 2
# Pictures of text: largest width of a cell in pixels, and number of cells next to each other.
COLUMNS, ACROSS = 192, 4


def draw_attention(attention: LayerAttention) -> Tensor:
    """Draw the attention of the first sample's queries, without padding, uint8 [3, height, width].

    For a grid, rows of the picture are a few queries and columns are heads; each cell is the grid,
    with a mark at the query. For text, each cell is a head, with queries as lines and keys as
    columns (the largest of several keys if there are many). Every query is relative to its largest
    weight.
    """
    # A few queries may all be padding of a short text.
    sample = int(attention.is_real[0].any(1).long().argmax())
    real_queries, real_keys = (part[sample].cpu() for part in attention.is_real)
    query_index = attention.query_index.cpu()[real_queries]
    weights = attention.weights[sample].abs().float().cpu()[:, real_queries]  # [H, Q, M]
    weights = weights / weights.amax(-1, keepdim=True).clamp(min=1e-12)
    if attention.call.keys.index.shape[-1] == 1:
        return _draw_text(weights[..., real_keys])

    # Choose some queries evenly, and lay out the keys on the grid.
    keys = attention.grid[1].expand(len(attention.weights), -1)[sample].cpu()
    if attention.chain.dims.points:
        keys = keys & real_keys
    sizes = _grid_shape(attention, int(keys.sum()))
    chosen = torch.linspace(0, weights.shape[1] - 1, min(QUERIES, weights.shape[1])).long().unique()
    # [Q, H, (T,) rows, columns]
    cells = weights[:, chosen][..., keys].unflatten(-1, sizes).transpose(0, 1)
    query_cells = (query_index[chosen, None] == torch.arange(weights.shape[-1]))[:, keys].unflatten(
        -1, sizes
    )
    # Frames of a clip are next to each other.
    if len(sizes) == 3:
        cells, query_cells = (part.movedim(-3, -2).flatten(-2) for part in (cells, query_cells))
    return _draw_mosaic(cells, query_cells)


def _grid_shape(attention: LayerAttention, count: int) -> tuple[int, ...]:
    """Return the shape of the grid; a single row if it is unknown."""
    extent = attention.call.keys.grid_size
    return (1, count) if extent is None else tuple(int(size) for size in extent[0, 0])


def _draw_text(weights: Tensor) -> Tensor:
    """Draw weights [H, Q, M] of text, with a few heads next to each other."""
    heads, queries, keys = weights.shape
    weights = F.adaptive_max_pool1d(weights, min(keys, COLUMNS))
    # Lines are repeated, so that cells with few queries are roughly square.
    weights = weights.repeat_interleave(
        max(1, SIDE // queries // max(1, SIDE // weights.shape[-1])), 1
    )
    across = min(heads, ACROSS)
    cells = F.pad(weights, (0, 0, 0, 0, 0, -heads % across)).unflatten(0, (-1, across))
    return _draw_mosaic(cells, torch.zeros(len(cells), *cells.shape[-2:], dtype=torch.bool))


def _draw_mosaic(cells: Tensor, dots: Tensor) -> Tensor:
    """Join cells [down, across, rows, columns] with values from 0 to 1 into one picture.

    A value is a square of pixels. It has a mark inside where `dots`, bool [down, rows, columns], is
    true.
    """
    scale = max(1, SIDE // cells.shape[-1])
    inner = torch.arange(scale)
    inside = (inner >= scale // 3) & (inner < scale - scale // 3)
    marked = _magnify(dots, scale) & (inside[:, None] & inside).tile(dots.shape[-2:])
    mark = torch.tensor(MARK, dtype=torch.uint8)[:, None, None]
    pixels = torch.where(marked[:, None, None], mark, _magnify(_colorize(cells), scale))
    pixels = F.pad(pixels, (0, GAP, 0, GAP), value=255)  # [down, across, 3, height, width]
    return pixels.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)


def _colorize(values: Tensor) -> Tensor:
    """Map values [.., rows, columns] from 0 to 1 to colours uint8 [.., 3, rows, columns]."""
    stops = torch.tensor(STOPS, dtype=torch.float32)
    # Interpolate linearly between two neighbouring stops.
    at = values.float().nan_to_num().clamp(0, 1) * (len(stops) - 1)
    low = at.long().clamp(max=len(stops) - 2)
    return (
        stops[low]
        .lerp(stops[low + 1], (at - low)[..., None])
        .round()
        .to(torch.uint8)
        .movedim(-1, -3)
    )


def _magnify(cells: Tensor, scale: int) -> Tensor:
    return cells.repeat_interleave(scale, -2).repeat_interleave(scale, -1)


log = logging.getLogger("zoo")


class AttentionDiagnostics(L.Callback):
    """A callback that logs attention/<layer>/... as scalars, and as pictures to TensorBoard.

    Every logger receives scalars; TensorBoard also receives histograms. A training that ends by
    itself is recorded at its end, whatever its length and whatever the budget. All processes take
    part, because sharded weights need all of them: each has its share of the first validation
    batch, and rank 0 logs. Training is not affected: random states, modes of modules and weights
    are restored.

    Args:
        options: What is measured, and how often.
        broadcast: Returns the number of rank 0 in all processes.
        all_reduce_max: Returns the largest number of all processes.
        was_recorded: Whether an earlier process of the run has recorded a step, counted from 0.
    """

    def __init__(
        self,
        options: DiagnosticsOptions,
        broadcast: Callable[[int], int] = int,
        all_reduce_max: Callable[[int], int] = int,
        was_recorded: Callable[[int], bool] = lambda step: False,
    ) -> None:
        assert options.every_n_steps is not None
        self.options, self.broadcast, self.all_reduce_max = options, broadcast, all_reduce_max
        self.was_recorded = was_recorded
        self.cadence = LookSchedule(options.every_n_steps, options.max_overhead)
        self.inputs: tuple[Tensor | None, ...] | None = None
        self.due: int | None = None  # step of the next capture; None: never
        self.has_begun = False
        self.recorded: int | None = None
        """The step of the last record of this process, counted from 1; None: there is none."""
        self.is_grouped = False
        """Whether TensorBoard was told of its charts over layers, which it reads once."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        self.first, self.start = trainer.global_step, time.monotonic()
        self.has_begun = True
        interval = self.cadence.every
        # a multiple of `every`, so that a resumed run measures at the same steps
        self.due = (self.first // interval + 1) * interval

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Task,  # type: ignore[override]
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        step = trainer.global_step
        if self.due is None or step < self.due:
            return
        # Rank 0 decides for all processes, whose clocks differ.
        elapsed = time.monotonic() - self.start
        self.due = self.broadcast(self.cadence.next_step(step, step - self.first, elapsed))
        # A later step means that a capture would exceed the budget now.
        if self.due > step or not self._is_ready(trainer, pl_module):
            return
        self._record(trainer, pl_module, step)
        self.due = step + self.cadence.every

    def on_train_end(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Record the weights that training ends with, unless the last step was recorded."""
        step = trainer.global_step
        # `due` is the same in all processes, as are steps
        if self.due is None or not step or step == self.recorded:
            return
        if self._is_ready(trainer, pl_module):
            self._record(trainer, pl_module, step)

    def on_fit_end(self, trainer: L.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Record a training that had taken its last step before it was resumed.

        A signal may stop it between that step and its end. Lightning then calls no other hook.
        """
        step = trainer.global_step
        # strategies of several processes have taken the model apart by now
        if self.has_begun or trainer.world_size > 1 or not step or self.was_recorded(step - 1):
            return
        trainer.strategy.model_to_device()
        self.on_train_start(trainer, pl_module)
        self.on_train_end(trainer, pl_module)

    def _record(self, trainer: L.Trainer, task: Task, step: int) -> None:
        """Record a step, counted from 1, and the time that it takes."""
        began = _synchronize_clock(trainer)
        # Lightning numbers the losses of this step from 0.
        with isolate_rng():
            self._look(trainer, task, step - 1)
        self.recorded = step
        self.cadence.record(_synchronize_clock(trainer) - began)
        share = self.cadence.share(time.monotonic() - self.start)
        self._log(trainer, {"perf/diagnostics_share": share}, step - 1)

    def _is_ready(self, trainer: L.Trainer, task: Task) -> bool:
        """Choose samples if there are none yet, and return whether all processes have some."""
        # Only here, before the first capture: training begins without them.
        if self.inputs is not None:
            return True
        began = time.monotonic()
        with isolate_rng():
            reason = self._choose_samples(trainer, task)
        self.cadence.spent += time.monotonic() - began
        if self.all_reduce_max(bool(reason)):
            log.info("Diagnostics are skipped: %s", reason or "another process cannot")
            self.due = None
            return False
        return True

    def _choose_samples(self, trainer: L.Trainer, task: Task) -> str:
        """Read the first validation samples, and return the reason if there are none."""
        try:
            number_layers(task.model, self.options.layers)
            with _validation_mode(trainer):
                # the same samples each time, so that curves show the model and not the data
                data: DataModule = trainer.datamodule  # type: ignore[attr-defined]
                batch = data.divide_windows(next(iter(data.val_dataloader())))
                batch = trainer.strategy.batch_to_device(
                    trainer.precision_plugin.convert_input(batch), dataloader_idx=0
                )
                inputs = task.inputs(batch)
            if task.spec.is_image and len(inputs) > 1:
                return "images that keep their shape have no common grid"
        except OptionError as error:
            return str(error)
        except StopIteration:
            return "there are no validation samples"
        self.inputs = tuple(
            # cloned, since a loader may reuse the memory of a batch
            argument if argument is None else argument[: self.options.samples].clone()
            for argument in inputs
        )
        return ""

    def _look(self, trainer: L.Trainer, task: Task, step: int) -> None:
        assert self.inputs is not None
        scalars: dict[str, float] = {}
        writers = [
            logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)
        ]

        def see(attention: LayerAttention) -> None:
            if trainer.is_global_zero:
                scalars.update(
                    {
                        f"attention/{attention.layer}/{name}": value
                        for name, value in summarize_layer(attention).items()
                    }
                )
                for writer in writers:
                    _draw(writer, attention, step)

        def see_state(layer: int, measures: Mapping[str, Tensor]) -> None:
            for name, values in measures.items():
                scalars[f"state/{layer}/{name.partition(' ')[0]}"] = float(values.mean())

        # on all ranks, which a forward pass may need; only the first one logs
        forward = trainer.precision_plugin.forward_context()
        with forward, hook_states(task.model, see_state):
            capture_layers(task.model, self.inputs, see, self.options.queries, self.options.layers)
        if trainer.is_global_zero:
            if not self.is_grouped:
                for writer in writers:
                    writer.add_custom_scalars(group_by_measure(scalars))
                self.is_grouped = True
            self._log(trainer, scalars, step)

    def _log(self, trainer: L.Trainer, metrics: Mapping[str, float], step: int) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(dict(metrics), step)


def group_by_measure(names: Iterable[str]) -> dict[str, dict[str, list[Any]]]:
    """Return the charts of TensorBoard's tab Custom Scalars: one of each measure, over all layers.

    Args:
        names: Names such as attention/0/entropy.
    """
    tags: dict[str, list[str]] = {}
    for name in names:
        group, _, layer_and_measure = name.partition("/")
        _, _, measure = layer_and_measure.partition("/")
        tags.setdefault(f"{group}/{measure}", []).append(name)
    charts: dict[str, list[Any]] = {
        key: ["Multiline", [f"^{re.escape(tag)}$" for tag in tagged]]
        for key, tagged in tags.items()
    }
    return {"measures over layers": charts}


@torch.no_grad()
def summarize_layer(attention: LayerAttention) -> dict[str, float]:
    """Return the means over heads of a layer's metrics and of its encodings' values."""
    metrics = {kind.name: kind.compute(attention) for kind in list_metrics(attention)}
    # one copy to the host for all metrics, for which it waits once
    means = torch.stack([value.nanmean().double() for value in metrics.values()]).tolist()
    message = dict(zip(metrics, means, strict=True))
    for panel in attention.chain.panels(attention.call):
        if isinstance(panel, Bars):
            values = [*panel.values.values()]
            message[panel.title.replace(": ", "/").replace(" ", "_").lower()] = sum(values) / max(
                len(values), 1
            )
    # A metric without a value, such as one of no visible pairs, is left out.
    return {name: value for name, value in message.items() if math.isfinite(value)}


def _draw(writer: Any, attention: LayerAttention, step: int) -> None:
    tag = f"attention/{attention.layer}"
    for name, values in (("weights", attention.weights), ("scores", attention.scores)):
        if values is not None and len(message := values[values.isfinite() & (values != 0)]):
            writer.add_histogram(f"{tag}/{name}", message.cpu(), step)
    writer.add_image(f"{tag}/maps", draw_attention(attention), step)


def _synchronize_clock(trainer: L.Trainer) -> float:
    """Return the time at which the device has finished its queued work."""
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize(trainer.strategy.root_device)
    return time.monotonic()


@contextmanager
def _validation_mode(trainer: L.Trainer) -> Iterator[None]:
    """Within the context, batches are those of validation, without augmentation."""
    before = trainer.training
    trainer.training = False
    try:
        yield
    finally:
        trainer.training = before
