"""Any cutting of the samples of a step into batches gives the same gradient and the same logged loss.

Cutting into processes: `test_processes.py`, `test_gradients_are_those_of_the_joined_batch`.
"""

from pathlib import Path

import lightning as L
import pytest
import torch
from language import mask_by_contents
from tiny import LANGUAGE

from zoo.config import load
from zoo.config.command_line import parse_overrides
from zoo.registry import names
from zoo.run.build import Experiment, silence_libraries
from zoo.tasks.masked_lm import MaskedLM

CUTTINGS = [(12, 1), (6, 2), (4, 3), (2, 6)]
"""Samples of a batch and batches of a step."""
STILL = [
    "model.depth=1",
    "model.dim=16",
    "model.heads=2",
    "model.block.dropout=0",
    "model.block.drop_path=0",
    "optim.name=sgd",
    "optim.lr=1e-12",
    "optim.warmup_ratio=0",
    "trainer.precision=64-true",
    "trainer.gradient_clip_val=null",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.max_steps=null",
    "trainer.log_every_n_steps=1",
    "trainer.callbacks=[]",
]
"""Weights that hardly move, and nothing drawn at random but by the data."""
FEW = ["data.train=22", "data.val=4", "data.test=4"]  # the second step has 10 of 12 samples
TEXT = ["data.name=text", "data.files=[one.txt,two.txt,three.txt]", *LANGUAGE]
CASES = {
    "clips": ("clip_comrope", [*FEW, "model.position_augmentation.jitter=0"]),
    "labelled texts": ("marker_offset_t5", [*FEW, "data.length=16"]),
    "classes of points": ("points_first_rope", [*FEW, "data.points=8", "data.least=4"]),
    "numbers of points": ("points_period_comrope", [*FEW, "data.points=8", "data.least=4"]),
    "pixels": ("seg_digits_comrope", [*FEW, "task.ignore_index=3"]),
    "weighted pixels": ("seg_digits_comrope", [*FEW, f"task.class_weights={[*range(1, 12)]}"]),
    "answers": ("flipflop_rope", [*FEW, "data.length=16"]),
    "packed text": ("lm_rope", TEXT),
    "documents": ("lm_rope", [*TEXT, "data.documents=true"]),
    "masked text": ("mlm_t5", TEXT),
}
"""{what targets are: (recipe, overrides)}"""


class Recorder(L.Callback):
    """Records the gradient and the logged loss of each step."""

    def __init__(self):
        self.gradients, self.losses = [], []

    def on_before_optimizer_step(self, trainer, task, optimizer):
        gradients = [weight.grad.flatten() for weight in task.parameters() if weight.requires_grad]
        self.gradients.append(torch.cat(gradients).clone())

    def on_train_batch_end(self, trainer, task, *_):
        if task.completes_step():
            self.losses.append(float(trainer.callback_metrics["train/loss"]))


def record_steps(recipe, overrides):
    """Train an epoch without validation, and return what each of its steps used."""
    silence_libraries()
    experiment = Experiment(load(recipe, parse_overrides([*STILL, *overrides])))
    recorder, trainer = Recorder(), experiment.trainer
    trainer.callbacks.append(recorder)
    trainer.limit_val_batches = 0
    torch.manual_seed(0)
    trainer.fit(experiment.build_task(), datamodule=experiment.data)
    return recorder


@pytest.fixture(autouse=True)
def _texts(tmp_path, monkeypatch):
    """Short texts of unequal length, and masks that depend on the window only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MaskedLM, "mask", mask_by_contents)
    for name, words in (("one", "row, row, "), ("two", "your boat\n"), ("three", "gently ")):
        Path(f"{name}.txt").write_text(words * 15)


@pytest.mark.parametrize(("recipe", "overrides"), CASES.values(), ids=CASES)
def test_cuttings_of_a_step_into_batches_have_the_same_gradient_and_loss(recipe, overrides):
    """In the last step of the epoch too, which has fewer batches, and a short one."""
    whole, *cut = (
        record_steps(
            recipe,
            [*overrides, f"data.batch_size={size}", f"trainer.accumulate_grad_batches={batches}"],
        )
        for size, batches in CUTTINGS
    )
    assert len(whole.losses) >= 2
    for steps in cut:
        assert steps.losses == pytest.approx(whole.losses, rel=1e-6)
        for gradient, expected in zip(steps.gradients, whole.gradients, strict=True):
            assert (gradient - expected).norm() < 1e-9 * expected.norm()


def test_all_tasks_are_cut():
    tasks = {
        load(recipe, parse_overrides(overrides)).task.name for recipe, overrides in CASES.values()
    }
    assert tasks == set(names("tasks"))
