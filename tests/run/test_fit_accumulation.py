"""Callbacks take a step for a step, into however many batches it is divided."""

import logging
import sys
from collections import Counter
from functools import wraps
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from pictures import parquet
from tiny import TINY
from training import fit

from zoo import registry
from zoo.diagnostics.callback import AttentionDiagnostics
from zoo.errors import ZooError
from zoo.run import loggers
from zoo.run.callbacks import progress
from zoo.run.callbacks.checkpointing import Checkpoints
from zoo.run.callbacks.nan_guard import FiniteGuard
from zoo.run.callbacks.progress import TrainingProgress
from zoo.tasks.base import Task

HOOKS = ("on_train_batch_start", "on_train_batch_end")
EVERYTHING = [
    "model.position_augmentation.jitter=0",
    "model.block.dropout=0",
    "model.block.drop_path=0",
    "data.val=0.3996",  # 360 samples: the last of six steps has 40 of 64
    "trainer.log_every_n_steps=2",
    "trainer.callbacks=[learning_rate,gradient_norm]",
    "trainer.save_every_n_steps=2",
    "trainer.val_every_n_steps=3",
    "trainer.ema_decay=0.9",
    "trainer.early_stopping.patience=9",
    "diagnostics.every_n_steps=2",
    "diagnostics.max_overhead=1",
    "trainer.profile.steps=[2,3]",
    "stages=[{from_step: 3, model: {block: {norm_eps: 1e-5}}}]",
]
"""Options with which every callback has something to do."""


def list_callbacks(base=L.Callback):
    """The callbacks of zoo that Lightning calls for each batch."""
    for cls in base.__subclasses__():
        yield from list_callbacks(cls)
        if cls.__module__.startswith("zoo."):
            for hook in HOOKS:
                if getattr(cls, hook) is not getattr(L.Callback, hook):
                    yield cls, hook


@pytest.fixture
def effects(monkeypatch, tmp_path):
    """{(hook, step, what it did): how often}, while Lightning calls a hook of a callback for a batch."""
    monkeypatch.chdir(tmp_path)
    counts, running = Counter(), []
    for name in registry.names("callbacks"):
        registry.find("callbacks", name)

    def watch_hook(cls, hook):
        call = getattr(cls, hook)

        @wraps(call)
        def watched(self, trainer, *arguments):
            running.append((f"{cls.__name__}.{hook}", trainer.global_step))
            counts[*running[-1], "called"] = 1
            call(self, trainer, *arguments)
            running.pop()

        monkeypatch.setattr(cls, hook, watched)

    def watch_effect(owner, name):
        call = getattr(owner, name)

        @wraps(call)
        def watched(*arguments, **named):
            if len(running) == 1:
                hook, step = running[0]
                # an effect within another one is not counted again
                running.append((hook, step))
                counts[hook, step, name] += 1
                try:
                    return call(*arguments, **named)
                finally:
                    running.pop()
            return call(*arguments, **named)

        monkeypatch.setattr(owner, name, watched)

    for cls, hook in [*list_callbacks()]:
        watch_hook(cls, hook)
    for owner, name in (
        (Task, "log"),
        (torch.Tensor, "__float__"),
        (torch.Tensor, "item"),
        (progress.tqdm, "update"),
        (Checkpoints, "save"),
        (AttentionDiagnostics, "_look"),
        (torch.optim.swa_utils.AveragedModel, "update_parameters"),
        (logging.Logger, "info"),
    ):
        watch_effect(owner, name)
    return counts


def test_callbacks_act_once_a_step_and_not_once_a_batch(effects, monkeypatch):
    # the bar of a terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    whole = ["data.batch_size=64"]
    cut = ["data.batch_size=16", "trainer.accumulate_grad_batches=4"]
    found = []
    for options in (whole, cut):
        fit("vit_comrope", [*TINY, *EVERYTHING, *options])
        found.append(Counter(effects))
        effects.clear()
    called = {key[0] for key in found[0] if key[2] == "called"}
    assert called == {f"{cls.__name__}.{hook}" for cls, hook in list_callbacks()}
    in_whole, in_cut = (
        {key: count for key, count in effect.items() if key[2] != "called"} for effect in found
    )
    assert in_cut == in_whole
    steps = {step for _, step, name in in_whole if name == "update"}
    assert steps == {1, 2, 3, 4, 5, 6}
    assert {name for _, _, name in in_whole} >= {"log", "__float__", "save", "_look"}


