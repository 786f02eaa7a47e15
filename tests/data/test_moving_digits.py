"""Clips of moving digits: where they go, what they are called, and that draws depend on epoch and index alone."""

import numpy as np
import pytest
import torch

from zoo.data.digits import select_digits
from zoo.data.moving_digits import Motion, MovingDigits
from zoo.data.spec import VideoSpec
from zoo.errors import OptionError


def clips(**options):
    data = MovingDigits(0, **{"train": 64, "val": 32, "test": 32, **options})
    data.setup("fit")
    return data


def centres(frames):
    """[B, T, 2] centres of brightness (x, y) of clips [B, 1, T, H, W]."""
    weights = frames[:, 0] / frames[:, 0].sum((-1, -2), keepdim=True)
    steps = torch.arange(frames.shape[-1]) + 0.5
    return torch.stack(
        [(weights.sum(-2) * steps).sum(-1), (weights.sum(-1) * steps).sum(-1)], dim=-1
    )


def test_facts_and_batches_agree():
    data = clips(frames=6, size=24, batch_size=8)
    assert data.spec == VideoSpec(channels=1, height=24, width=24, classes=10, frames=6)
    inputs, labels = next(iter(data.train_dataloader()))
    assert inputs.shape == (8, 1, 6, 24, 24)
    assert labels.shape == (8,)
    assert 0.5 < inputs.max() <= 1
    assert inputs.min() == 0


def test_digits_stay_within_the_frame():
    motion = Motion(40, (32, 32), 12, 2.0)
    paths = motion.compute_paths(np.random.default_rng(0).random((100, 2)), np.arange(100) % 8)
    assert paths.min() >= 0
    assert paths.max() <= 20
    steps = np.abs(np.diff(paths, axis=1))
    assert steps.max() <= 2 + 1e-9


def test_the_first_step_goes_where_the_label_says():
    data = clips(label="direction", speed=3.0, batch_size=64)
    inputs, labels = next(iter(data.train_dataloader()))
    first = centres(inputs)
    step = first[:, 1] - first[:, 0]
    message = torch.atan2(step[:, 1], step[:, 0]) * 4 / torch.pi % 8
    assert torch.equal(message.round() % 8, labels.float())
    assert data.spec.classes == 8


def test_a_digit_is_drawn_where_it_is():
    motion = Motion(2, (32, 32), 12, 2.0)
    images = torch.ones(1, 1, 8, 8)
    drawn = motion.render(images, torch.tensor([[[3.0, 5.0], [10.0, 20.0]]]))
    found = centres(drawn)
    expected = torch.tensor([[[9.0, 11.0], [16.0, 26.0]]])
    torch.testing.assert_close(found, expected, atol=0.15, rtol=0)  # a soft edge is cut off


def test_clips_are_drawn_from_epoch_and_index_alone():
    part = clips().build_loader("train").dataset
    one, two = part.__getitems__([(3, 5), (3, 9)])[0], part.__getitems__([(3, 9)])[0]
    assert torch.equal(one[1], two[0])
    assert not torch.equal(one[1], part.__getitems__([(4, 9)])[0][0])


def test_parts_have_digits_of_their_own():
    data = clips()
    assert [len(select_digits(data.seed, number)[1]) for number in range(3)] == [1258, 180, 359]
    val, test = (data.build_loader(split).dataset for split in ("val", "test"))
    assert not torch.equal(val.__getitems__([0])[0], test.__getitems__([0])[0])


def test_workers_change_nothing():
    pairs = zip(clips().train_dataloader(), clips(workers=1).train_dataloader(), strict=True)
    assert all(torch.equal(a[0], b[0]) for a, b in pairs)


@pytest.mark.parametrize(("options", "key"), [({"size": 14}, "size"), ({"digits": 2}, "digits")])
def test_options_that_cannot_work_are_refused(options, key):
    with pytest.raises(OptionError) as error:
        MovingDigits(0, **options)
    assert error.value.key == key


def test_several_digits_move_in_one_direction():
    loaders = [clips(digits=count, label="direction").build_loader("train") for count in (1, 3)]
    one, several = (loader.dataset for loader in loaders)
    keys = list(range(32))
    assert several.__getitems__(keys)[0].mean() > 1.5 * one.__getitems__(keys)[0].mean()
    assert set(several.__getitems__(keys)[1].tolist()) <= set(range(8))
