"""Language modelling."""

import copy
import dataclasses

import pytest
import torch
from language import SAMPLES, decoder, encoder, text
from torch.nn import functional as F
from windows import OPTIM, Cycle, trainer

from zoo.data.spec import TextBatch
from zoo.errors import OptionError, ZooError
from zoo.tasks.causal_lm import CausalLM


def task(**options):
    torch.manual_seed(0)
    return CausalLM(decoder("rope", **options), OPTIM, SAMPLES)


def test_measures_are_those_of_the_whole_set():
    data, one = Cycle(last=1), task()
    (found,) = trainer().test(one, datamodule=data, verbose=False)
    pairs = [(one.model.eval()(batch.inputs), batch.targets) for batch in data.batches]
    losses = torch.cat([F.cross_entropy(x.mT, y, reduction="none") for x, y in pairs])  # [rows, N]
    assert found["test/loss"] == pytest.approx(losses.mean().item())
    assert found["test/perplexity"] == pytest.approx(losses.mean().exp().item(), rel=1e-5)
    assert found["test/bits_per_character"] == pytest.approx(losses.mean().item() / 0.6931472)
    right = torch.cat([(x.argmax(-1) == y).float() for x, y in pairs])
    assert found["test/accuracy"] == pytest.approx(right.mean().item())
    assert one.position_losses == pytest.approx(losses.mean(0).tolist())
    assert one.position_accuracies == pytest.approx(right.mean(0).tolist())


def test_answers_are_counted_as_a_whole_where_windows_ask_for_one():
    data, one = (
        Cycle(),
        CausalLM(decoder("rope"), OPTIM, dataclasses.replace(SAMPLES, targets="answers")),
    )
    said = [one.model.eval()(batch.inputs).argmax(-1) for batch in data.batches]
    data.batches[1] = TextBatch(data.batches[1].inputs, said[1])  # whatever the model says
    (found,) = trainer().test(one, datamodule=data, verbose=False)
    assert found["test/exact"] == pytest.approx(1 / 4)
    assert "test/exact" not in trainer().test(task(), datamodule=data, verbose=False)[0]


def test_training_learns_the_cycle():
    one, run = task().train(), trainer(max_epochs=30)
    run.fit(one, datamodule=Cycle())
    assert run.callback_metrics["val/loss"] < 0.5
    assert run.callback_metrics["train/loss"] < 0.5
    assert {
        "val/perplexity",
        "val/accuracy",
        "val/bits_per_character",
    } <= run.callback_metrics.keys()


def test_windows_know_their_documents():
    one, inputs = task(), text(1)
    batch = TextBatch(inputs, inputs, torch.tensor([[0] * 5 + [1] * 7]))
    torch.testing.assert_close(one.logits("val", batch)[:, 5:], one.model(inputs[:, 5:]))


def test_memory_makes_windows_in_order_one_text():
    data, one = Cycle(count=3), task(memory_length=24)
    whole = one.model(torch.cat([batch.inputs for batch in data.batches], dim=1))
    parts = [one.logits("val", batch) for batch in data.batches]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_loops_remember_nothing_of_each_other():
    data, one = Cycle(last=1), task(memory_length=12)
    run = trainer(max_epochs=1)
    first, second = (run.test(one, datamodule=data, verbose=False) for _ in range(2))
    assert first == second
    one.logits("train", data.batches[0])
    assert run.test(one, datamodule=data, verbose=False) == first


def test_a_loop_that_broke_off_leaves_nothing_behind():
    data, one = Cycle(), task()
    (first,) = trainer().test(one, datamodule=data, verbose=False)
    one.test_step(TextBatch(text(), text()), 0)
    (second,) = trainer().test(one, datamodule=data, verbose=False)
    assert first == second


def test_a_batch_of_other_rows_remembers_nothing():
    one, data = task(memory_length=12), Cycle()
    one.logits("val", data.batches[0])
    few = TextBatch(data.batches[1].inputs[:1], data.batches[1].targets[:1])
    torch.testing.assert_close(one.logits("val", few), one.model(few.inputs))


def test_what_a_loop_remembers_can_be_carried_on():
    one, batches = task(memory_length=12), Cycle().batches
    one.logits("train", batches[0])
    other = task(memory_length=12)
    other.load_batch_state(copy.deepcopy(one.batch_state()))
    assert torch.equal(other.logits("train", batches[1]), one.logits("train", batches[1]))
    assert not torch.equal(
        task(memory_length=12).logits("train", batches[1]), one.logits("train", batches[1])
    )


def test_a_model_that_sees_what_comes_after_is_refused():
    with pytest.raises(OptionError, match="choose model decoder"):
        CausalLM(encoder("rope"), OPTIM, SAMPLES)


def test_a_window_that_the_model_cannot_read_is_told_in_words():
    one = task(memory_length=12)
    batch = TextBatch(text(1), text(1), torch.zeros(1, 12, dtype=torch.long))
    one.logits("train", batch)
    with pytest.raises(ZooError, match=r"model\.index: documents that follow"):
        one.training_step(batch, 1)
