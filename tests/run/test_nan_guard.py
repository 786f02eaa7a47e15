"""One number that is not finite, in any weight, activation or batch, stops training before the step."""

import itertools
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny import TINY, language
from torch.overrides import TorchFunctionMode
from training import fit

from zoo.attention import Encoding
from zoo.data.spec import TextBatch
from zoo.errors import NonFiniteError
from zoo.run import checkpoint
from zoo.run.callbacks import nan_guard
from zoo.run.callbacks.nan_guard import FiniteGuard, KeptWeights, StepCheck, StepRecord
from zoo.run.callbacks.nan_replay import list_tensors
from zoo.tasks.base import Task

pytestmark = pytest.mark.robustness

NUMBERS = (math.nan, math.inf, -math.inf)
FOREVER = "trainer.max_epochs=1000"
TEXT = ["model.tie_embeddings=false", "data.tokens=byte", "evaluate.lengths=null"]


class PlantedEverywhere(Exception):
    pass


def spoil(tensor, number):
    """A copy with the number at a random place."""
    flat = tensor.detach().clone().flatten()
    flat[torch.randint(len(flat), ())] = number
    return torch.where(flat.isfinite(), tensor.flatten(), flat).reshape(tensor.shape)


def list_plants(task, batch):
    """(where, what plants there a number and returns how to remove it) of every place; every other step has none."""

    def in_weight(weight, number, batch):
        old = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(spoil(weight, number))
        return lambda: weight.data.copy_(old)

    def in_output(module, number, batch):
        def change(module, inputs, output):
            return spoil(output, number) if isinstance(output, torch.Tensor) else None

        return module.register_forward_hook(change).remove

    def in_batch(index, number, batch):
        tensor = list(list_tensors(batch))[index]
        tensor.copy_(spoil(tensor, number))
        return lambda: None

    numbers = itertools.cycle(NUMBERS)
    model = task.model
    for name, weight in model.named_parameters():
        yield f"weight {name}", partial(in_weight, weight, next(numbers))
        yield "", lambda batch: lambda: None
    for name, module in model.named_modules():
        if not list(module.children()) and not isinstance(module, Encoding):
            yield f"output {name}", partial(in_output, module, next(numbers))
    for index, _ in enumerate(list_tensors(batch)):
        for n in NUMBERS:
            yield f"batch {index} {n}", partial(in_batch, index, n)


def plant_everywhere(monkeypatch, recipe, overrides):
    """Train, with a number planted in each step and removed after it; returns {where: was it noticed}."""
    start, check = FiniteGuard.on_train_batch_start, FiniteGuard.on_before_optimizer_step
    found, plants, now = {}, [], {}

    def on_train_batch_start(self, trainer, task, batch, index):
        start(self, trainer, task, batch, index)
        plants[:] = plants or [list_plants(task, batch)]
        now["where"], plant = next(plants[0], (None, None))
        if plant is None:
            raise PlantedEverywhere
        now["remove"] = plant(batch)

    def on_before_optimizer_step(self, trainer, task, optimizer):
        try:
            check(self, trainer, task, optimizer)
            noticed = False
        except NonFiniteError as error:
            noticed = "stopped before the optimizer used it" in str(error)
        found[now["where"]] = noticed or found.get(now["where"], False)
        now["remove"]()
        task.zero_grad()

    monkeypatch.setattr(FiniteGuard, "on_train_batch_start", on_train_batch_start)
    monkeypatch.setattr(FiniteGuard, "on_before_optimizer_step", on_before_optimizer_step)
    monkeypatch.setattr(FiniteGuard, "_write_replay", lambda *_: "")
    with pytest.raises(PlantedEverywhere):
        fit(recipe, [*overrides, FOREVER], Path(f"run-{len(list(Path().iterdir()))}"), "never")
    return found


def test_numbers_planted_anywhere_stop_training_before_the_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vit = [*TINY, "model.encoding=rope_mixed", "data.batch_size=16", "evaluate.resolutions=null"]
    # rows of the embedding and of the table of distances that no batch uses are among the weights
    text = language(tmp_path / "letters.txt", "model.encoding=t5", *TEXT)
    cope = language(tmp_path / "letters.txt", "model.encoding=cope", *TEXT)
    count = 0
    for recipe, overrides in (("vit_comrope", vit), ("lm_rope", text), ("lm_rope", cope)):
        with monkeypatch.context() as patch:
            found = plant_everywhere(patch, recipe, overrides)
        assert not found.pop(""), "a step without such a number was stopped"
        assert [where for where, noticed in found.items() if not noticed] == []
        count += len(found)
    assert count >= 100


# the batches that are kept for a replay


