"""Scenes of digits with masks: sizes, places, classes, and what draws depend on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from zoo.data.base import Datasets
from zoo.data.baselines import fit_pixels
from zoo.data.seg_digits import INK, SegDigits
from zoo.data.spec import SegmentationSpec
from zoo.data.torch_dataset import TorchDataset
from zoo.errors import DataError, OptionError


def scenes(**options):
    return SegDigits(0, **{"train": 32, "val": 16, "test": 16, **options})


def draw(data, split="train", keys=tuple(range(16))):
    return data.build_loader(split).dataset.__getitems__(list(keys))


def test_facts_and_batches_agree():
    data = scenes(size=(24, 40), batch_size=8)
    assert data.spec.names[:2] == ("background", "0")
    assert data.spec == SegmentationSpec(1, 24, 40, 11, names=data.spec.names)
    images, masks = next(iter(data.train_dataloader()))
    assert images.shape == (8, 1, 24, 40)
    assert masks.shape == (8, 24, 40)
    assert set(masks.unique().tolist()) <= set(range(11))


def test_ink_and_only_ink_has_a_digit():
    images, masks = draw(scenes(noise=0.0))
    assert torch.equal(masks > 0, images[:, 0] > INK)


def test_digits_have_the_sizes_that_options_name():
    data = scenes(size=64, least=10, most=20, stretch=0.2)
    places = np.concatenate([data._place_digits(np.random.default_rng(n), 9) for n in range(40)])
    height, ratio = places[:, 3], places[:, 4] / places[:, 3]
    assert 10 <= height.min() < 11
    assert 19 < height.max() <= 20
    assert 0.8 <= ratio.min() < 0.85
    assert 1.15 < ratio.max() <= 1.2


def test_a_digit_lies_where_it_is_placed():
    places = torch.tensor([[10.0, 20.0, 8.0, 12.0]])
    canvas = scenes()._render(torch.ones(1, 1, 8, 8), places)[0]
    rows, columns = (canvas > 0.5).nonzero().unbind(1)
    assert (rows.min(), rows.max() + 1) == (6, 14)
    assert (columns.min(), columns.max() + 1) == (14, 26)


def test_a_larger_canvas_has_more_digits_of_the_same_sizes():
    few, many = (
        np.mean([len(data._place_digits(np.random.default_rng(n), 9)) for n in range(200)])
        for data in (scenes(), scenes(size=(32, 64)))
    )
    assert many == pytest.approx(2 * few, rel=0.1)


def test_scenes_are_drawn_from_epoch_and_index_alone():
    data = scenes()
    one, two = draw(data, keys=[(3, 5), (3, 9)]), draw(data, keys=[(3, 9)])
    for several, single in zip(one, two, strict=True):
        assert torch.equal(several[1], single[0])
    assert not torch.equal(one[0][1], draw(data, keys=[(4, 9)])[0][0])
    assert not torch.equal(draw(data, "val")[1], draw(data, "test")[1])


def test_pixels_alone_hardly_tell_digits_apart():
    found = scenes().compute_baselines()
    accuracy, miou = found["test/accuracy"], found["test/miou"]
    assert 0.7 < accuracy["majority class"] <= accuracy["softmax regression per pixel"]
    assert miou["majority class"] < miou["softmax regression per pixel"] < 0.2


def test_pixels_of_larger_scenes_are_scored_unchanged_and_resized():
    larger = scenes(size=48)
    found = scenes().fit_baselines()(larger)
    own = larger.fit_baselines()(larger)
    names = ["majority class", "softmax regression per pixel"]
    for metric in ("test/accuracy", "test/miou"):
        assert [*found[metric]] == [*names, "softmax regression per pixel (resized)"]
        assert [*own[metric]] == names
    # a pixel says the same at any size; edges blur when they are resized there and back
    unchanged, resized = (found["test/accuracy"][name] for name in [*found["test/accuracy"]][1:])
    assert unchanged == pytest.approx(own["test/accuracy"][names[1]], abs=0.02)
    assert 0.7 < resized < unchanged


def test_resized_predictions_are_those_of_resized_images():
    data = scenes()
    fitted = fit_pixels({name: data._build_samples(name) for name in ("train", "val")}, data.spec)
    images, masks = scenes(size=48)._build_samples("test").__getitems__([0, 1])
    found = fitted._predict_resized(images, masks)
    small = F.interpolate(images, (32, 32), mode="bilinear", align_corners=False, antialias=True)
    logits = fitted.regression.compute_logits(small.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    logits = F.interpolate(logits, (48, 48), mode="bilinear", align_corners=False)
    assert torch.equal(found[..., 0].long(), logits.argmax(1))
    losses = F.cross_entropy(logits, masks, reduction="none")
    torch.testing.assert_close(found[..., 1], losses)


@pytest.mark.parametrize(
    ("options", "key"), [({"least": 21}, "least"), ({"size": (32, 12)}, "most")]
)
def test_options_that_cannot_work_are_refused(options, key):
    with pytest.raises(OptionError) as error:
        SegDigits(0, **options)
    assert error.value.key == key


def test_masks_of_your_own_are_resized_to_the_nearest_pixel():
    images, masks = draw(scenes())
    samples = list(zip(images, masks, strict=True))
    data = TorchDataset(0, size=16)
    spec = scenes().spec
    data.adopt_datasets(Datasets(dict.fromkeys(("train", "val", "test"), samples), spec))
    data.check_source()
    assert data.spec == replace(spec, height=16, width=16)
    found = next(iter(data.build_loader("test")))[1]
    assert torch.equal(found, masks[: len(found), ::2, ::2])


def test_a_mask_of_another_size_is_refused():
    samples = [(torch.zeros(1, 32, 32), torch.zeros(16, 16, dtype=torch.long))]
    data = TorchDataset(0)
    data.adopt_datasets(Datasets(dict.fromkeys(("train", "val", "test"), samples), scenes().spec))
    with pytest.raises(
        DataError, match=r"a mask is torch.int64 \(16, 16\), not integers \(32, 32\)"
    ):
        data.check_source()
