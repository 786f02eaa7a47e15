"""Masked language modelling."""

import zlib

import numpy as np
import pytest
import torch
from language import SAMPLES, decoder, encoder, text
from windows import OPTIM, Cycle, trainer

from zoo.data.spec import TextBatch
from zoo.errors import OptionError
from zoo.tasks.masked_lm import MaskedLM
from zoo.tasks.metrics import IGNORE_INDEX


def task(**options):
    torch.manual_seed(0)
    return MaskedLM(encoder("rope"), OPTIM, SAMPLES, **options)


def mask(one, batch):
    return one.mask(
        batch, torch.rand(2, *batch.inputs.shape), torch.randint(11, batch.inputs.shape)
    )


def test_shares_are_those_of_the_paper():
    inputs = text(400, 100)
    hidden, targets = mask(task(), TextBatch(inputs, inputs))
    chosen = targets != IGNORE_INDEX
    assert torch.equal(targets[chosen], inputs[chosen])
    assert torch.equal(hidden[~chosen], inputs[~chosen])
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.01)
    assert (hidden == 11)[chosen].float().mean().item() == pytest.approx(0.8, abs=0.02)
    kept = (hidden == inputs)[chosen].float().mean().item()
    assert kept == pytest.approx(0.1 + 0.1 / 11, abs=0.02)


def test_padding_is_never_chosen():
    batch = TextBatch(text(), text(), torch.tensor([[0] * 6 + [-1] * 6, [0] * 12]))
    _, targets = mask(task(mask_ratio=1.0), batch)
    assert (targets != IGNORE_INDEX).sum(1).tolist() == [6, 12]


def test_an_evaluation_repeats_exactly():
    one, data = task(), Cycle(last=1)
    (first,) = trainer().test(one, datamodule=data, verbose=False)
    torch.manual_seed(99)
    (second,) = trainer().test(one, datamodule=data, verbose=False)
    assert first == second
    assert set(first) == {"test/loss", "test/perplexity", "test/accuracy"}


def test_a_window_is_masked_the_same_in_any_batch():
    one, inputs = task(mask_ratio=0.5), text()
    seen = []
    one.model.forward = lambda inputs, documents: (
        seen.append(inputs) or torch.zeros(*inputs.shape, 11)
    )
    for batch in (inputs, inputs.flip(0), inputs[1:]):
        one.test_step(TextBatch(batch, batch), 0)
    assert torch.equal(seen[0], seen[1].flip(0))
    assert torch.equal(seen[0][1:], seen[2])
    assert not torch.equal(seen[0] == one.mask_token, (seen[0] == one.mask_token).flip(0))


def test_where_windows_overlap_each_token_is_measured_once():
    one, inputs = task(mask_ratio=1.0), text()
    targets = inputs.roll(-1, 1)
    targets[1, :8] = IGNORE_INDEX  # which the window before has asked
    _, asked = one._mask_by_window(TextBatch(inputs, targets))
    assert (asked != IGNORE_INDEX).sum(1).tolist() == [12, 4]
    assert torch.equal(asked[1, 8:], inputs[1, 8:])


def test_the_loss_is_of_the_chosen_tokens():
    one, inputs = task(mask_ratio=0.5), text()
    logits = torch.randn(2, 12, 11)
    one.model.forward = lambda inputs, documents: logits
    one.test_step(TextBatch(inputs, inputs), 0)
    seeds = [zlib.crc32(window.tobytes()) for window in inputs.numpy()]
    chosen = torch.stack(
        [
            torch.from_numpy(np.random.default_rng(seed).random(12, dtype=np.float32)) < 0.5
            for seed in seeds
        ]
    )
    expected = -logits.log_softmax(-1).gather(-1, inputs[..., None])[..., 0][chosen].mean()
    assert one.test_metrics.compute().measures()["loss"].item() == pytest.approx(expected.item())


def test_training_learns_the_cycle():
    one, run = task().train(), trainer(max_epochs=40)
    run.fit(one, datamodule=Cycle())
    assert run.callback_metrics["val/loss"] < 2.0  # a guess costs 2.4


def test_a_model_without_a_mask_is_refused():
    with pytest.raises(OptionError, match="choose model encoder"):
        MaskedLM(decoder("rope"), OPTIM, SAMPLES)


def test_inputs_are_what_an_evaluation_shows_the_model():
    one, batch, seen = (
        task(mask_ratio=0.5),
        TextBatch(text(), text(), torch.zeros(2, 12, dtype=torch.long)),
        [],
    )
    one.model.forward = lambda *inputs: seen.append(inputs) or torch.zeros(2, 12, 11)
    one.test_step(batch, 0)
    assert all(map(torch.equal, one.inputs(batch), seen[0]))
    assert not torch.equal(seen[0][0], batch.inputs)