def test_no_batch_is_kept_once_the_optimizer_may_use_its_gradients(tiny, monkeypatch):
    check, kept, moved = FiniteGuard.on_before_optimizer_step, [], []
    move = StepRecord.move_to_host

    def on_before_optimizer_step(self, trainer, task, optimizer):
        before = len(self.steps)
        check(self, trainer, task, optimizer)
        kept.append((before, len(self.steps)))

    def move_to_host(self):
        moved.append(self.index)
        return move(self)

    monkeypatch.setattr(FiniteGuard, "on_before_optimizer_step", on_before_optimizer_step)
    monkeypatch.setattr(StepRecord, "move_to_host", move_to_host)
    more = ["data.batch_size=16", "trainer.max_epochs=1", "trainer.accumulate_grad_batches=3"]
    fit("vit_comrope", [*tiny, *more], Path("run"), "never")
    assert set(kept[:-1]) == {(3, 0)}
    assert moved[:4] == [0, 1, 3, 4]  # all but the last of each step


def test_the_loss_of_accumulated_batches_is_named_undivided(tiny, monkeypatch):
    backward = Task.backward

    def spoil(self, loss, *arguments, **options):
        backward(self, loss, *arguments, **options)
        if self.trainer.global_step == 2:
            self.model.head.weight.grad[0] = math.inf

    monkeypatch.setattr(Task, "backward", spoil)
    options = ["data.batch_size=16", "trainer.accumulate_grad_batches=4"]
    with pytest.raises(NonFiniteError, match=r"step 2: the loss is 2\.\d+, the gradient of .*head"):
        fit("vit_comrope", [*tiny, *options], Path("run"), "never")


def test_the_copy_of_a_batch_is_not_waited_for():
    asked = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, call, types, args=(), kwargs=None):
            if call is torch.Tensor.to:
                asked.append((args[1:], kwargs))
            return call(*args, **(kwargs or {}))

    batch = TextBatch(torch.zeros(1, 2), torch.ones(1, 2))
    with Watch():
        record = StepRecord(batch, 0, {}, {}).move_to_host()
    assert asked == [(("cpu",), {"non_blocking": True})] * 2
    assert isinstance(record.batch, TextBatch)
    assert record.batch.inputs is batch.inputs  # which is on the CPU already


# a check that is read after the step


def spoil_batch(monkeypatch, steps):
    """Plant a number in the first batches of some steps."""
    start = FiniteGuard.on_train_batch_start

    def on_train_batch_start(self, trainer, task, batch, index):
        start(self, trainer, task, batch, index)
        if trainer.global_step in steps:
            batch[0][0, 0, 0, 0] = math.nan

    monkeypatch.setattr(FiniteGuard, "on_train_batch_start", on_train_batch_start)


def stop_at_number(tiny, run, *more):
    """Train until the guard stops; return its message, the replay and the checkpoints."""
    with pytest.raises(NonFiniteError) as error:
        fit("vit_comrope", [*tiny, "trainer.save_every_n_steps=1", *more], Path(run), "never")
    saved = [checkpoint.read(path) for path in sorted(Path(run, "checkpoints").glob("*.ckpt"))]
    kept = checkpoint.read(Path(run, "replay.pt"))
    return str(error.value).replace(run, "run"), kept, saved


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["optim.fused=true", "trainer.accumulate_grad_batches=2"],
        ["optim={name: muon, lr: 1e-3}", "trainer.save_every_n_steps=null"],
        ["trainer.max_steps=3", "trainer.save_every_n_steps=null"],
    ],
    ids=["plain", "fused", "muon", "last step"],
)
def test_a_check_that_is_read_later_stops_at_the_same_step(more, tiny, monkeypatch):
    spoil_batch(monkeypatch, {2, 3})
    message, kept, saved = stop_at_number(tiny, "one", *more)
    read: list[int] = []
    monkeypatch.setattr(nan_guard, "_reads_later", lambda trainer: True)
    monkeypatch.setattr(StepCheck, "is_broken", note_reads(read))
    later = stop_at_number(tiny, "two", *more)
    assert message == later[0]
    assert "step 2: the loss is nan" in message
    assert read == [0, 1, 2]
    for name in ("first", "step", "epoch", "index"):
        assert kept["replay"][name] == later[1]["replay"][name]
    assert len(saved) == len(later[2]) == ("trainer.save_every_n_steps=null" not in more)
    for one, two in zip([kept, *saved], [later[1], *later[2]], strict=True):
        assert [*one["state_dict"]] == [*two["state_dict"]]
        for name, weight in one["state_dict"].items():
            assert torch.equal(weight, two["state_dict"][name]), name
    assert {one["global_step"] for one in (*saved, *later[2])} <= {2}


def note_reads(read, original=StepCheck.is_broken):
    def is_broken(self):
        read.append(self.position["step"])
        return original(self)

    return is_broken


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_step_is_undone_to_the_bit_if_the_flag_is_set(dtype):
    weight, other = (torch.nn.Parameter(torch.randn(5, 3, dtype=dtype)) for _ in range(2))
    before = weight.detach().clone()
    for flag in (0.0, 1.0):
        optimizer = torch.optim.AdamW([weight, other], lr=0.1)
        weight.grad = torch.full_like(weight, math.nan if flag else 1.0)
        kept = KeptWeights(optimizer, torch.tensor(flag))
        optimizer.step()
        after = weight.detach().clone()
        kept.restore()
        if flag:
            assert after.isnan().all()
            assert torch.equal(weight, before)
        else:
            assert torch.equal(weight, after)
            assert not torch.equal(weight, before)
            before = after
