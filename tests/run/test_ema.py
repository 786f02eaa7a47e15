"""An average of the weights: what it is, what sees it, and that an interruption changes nothing of it."""

import signal
from pathlib import Path

import pytest
import torch
from tiny import TINY
from training import evaluate, fit

import zoo
from zoo.config.command_line import parse_overrides
from zoo.errors import CheckpointError, RecipeError, Stopped
from zoo.run import checkpoint
from zoo.run.build import build_data, build_trainer
from zoo.run.callbacks.ema import LIVE, ExponentialMovingAverage
from zoo.run.callbacks.stop_on_signal import StopOnSignal
from zoo.tasks.classification import Classification

DECAY = 0.7
SHORT = [
    *TINY,
    "model.encoding=rope_mixed",
    "model.block.dropout=0.1",
    "data.batch_size=128",
    "trainer.max_epochs=2",
]


@pytest.fixture
def short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return SHORT


@pytest.fixture
def with_average(short):
    return [*short, f"trainer.ema_decay={DECAY}"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result and folder of a run with an average, and the weights of its head after each step."""
    seen, folder = [], tmp_path_factory.mktemp("averaged") / "whole"

    def note(self, *given):
        seen.append(self.model.head.weight.detach().clone())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Classification, "on_train_batch_end", note)
        result = fit("vit_comrope", [*SHORT, f"trainer.ema_decay={DECAY}"], folder, "never")
    return result, folder, seen


def read(run, name="last"):
    return checkpoint.read(Path(run, "checkpoints", f"{name}.ckpt"))


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_a_checkpoint_has_the_average_and_what_goes_on_being_trained(whole, short):
    _, run, seen = whole
    fit("vit_comrope", short, Path("plain"), "never")
    content, plain = read(run), read("plain")["state_dict"]
    expected = seen[0]
    for weight in seen[1:]:
        expected = DECAY * expected + (1 - DECAY) * weight
    torch.testing.assert_close(content["state_dict"]["model.head.weight"], expected)
    assert same(content[LIVE], plain)
    assert content["state_dict"].keys() == plain.keys()


def test_the_average_is_validated_tested_and_loaded(whole):
    result, run, _ = whole
    content, task = read(run, "best"), zoo.load(run)
    assert same(task.state_dict(), content["state_dict"])
    assert evaluate(run).metrics == result["metrics"]
    recipe = zoo.load_recipe(run / "recipe.yaml")
    data, trainer = build_data(recipe), build_trainer(recipe)
    (validated,) = trainer.validate(task, datamodule=data, verbose=False)
    assert validated[task.monitor] == pytest.approx(content["best_metric"])
    task.load_state_dict(content[LIVE])
    (live,) = trainer.test(task, datamodule=data, verbose=False)
    assert live["test/loss"] != result["metrics"]["test/loss"]


@pytest.mark.parametrize("when", ["step 2", "validation"])
def test_a_stopped_run_ends_as_if_it_had_not_been(when, whole, with_average, monkeypatch):
    def stop_in_training(self, trainer, *_):
        if trainer.global_step == 1:
            self._note(signal.SIGTERM, None)

    def stop_in_validation(self, trainer, pl_module, batch, batch_idx, *_):
        if trainer.current_epoch == 0 and batch_idx == 2:
            self._note(signal.SIGTERM, None)

    with monkeypatch.context() as patch:
        hooked = {"validation": ("on_validation_batch_start", stop_in_validation)}
        patch.setattr(StopOnSignal, *hooked.get(when, ("on_train_batch_start", stop_in_training)))
        with pytest.raises(Stopped):
            fit("vit_comrope", with_average, Path("broken"), "never")
    assert (
        fit("vit_comrope", with_average, Path("broken"), "auto")["metrics"] == whole[0]["metrics"]
    )
    for name in ("last", "best"):
        one, two = read(whole[1], name), read("broken", name)
        for kept in ("state_dict", LIVE, "averaging_state"):
            assert same(one[kept], two[kept]), f"{name}: {kept}"


def test_a_killed_run_ends_as_if_it_had_not_been(whole, with_average, monkeypatch):
    def die(self, trainer, *_):
        if trainer.current_epoch == 1 and trainer.global_step > 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_train_batch_start", die)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit("vit_comrope", with_average, Path("broken"), "never")
    fit("vit_comrope", with_average, Path("broken"), "auto")
    assert all(same(read(whole[1])[kept], read("broken")[kept]) for kept in ("state_dict", LIVE))


def test_an_average_may_begin_late_but_not_be_dropped(with_average, short):
    fit("vit_comrope", [*short, "trainer.max_epochs=1"], Path("run"), "never")
    fit("vit_comrope", with_average, Path("run"), "auto")
    assert LIVE in read("run")
    with pytest.raises(
        CheckpointError, match="its weights are an average, which this recipe does not keep"
    ):
        fit("vit_comrope", [*short, "trainer.max_epochs=4"], Path("run"), "auto")


def test_what_cannot_be_averaged_is_refused(with_average):
    more = [*with_average, "trainer.precision=bf16-true"]
    with pytest.raises(RecipeError, match=r"trainer\.ema_decay: an average"):
        zoo.load_recipe("vit_comrope", parse_overrides(more))


def test_constants_and_equals_are_not_rounded_away():
    average, weights = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    average.load_state_dict(weights.state_dict())
    update = ExponentialMovingAverage(0.999)._kwargs["multi_avg_fn"]
    for _ in range(10):
        update(list(average.parameters()), list(weights.parameters()), 1)
    assert same(average.state_dict(), weights.state_dict())