def test_the_loss_of_a_step_is_shown_as_it_is_logged(monkeypatch, tmp_path):
    """It is the mean over the samples of a step; Lightning divides those of batches."""
    monkeypatch.chdir(tmp_path)
    shown, batches, means = {}, [], {}
    report, record = TrainingProgress._report_step, Task.record_loss

    def note_loss(self, loss, samples, *targets):
        batches.append((loss.item(), samples))
        record(self, loss, samples, *targets)

    def note_shown(self, trainer, task):
        report(self, trainer, task)
        losses, sizes = zip(*batches, strict=True)
        shown[trainer.global_step] = self.shown.get("loss")
        means[trainer.global_step] = np.average(losses, weights=sizes)
        batches.clear()

    monkeypatch.setattr(Task, "record_loss", note_loss)
    monkeypatch.setattr(TrainingProgress, "_report_step", note_shown)
    options = ["trainer.accumulate_grad_batches=4", "data.batch_size=16"]
    run = fit("vit_comrope", [*TINY, *EVERYTHING, *options])["run"]
    _, rows = loggers.read(Path(run) / "metrics.csv")
    logged = {int(row["step"]) + 1: row["train/loss"] for row in rows if row.get("train/loss")}
    assert [*logged] == [2, 4, 6]
    for step, loss in logged.items():
        assert shown[step] == f"{float(loss):.4f}"
        assert float(loss) == pytest.approx(means[step], rel=1e-5)


SHORT = """
extends: [model/vit_tiny, data/images, optim/adamw, trainer/default]
model: {dim: 16, depth: 1, heads: 2, patch_size: 4, encoding: rope_axial, block: {drop_path: 0}}
data: {path: made, size: 8, batch_size: 8, val: test, test: test, stream: {samples: 64}}
task: classification
trainer: {max_epochs: 2, accelerator: cpu, accumulate_grad_batches: 4, logger: []}
diagnostics: {every_n_steps: null}
"""
"""Epochs of 64 samples, of which a table has 40: a step of four batches and one of the fifth."""


def test_an_epoch_that_ends_early_steps_and_validates(monkeypatch, tmp_path, caplog, weights):
    monkeypatch.chdir(tmp_path)
    parquet(Path("made/train-0.parquet"), 40)
    parquet(Path("made/test-0.parquet"), 7)
    Path("short.yaml").write_text(SHORT)
    steps = []
    step = FiniteGuard.on_before_optimizer_step

    def note(self, trainer, task, optimizer):
        step(self, trainer, task, optimizer)
        steps.append((trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_idx))

    def interrupt(self, trainer, task):
        if trainer.current_epoch == 1:
            raise ZooError("interrupted")

    monkeypatch.setattr(FiniteGuard, "on_before_optimizer_step", note)
    fit("short.yaml", [], Path("whole"))
    assert steps == [(0, 3), (0, 4), (1, 3), (1, 4)]
    _, rows = loggers.read(Path("whole/metrics.csv"))
    assert [row["epoch"] for row in rows if row.get("val/loss")] == ["0", "1"]
    warning = "an epoch ends after 40 samples, for want of rows; steps were planned for 64"
    assert sum(warning in message for message in caplog.messages) == 1

    # the next epoch begins at its first row, also where another process resumes
    with monkeypatch.context() as patch:
        patch.setattr(TrainingProgress, "on_train_epoch_start", interrupt)
        with pytest.raises(ZooError, match="interrupted"):
            fit("short.yaml", [], Path("halves"))
    fit("short.yaml", [], Path("halves"), "auto")
    whole, halves = (weights(f"{name}/checkpoints/last.ckpt") for name in ("whole", "halves"))
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
