"""Progress of training and testing: a bar on a terminal, else lines; speed and memory as metrics.

The callbacks that a recipe names under `trainer.callbacks` are here too: they log more of training.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch.distributed.tensor import DTensor
from tqdm import tqdm

from zoo.registry import register
from zoo.run.callbacks.manifest import measure_resident_memory
from zoo.utils import Ticker, format_duration

log = logging.getLogger("zoo")


class TrainingProgress(L.Callback):
    """Shows steps, rate, time left and the latest metrics; logs speed and memory.

    At each logged step it logs, since the logged step before:

    - perf/samples_per_second, and perf/tokens_per_second of texts, padding included, of all
      processes;
    - perf/data_share, the share of time between one batch and the next: waiting for data, moving it
      to the device, augmenting it there, bookkeeping;
    - perf/mfu, the model FLOPs utilization (Chowdhery et al. 2022, arXiv:2204.02311, appendix B):
      the operations of forward and backward passes per second, divided by the peak of the devices.
      Passes that activation checkpointing repeats do not count;
    - the memory of the first process in GB: perf/memory_allocated_gb and, since the start of the
      process, perf/memory_peak_gb of tensors on a CUDA device; perf/memory_resident_gb on a CPU.

    Args:
        sample_flops: Operations of the forward and backward pass of a sample, by the number of
            optimizer steps done. None: unknown.
        peak_flops: Operations per second that a device does at most. None: unknown. MFU is logged
            only if both are known.
    """

    def __init__(
        self, sample_flops: Callable[[int], float] | None = None, peak_flops: float | None = None
    ) -> None:
        self.sample_flops, self.peak_flops = sample_flops, peak_flops
        self.bar: tqdm[Any] | None = None
        self.shown: dict[str, str] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Start the clock."""
        self.total = pl_module.count_planned_steps()
        self.first_step = trainer.global_step
        self.start = self.mark = self.batch_end = time.monotonic()
        self.samples, self.tokens, self.waiting, self.ticker = 0, 0, 0.0, Ticker()
        self.operations, self.step = 0.0, self.first_step
        if sys.stderr.isatty() and trainer.is_global_zero:
            self.bar = tqdm(
                total=self.total,
                initial=self.first_step,
                unit="step",
                dynamic_ncols=True,
                file=sys.stderr,
            )

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Leave what comes between epochs out of the waiting."""
        self.batch_end = time.monotonic()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the waiting."""
        self.waiting += time.monotonic() - self.batch_end
        # before the batch: a step that it completes may begin another stage
        self.step = trainer.global_step

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the samples, and report a step after the last of its batches."""
        # every process has a batch of its own
        rows = len(batch[0]) * trainer.world_size
        self.samples += rows
        if self.sample_flops is not None:
            self.operations += rows * self.sample_flops(self.step)
        if pl_module.spec.unit == "tokens":
            self.tokens += batch[0].numel() * trainer.world_size
        if pl_module.completes_step():
            self._report_step(trainer, pl_module)
        self.batch_end = time.monotonic()

    def _report_step(self, trainer: L.Trainer, task: Any) -> None:
        """Log speed and memory, and show the progress."""
        step = trainer.global_step
        # reading the loss waits for the GPU, so it is read as seldom as it is logged
        if step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            # that of all batches and processes of the step; Lightning divides that of a batch
            loss = trainer.callback_metrics.get("train/loss")
            if loss is not None:
                self.shown["loss"] = f"{float(loss):.4f}"
            measured = self._measure(trainer, task)
            for name, value in measured.items():
                task.log(f"perf/{name}", value, batch_size=1)
            self.shown |= self._format(measured, task.spec.unit)
        if self.bar is not None:
            self.bar.set_description(f"epoch {trainer.current_epoch + 1}", refresh=False)
            self.bar.set_postfix(self.shown, refresh=False)
            self.bar.update(step - self.bar.n)
        elif self.ticker.is_due():
            rate = (step - self.first_step) / (time.monotonic() - self.start)
            left = format_duration((self.total - step) / max(rate, 1e-9))
            metrics = " ".join(f"{name} {value}" for name, value in self.shown.items())
            log.info("step %d/%d  %.1f steps/s  %s left  %s", step, self.total, rate, left, metrics)

    def _measure(self, trainer: L.Trainer, task: Any) -> dict[str, float]:
        """Measure speed since the last call, and memory; see the class for names and units."""
        # only now, since the steps are done on a GPU once their loss has been read
        now = time.monotonic()
        seconds = max(now - self.mark, 1e-9)
        metrics = {"samples_per_second": self.samples / seconds}
        if task.spec.unit == "tokens":
            metrics["tokens_per_second"] = self.tokens / seconds
        metrics["data_share"] = self.waiting / seconds
        if self.sample_flops is not None and self.peak_flops is not None:
            rate = self.operations / seconds
            metrics["mfu"] = rate / (self.peak_flops * trainer.world_size)
        device = trainer.strategy.root_device
        if device.type == "cuda":
            metrics["memory_allocated_gb"] = torch.cuda.memory_allocated(device) / 1e9
            metrics["memory_peak_gb"] = torch.cuda.max_memory_allocated(device) / 1e9
        elif device.type == "cpu" and (resident := measure_resident_memory()) is not None:
            metrics["memory_resident_gb"] = resident / 1e9
        self.samples, self.tokens, self.waiting, self.mark = 0, 0, 0.0, now
        self.operations = 0.0
        return metrics

    @staticmethod
    def _format(metrics: dict[str, float], unit: str) -> dict[str, str]:
        """Format speed and memory for the line of the log and the bar."""
        rate = metrics.get("tokens_per_second", metrics["samples_per_second"])
        shown = {f"{unit}/s": f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"}
        if "mfu" in metrics:
            shown["MFU"] = f"{metrics['mfu']:.1%}"
        for name in ("allocated", "peak", "resident"):
            if (size := metrics.get(f"memory_{name}_gb")) is not None:
                shown[name] = f"{size:.2f} GB"
        return shown

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Show the monitored metric; validation is not training time."""
        value = trainer.callback_metrics.get(str(pl_module.monitor))
        if value is not None:
            self.shown[str(pl_module.monitor)] = f"{float(value):.4f}"
        self.mark = self.batch_end = time.monotonic()
        self.samples, self.tokens, self.waiting, self.operations = 0, 0, 0.0, 0.0

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the bar."""
        self.close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class EvaluationProgress(L.Callback):
    """Logs how far a long test is, now and then."""

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self.start, self.ticker = time.monotonic(), Ticker()

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Log the progress, if a line is due."""
        done, total = batch_idx + 1, trainer.num_test_batches[0]
        if trainer.is_global_zero and done < total < float("inf") and self.ticker.is_due():
            left = format_duration((time.monotonic() - self.start) * (total / done - 1))
            log.info("Tested %d of %d batches, %s left", done, total, left)


@register
class LearningRate(L.Callback):
    """Logs the learning rate of each step, as train/learning_rate."""

    name = "learning_rate"

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the rate that the optimizer will use; parameter groups have theirs in proportion."""
        if not pl_module.completes_step():
            return
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        pl_module.log("train/learning_rate", float(rate), batch_size=1)


@register
class GradientNorm(L.Callback):
    """Logs the norm of all gradients before it is clipped, as train/gradient_norm."""

    name = "gradient_norm"

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: Any, optimizer: torch.optim.Optimizer
    ) -> None:
        """Log the norm where the step is logged."""
        if not pl_module.is_step_logged():
            return
        gradients = [p.grad for p in pl_module.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        # with sharded weights, each process has a part of the sum
        whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
        pl_module.log("train/gradient_norm", whole, batch_size=1)
