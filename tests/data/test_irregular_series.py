"""Series at irregular times: the questions have their answers, and a set depends on its key only."""

import numpy as np
import pytest
import torch

from zoo.data.synthetic.irregular_series import IrregularSeries
from zoo.errors import OptionError

SMALL = {"train": 64, "val": 32, "test": 40, "points": 9, "least": 4}


def fetch(split="test", seed=0, epoch=0, **options):
    """Return the sets of a split: features, times and target of real points."""
    loader = IrregularSeries(seed, **{**SMALL, **options}).build_loader(split)
    if split == "train":
        loader.epoch_sampler.set_epoch(epoch)
    return [
        (x[mask], pos[mask, 0], target)
        for batch in loader
        for x, pos, mask, target in zip(*batch, strict=True)
    ]


def test_the_class_is_the_event_that_came_first():
    sets = fetch()
    assert {len(x) for x, _, _ in sets} == {4, 5, 6, 7, 8, 9}
    for x, times, target in sets:
        a, b = (times[x[:, mark] == 1] for mark in (1, 2))
        assert int(target) == int(b < a)
    assert 0.25 < np.mean([int(target) for _, _, target in sets]) < 0.75


def test_values_repeat_after_the_period():
    for x, times, period in fetch(question="period", noise=0.0, waves=1):
        # one wave has the form a sin + b cos of its own frequency
        angles = 2 * torch.pi * times / period
        waves = torch.stack([angles.sin(), angles.cos()], dim=1)
        weights = torch.linalg.lstsq(waves.double(), x.double()).solution
        torch.testing.assert_close(waves.double() @ weights, x.double(), atol=1e-4, rtol=0)
        assert 2 <= period <= 6


@pytest.mark.parametrize("question", ["first", "period"])
def test_a_set_depends_on_seed_split_and_epoch_only(question):
    alone, together = (fetch(question=question, batch_size=size) for size in (1, 40))
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    kinds = ({"seed": 1}, {"split": "val"}, {"split": "train"}, {"split": "train", "epoch": 1})
    first = {float(fetch(question=question, **kind)[0][1][0]) for kind in ({}, *kinds)}
    assert len(first) == 5


def test_the_baselines_are_a_guess_and_the_mean():
    guess = IrregularSeries(0, **SMALL).compute_baselines()
    assert 0.3 < guess["test/accuracy"]["majority class"] < 0.7
    mean = IrregularSeries(0, question="period", **SMALL).compute_baselines()
    assert 0.5 < mean["test/loss"]["mean of train"] < 1.5


def test_questions_without_an_answer_are_refused():
    with pytest.raises(OptionError, match="1 points cannot have 2 events"):
        IrregularSeries(0, least=1)
    with pytest.raises(OptionError, match="6 is not less than longest, 6"):
        IrregularSeries(0, question="period", shortest=6.0)
