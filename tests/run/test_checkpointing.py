"""What `best` and `last` are of: weights that were validated, wherever a run ends, and numbers that are finite."""

import json
import signal
from pathlib import Path

import pytest
import torch
from training import evaluate, fit

from zoo.errors import NonFiniteError, Stopped
from zoo.run import checkpoint
from zoo.run.callbacks.checkpointing import Checkpoints
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.tasks.classification import Classification

LAST = [
    "trainer.max_epochs=null",
    "trainer.max_steps=8",
]  # in the middle of the second epoch of six


def read_validations(run):
    """{step: loss} of the validations."""
    header, *rows = [row.split(",") for row in Path(run, "metrics.csv").read_text().splitlines()]
    found = (dict(zip(header, row, strict=True)) for row in rows)
    return {int(row["step"]): float(row["val/loss"]) for row in found if row["val/loss"]}


def steps(run):
    return {
        name: checkpoint.read(Path(run, f"checkpoints/{name}.ckpt"))["global_step"]
        for name in ("best", "last")
    }


def test_a_run_of_so_many_steps_is_validated_where_it_ends(tiny):
    fit("vit_comrope", [*tiny, *LAST], Path("run"), "never")
    losses = [*read_validations("run").values()]
    assert len(losses) == 2
    best = checkpoint.read(Path("run/checkpoints/best.ckpt"))
    assert best["best_metric"] == pytest.approx(min(losses))
    assert steps("run") == {"best": 8 if losses[1] <= losses[0] else 6, "last": 8}


def test_a_run_shorter_than_an_epoch_has_a_best(tiny):
    result = fit("vit_comrope", [*tiny, "trainer.max_steps=2"], Path("run"), "never")
    assert len(read_validations("run")) == 1
    assert steps("run") == {"best": 2, "last": 2}

    # the confusion matrix of its test agrees with the test
    confusion = json.loads(Path("run/confusion.json").read_text())
    counts = torch.tensor(confusion["counts"])
    assert counts.shape == (10, 10)
    assert len(confusion["classes"]) == 10
    assert int(counts.sum()) == result["count"]
    accuracy = float(counts.trace() / counts.sum())
    assert accuracy == pytest.approx(result["metrics"]["test/accuracy"])

    # an evaluation writes it too
    Path("run/confusion.json").unlink()
    evaluate("run", ["evaluate.resolutions=null"])
    assert json.loads(Path("run/confusion.json").read_text()) == confusion


@pytest.mark.parametrize("last", [8, 12])  # in the middle of an epoch, at its end
def test_a_signal_in_the_last_validation_loses_nothing(last, tiny, weights, monkeypatch):
    given = [*tiny, "trainer.max_epochs=null", f"trainer.max_steps={last}"]
    whole = fit("vit_comrope", given, Path("whole"), "never")

    def stop(self, trainer, *_):
        if trainer.global_step == last:
            self._note(signal.SIGTERM, None)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_validation_batch_start", stop)
        with pytest.raises(Stopped, match=f"SIGTERM at step {last}"):
            fit("vit_comrope", given, Path("broken"), "never")
    resumed = fit("vit_comrope", given, Path("broken"), "auto")
    assert resumed["metrics"] == whole["metrics"]
    assert read_validations("broken") == read_validations("whole")
    assert steps("broken") == steps("whole")


def test_a_signal_in_the_last_step_loses_no_validation(tiny, monkeypatch):
    def stop(self, trainer, *_):
        if trainer.global_step == 7:
            self._note(signal.SIGTERM, None)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", stop)
        with pytest.raises(Stopped, match="SIGTERM at step 8"):
            fit("vit_comrope", [*tiny, *LAST], Path("run"), "never")
    assert len(read_validations("run")) == 2


def test_the_same_few_batches_are_trained_on_after_a_resume(tiny, weights):
    few = [*tiny, "trainer.overfit_batches=2", "optim.warmup_ratio=0", "optim.min_lr_ratio=1"]
    fit("vit_comrope", [*few, "trainer.max_epochs=4"], Path("whole"), "never")
    fit("vit_comrope", [*few, "trainer.max_epochs=2"], Path("broken"), "never")
    resumed = fit(
        "vit_comrope", [*few, "trainer.max_epochs=4"], None, "broken/checkpoints/last.ckpt"
    )
    whole, broken = (weights(f"{run}/checkpoints/last.ckpt") for run in ("whole", resumed["run"]))
    assert all(torch.equal(one, broken[name]) for name, one in whole.items())


@pytest.mark.parametrize("first", [float("nan"), float("inf")])
def test_what_is_no_number_is_never_the_best(first, tiny, monkeypatch):
    values = iter([first, 0.5, 0.7])
    end = Checkpoints.on_train_epoch_end

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.callback_metrics["val/loss"] = torch.tensor(next(values))
        end(self, trainer, pl_module)

    monkeypatch.setattr(Checkpoints, "on_train_epoch_end", on_train_epoch_end)
    fit("vit_comrope", tiny, Path("run"), "never")
    assert steps("run") == {"best": 12, "last": 18}


def test_weights_that_are_not_finite_are_not_saved(tiny, monkeypatch):
    step = Classification.optimizer_step

    def optimizer_step(self, *given, **more):
        step(self, *given, **more)
        if self.trainer.global_step == 11:  # in the last step of the second epoch
            with torch.no_grad():
                next(iter(self.model.parameters())).fill_(float("nan"))

    monkeypatch.setattr(Classification, "optimizer_step", optimizer_step)
    with pytest.raises(
        NonFiniteError, match=r"step 12: .* is not finite after it; .*last\.ckpt"
    ) as stopped:
        fit("vit_comrope", tiny, Path("run"), "never")
    assert stopped.value.code == 3
    assert steps("run")["last"] == 6
