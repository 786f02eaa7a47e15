"""Whether positions are used is judged by one metric, by its change over the same samples."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from zoo.diagnosis.intervals import estimate_mean
from zoo.diagnosis.position_use import SampleValues, compare_samples, judge_position_use
from zoo.diagnosis.report import Control

METRIC = "test/loss"


def plant(change, spread, samples=200, before=3.0, seed=0):
    """Return the controls of a model whose loss changes by a mean and a spread over samples."""
    rng = np.random.default_rng(seed)
    losses = before + rng.normal(size=samples)
    changes = rng.normal(size=samples)
    changes = (changes - changes.mean()) / changes.std() * spread + change
    return controls_of(losses, losses + changes)


def controls_of(losses, changed, weights=None):
    weights = torch.ones(len(losses)) if weights is None else torch.as_tensor(weights)
    first, second = (
        SampleValues(METRIC, torch.as_tensor(values), weights) for values in (losses, changed)
    )
    means = [float(np.average(values, weights=weights)) for values in (losses, changed)]
    return (
        Control(name="unchanged", metrics={METRIC: means[0]}),
        Control(name="shuffled", metrics={METRIC: means[1]}, change=compare_samples(first, second)),
        Control(name="shifted", metrics={}, refused="no"),
    )


VERDICTS = {
    "much": (2.0, 1.0, "uses"),
    "less without positions": (-2.0, 1.0, "uses"),
    "little, and certain": (0.005, 0.01, "hardly"),
    "little, and noise": (0.0003, 0.05, "not visible"),
    "much, and noise": (0.3, 5.0, "not visible"),
    "rounding": (1e-6, 1e-7, "not visible"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_a_verdict_needs_an_interval_without_0_and_a_change_that_matters(case):
    change, spread, verdict = VERDICTS[case]
    use = judge_position_use(plant(change, spread), causal=True)
    assert use.verdict == verdict
    assert use.control == "shuffled"
    assert "200 samples" in use.text
    assert f"{change:+.3g}, 95 % interval" in use.text
    assert use.text.startswith(verdict)


def test_noise_is_no_effect():
    """The largest of four changes by chance is a finding in no more than a twentieth of runs."""
    found = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        losses = 3 + rng.normal(size=60)
        unchanged, *_ = controls_of(losses, losses)
        changed = [controls_of(losses, losses + rng.normal(size=60))[1] for _ in range(4)]
        found += judge_position_use([unchanged, *changed], causal=False).verdict != "not visible"
    assert found <= 400 * 0.05 + 2.6 * math.sqrt(400 * 0.05 * 0.95)
    assert found > 0


def test_an_interval_is_that_of_a_ratio_of_sums_over_samples():
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 20, 30)
    values = torch.tensor(rng.normal(size=30) + weights / 10)
    mean, low, high = estimate_mean(values[:, None], torch.tensor(weights))
    shares = weights / weights.sum()
    expected = float((shares * values.numpy()).sum())
    error = np.sqrt(30 / 29 * ((shares * (values.numpy() - expected)) ** 2).sum())
    assert float(mean) == pytest.approx(expected)
    assert float(high - low) == pytest.approx(2 * 2.045230 * error, rel=1e-5)
    # samples without a target count for nothing
    padded = torch.cat([values, torch.zeros(5)])[:, None]
    again = estimate_mean(padded, torch.tensor([*weights, *[0] * 5]))
    assert torch.allclose(torch.stack([*again]), torch.stack([mean, low, high]))


CANNOT = {
    "nothing": (lambda given: given[:1], "unknown", "not measured"),
    "refusals": (lambda given: (given[0], given[2]), "unknown", "refuses every change"),
    "single samples": (
        lambda given: plant(1.0, 0.1, samples=2),
        "unknown",
        "2 samples are too few",
    ),
    "no samples": (
        lambda given: (given[0], Control(name="zeroed", metrics={METRIC: 9.0})),
        "unknown",
        "single samples have no values",
    ),
    "no number": (
        lambda given: plant(math.nan, 1.0),
        "unknown",
        "not finite with positions shuffled",
    ),
    "no change": (lambda given: plant(0.0, 0.0), "not visible", "no metric changes"),
}


@pytest.mark.parametrize("case", CANNOT)
@pytest.mark.parametrize("causal", [True, False])
def test_what_cannot_be_judged_is_said(case, causal):
    change, verdict, text = CANNOT[case]
    use = judge_position_use(change(plant(1.0, 0.1)), causal)
    assert use.verdict == verdict
    assert text in use.text
    if case == "no change":
        assert ("causal mask" if causal else "a set") in use.text


class Model(nn.Module):
    """A model of transformers' kind: a loss over the labels that are not ignored."""

    def __init__(self, shifts):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True)
        self.encoder, self.table = nn.TransformerEncoder(layer, 1), nn.Embedding(20, 16)
        self.head, self.shifts = nn.Linear(16, 20), shifts
        zoo.equip(self.encoder, "rope", causal=shifts)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.5)

    def forward(self, ids, labels=None, padding=None):
        logits = self.head(self.encoder(self.table(ids), src_key_padding_mask=padding))
        if labels is None:
            return {"logits": logits}
        pair = (logits[:, :-1], labels[:, 1:]) if self.shifts else (logits, labels)
        return {"loss": nn.functional.cross_entropy(pair[0].mT, pair[1]), "logits": logits}


@pytest.mark.parametrize("shifts", [True, False])
def test_an_equipped_model_is_judged_by_the_losses_of_its_samples(shifts, tmp_path):
    ids = torch.randint(20, (6, 9), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[2, 4:] = -100
    labels[5] = -100
    batch = {"ids": ids, "labels": labels}
    page = tmp_path / "page.html"
    (run,) = zoo.diagnose(Model(shifts), batch, to=page, verbose=False).report.runs
    unchanged, shuffled, *_ = run.controls
    change = shuffled.metrics["loss"] - unchanged.metrics["loss"]
    assert shuffled.change.metric == "loss"
    assert shuffled.change.mean == pytest.approx(change, rel=1e-3)
    assert shuffled.change.samples == 5
    assert run.position_use.verdict in ("uses", "hardly", "not visible")


def test_a_model_without_a_loss_is_judged_by_its_output(tmp_path):
    ids = torch.randint(20, (2, 9), generator=torch.Generator().manual_seed(1))
    page = tmp_path / "page.html"
    (run,) = zoo.diagnose(Model(False), {"ids": ids}, to=page, verbose=False).report.runs
    assert run.position_use.verdict == "uses"
    assert "change of the output goes from 0 to" in run.position_use.text
    assert "2 samples" in run.position_use.text
