"""A number that is not finite: what is written down takes the step again, and names the module it began with."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from training import fit

import zoo
from zoo.errors import NonFiniteError
from zoo.run import checkpoint
from zoo.run.checkpoint import set_random_state
from zoo.tasks.classification import Classification

STEP = 7  # of 18, in the second epoch
PLACE = "model.blocks.1.attn.o_proj"


def spoil(tensor):
    return tensor * torch.where(torch.arange(len(tensor)) == 3, torch.inf, 1.0)[:, None, None]


def spoil_gradient(tensor):
    if tensor.requires_grad:
        tensor.register_hook(spoil)
    return tensor


@contextmanager
def plant(task, change):
    """One module gives something else, or takes another gradient."""
    module = task.get_submodule(PLACE)
    forward = module.forward
    module.forward = lambda *given: change(forward(*given))
    yield
    del module.forward


def break_run(overrides, monkeypatch, change):
    """The message, and the contents of the replay, of a run with a fault in one step."""
    step = Classification.training_step

    def training_step(self, batch, batch_idx):
        if self.trainer.global_step < STEP:
            return step(self, batch, batch_idx)
        with plant(self, change):
            return step(self, batch, batch_idx)

    monkeypatch.setattr(Classification, "training_step", training_step)
    with pytest.raises(NonFiniteError) as stopped:
        fit("vit_comrope", overrides, Path("run"), "never")
    return str(stopped.value), checkpoint.read(Path("run/replay.pt"))


@pytest.mark.parametrize(
    "more",
    [
        ["trainer.accumulate_grad_batches=2"],
        ["trainer.precision=bf16-mixed"],
        [
            "trainer.compile=true",
            "data.batch_size=32",
        ],  # in the first epoch, before a validation is compiled too
    ],
    ids=["accumulated", "bfloat16", "compiled"],
)
def test_the_first_module_is_named(more, tiny, monkeypatch):
    compiled = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda module: compiled(module, backend="eager")
    )
    printed, content = break_run([*tiny, "trainer.max_epochs=6", *more], monkeypatch, spoil)
    assert (
        f"first: the output of {PLACE}; batch, random states and weights are in run/replay.pt"
        in printed
    )
    assert content["replay"]["first"] == f"the output of {PLACE}"
    assert content["replay"]["step"] == STEP


def test_the_first_gradient_is_named(tiny, monkeypatch):
    printed, _ = break_run(tiny, monkeypatch, spoil_gradient)
    assert f"first: the gradient of the output of {PLACE}" in printed


def test_no_weight_that_is_not_finite_is_in_any_file(tiny, monkeypatch, weights):
    break_run(tiny, monkeypatch, spoil)
    files = [Path("run/replay.pt"), *Path("run/checkpoints").iterdir()]
    assert len(files) == 3
    for path in files:
        assert all(torch.isfinite(value).all() for value in weights(path).values())


def test_a_replay_takes_the_step_again(tiny, monkeypatch):
    losses = []
    step = Classification.training_step

    def note(self, batch, batch_idx):
        losses.append(step(self, batch, batch_idx))
        return losses[-1] * (torch.nan if self.trainer.global_step == STEP else 1.0)

    monkeypatch.setattr(Classification, "training_step", note)
    with pytest.raises(
        NonFiniteError, match="first: the loss, though the outputs of all modules are finite"
    ):
        fit("vit_comrope", tiny, Path("run"), "never")
    kept = checkpoint.read(Path("run/replay.pt"))["replay"]
    task = zoo.load("run/replay.pt").train()
    set_random_state(kept["rng_state"])
    inputs, labels = kept["batch"]
    again = torch.nn.functional.cross_entropy(
        task(inputs), labels, label_smoothing=task.label_smoothing
    )
    assert again == losses[STEP] == losses[-1]


def test_a_replay_is_no_checkpoint_to_go_on_from(tiny, monkeypatch):
    break_run(tiny, monkeypatch, spoil)
    with pytest.raises(
        zoo.errors.CheckpointError, match="it holds weights, but no training state to resume"
    ):
        fit("vit_comrope", tiny, None, "run/replay.pt")
