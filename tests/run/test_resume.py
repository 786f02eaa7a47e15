"""Whatever interrupts a run, resuming it gives the run that was not interrupted."""

import signal
from pathlib import Path

import pytest
import torch

from zoo.errors import CheckpointError, Stopped
from zoo.run.guards import Signals
from zoo.verbs.fit import fit


def stop_at(step, number=signal.SIGTERM):
    """A hook that makes a signal arrive while `step` is under way."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == step - 1:
            self._note(number, None)

    return on_train_batch_start


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("step", [2, 6, 8])  # in the first epoch, at the end of it, in the second
def test_a_stopped_run_ends_as_if_it_had_not_been(step, tiny, weights, monkeypatch):
    whole = fit("vit_comrope", tiny, Path("whole"), "never")
    with monkeypatch.context() as patch:
        patch.setattr(Signals, "on_train_batch_start", stop_at(step))
        with pytest.raises(Stopped, match=f"SIGTERM at step {step}; saved broken/checkpoints/last.ckpt") as stopped:
            fit("vit_comrope", tiny, Path("broken"), "never")
    assert stopped.value.code == 143
    resumed = fit("vit_comrope", tiny, Path("broken"), "auto")
    assert same(weights("whole/checkpoints/last.ckpt"), weights("broken/checkpoints/last.ckpt"))
    assert same(weights("whole/checkpoints/best.ckpt"), weights("broken/checkpoints/best.ckpt"))
    assert resumed["metrics"] == whole["metrics"]


def test_resuming_a_finished_run_trains_no_more(tiny, weights):
    first = fit("vit_comrope", tiny, None, "never")
    before = weights("runs/vit_comrope/latest/checkpoints/last.ckpt")
    again = fit("vit_comrope", tiny, None, "auto")
    assert again["run"] == first["run"]
    assert again["metrics"] == first["metrics"]
    assert same(before, weights("runs/vit_comrope/latest/checkpoints/last.ckpt"))


def test_auto_starts_anew_where_the_recipe_changed(tiny):
    first = fit("vit_comrope", tiny, None, "never")
    second = fit("vit_comrope", [*tiny, "model.depth=1"], None, "auto")
    assert Path(first["run"]).resolve() != Path(second["run"]).resolve()


def test_a_checkpoint_of_another_recipe_is_refused(tiny):
    fit("vit_comrope", [*tiny, "trainer.max_epochs=1"], Path("one"), "never")
    with pytest.raises(CheckpointError, match="of another recipe, it differs in model"):
        fit("vit_comrope", [*tiny, "model.depth=1"], None, "one")
