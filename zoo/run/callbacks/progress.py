"""Progress for people: one bar on a terminal, plain lines elsewhere; and the speed of training as metrics."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import lightning as L
from tqdm import tqdm

log = logging.getLogger("zoo")

QUIET = 10.0  # seconds between lines where there is no terminal


class Progress(L.Callback):
    """Shows steps done, rate, time left, and the latest metrics; logs perf/samples_per_second and perf/data_share.

    The latter is the share of its time that training spends between one batch and the next: waiting for data, moving it to
    the device, augmenting it there as far as the host takes part, and keeping books.
    """

    def __init__(self) -> None:
        self.bar: tqdm[Any] | None = None
        self.shown: dict[str, str] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.total = int(trainer.estimated_stepping_batches)
        self.first = trainer.global_step
        self.start = self.spoken = self.mark = time.monotonic()
        self.samples, self.waited, self.ended = 0, 0.0, self.start
        if sys.stderr.isatty() and trainer.is_global_zero:
            self.bar = tqdm(
                total=self.total,
                initial=self.first,
                unit="step",
                dynamic_ncols=True,
                file=sys.stderr,
            )

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.ended = time.monotonic()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.waited += time.monotonic() - self.ended

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.samples += len(batch[0]) * trainer.world_size
        step, now = trainer.global_step, time.monotonic()
        if step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self.shown["loss"] = f"{float(outputs['loss']):.4f}"
            seconds = max(now - self.mark, 1e-9)
            pl_module.log("perf/samples_per_second", self.samples / seconds, batch_size=1)
            pl_module.log("perf/data_share", self.waited / seconds, batch_size=1)
            self.samples, self.waited, self.mark = 0, 0.0, now
        if self.bar is not None:
            self.bar.set_description(f"epoch {trainer.current_epoch + 1}", refresh=False)
            self.bar.set_postfix(self.shown, refresh=False)
            self.bar.update(step - self.bar.n)
        elif now - self.spoken > QUIET:
            self.spoken = now
            rate = (step - self.first) / (now - self.start)
            told = " ".join(f"{name} {value}" for name, value in self.shown.items())
            log.info(
                "step %d/%d  %.1f steps/s  %s left  %s",
                step,
                self.total,
                rate,
                clock((self.total - step) / rate),
                told,
            )
        self.ended = time.monotonic()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = trainer.callback_metrics
        self.shown.update(
            {name: f"{float(v):.4f}" for name, v in metrics.items() if name == pl_module.monitor}
        )
        self.mark = self.ended = time.monotonic()  # validation is not training time
        self.samples, self.waited = 0, 0.0

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class Tested(L.Callback):
    """Says now and then how far a test is, where it takes long."""

    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.start = self.spoken = time.monotonic()

    def on_test_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        now, done, total = time.monotonic(), batch_idx + 1, trainer.num_test_batches[0]
        if trainer.is_global_zero and now - self.spoken > QUIET and done < total < float("inf"):
            self.spoken = now
            left = clock((now - self.start) * (total / done - 1))
            log.info("tested %d of %d batches, %s left", done, total, left)


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
