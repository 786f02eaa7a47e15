"""Augmentation: off by default, drawn from torch's random state, and labels that say what was mixed."""

import random

import kornia.augmentation
import pytest
import torch

from zoo.data.vision import Augmentation, ImageTransform, _apply_cutmix, _apply_policy, _crop_padded

IMAGES, LABELS = torch.randint(256, (16, 3, 8, 8), dtype=torch.uint8), torch.arange(16) % 4
OPTIONS = [
    {"crop": 2},
    {"flip": 0.5},
    {"randaugment": 2},
    {"erasing": 0.5},
    {"mixup": 0.8},
    {"cutmix": 1.0},
    {"mixup": 0.8, "cutmix": 1.0},
]


def augment(options, seed=0, images=IMAGES):
    torch.manual_seed(seed)
    finish = ImageTransform(3, (0.5,), (0.5,), Augmentation(**options))
    return finish(images, LABELS, training=True, classes=4)


def test_by_default_training_images_are_as_they_are():
    images, labels = augment({})
    assert torch.equal(images, (IMAGES.float() / 255 - 0.5) / 0.5)
    assert labels is LABELS


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_torch_s_random_state_alone_decides(options):
    random.seed(0)
    first = augment(options)
    random.seed(1)
    again, other = augment(options), augment(options, seed=1)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert first[0].shape == IMAGES.shape


@pytest.mark.parametrize("options", [{"mixup": 0.8}, {"cutmix": 1.0}], ids=str)
def test_mixed_labels_are_the_shares_that_images_have(options):
    plain = (
        (LABELS * 80).to(torch.uint8)[:, None, None, None].expand_as(IMAGES)
    )  # one grey for each class
    images, shares = augment(options, images=plain)
    greys = (images * 0.5 + 0.5) * 255 / 80
    assert shares.shape == (16, 4)
    torch.testing.assert_close(shares.sum(1), torch.ones(16))
    torch.testing.assert_close(
        greys.mean((1, 2, 3)), (shares * torch.arange(4.0)).sum(1), atol=1e-4, rtol=0
    )
    assert ((shares > 0) & (shares < 1)).any()


def test_operations_of_a_policy_are_those_of_kornia():
    policy = kornia.augmentation.auto.RandAugment(n=15, m=9)
    images = IMAGES.float() / 255
    for n in range(15):  # one operation after another, and all of them
        policy.n = 15 if n == 0 else 1
        torch.manual_seed(n)
        expected = policy(images)
        torch.manual_seed(n)
        assert torch.equal(_apply_policy(images, policy), expected)


def test_both_kinds_of_mixing_have_their_turn():
    finish = ImageTransform(3, (0.5,), (0.5,), Augmentation(mixup=0.8, cutmix=1.0))
    plain = torch.zeros_like(IMAGES)
    plain[::2] = 255
    whole = [
        finish(plain, LABELS, training=True, classes=4)[0].abs().round(decimals=3).eq(1).all()
        for _ in range(20)
    ]
    assert 3 < sum(map(int, whole)) < 17


def test_a_crop_moves_an_image_by_what_was_padded_at_most():
    images = torch.zeros(64, 3, 8, 8, dtype=torch.uint8)
    images[..., 4, 4] = 255
    moved = ImageTransform(3, (0.0,), (1.0,), Augmentation(crop=2))(
        images, torch.zeros(64).long(), training=True, classes=4
    )[0]
    places = moved[:, 0].nonzero()[:, 1:]
    assert len(places) == 64
    assert places.min() == 2
    assert places.max() == 6


def test_erased_rectangles_are_grey():
    images = ImageTransform(3, (0.25,), (0.5,), Augmentation(erasing=1.0))(
        IMAGES, LABELS, training=True, classes=4
    )[0]
    assert (images == 0).flatten(1).any(1).all()


@pytest.mark.parametrize("shape", [(16, 3, 8, 8), (5, 1, 6, 9)], ids=str)
def test_batched_crops_are_those_of_kornia(shape):
    images = torch.rand(shape)
    torch.manual_seed(3)
    expected = kornia.augmentation.RandomCrop(shape[-2:], padding=2)(images)
    torch.manual_seed(3)
    assert torch.equal(_crop_padded(images, 2), expected)


@pytest.mark.parametrize("shape", [(16, 3, 8, 8), (5, 1, 6, 9)], ids=str)
def test_batched_cutmix_is_that_of_kornia(shape):
    images, labels = torch.rand(shape), torch.arange(shape[0]) % 4
    cutmix = kornia.augmentation.RandomCutMixV2(
        beta=0.7, data_keys=["input", "class"], use_correct_lambda=True
    )
    torch.manual_seed(3)
    expected, (found,) = cutmix(images, labels)
    torch.manual_seed(3)
    mixed, shares = _apply_cutmix(images, labels, 0.7, 4)
    assert torch.equal(mixed, expected)
    own, patch = (torch.nn.functional.one_hot(found[:, at].long(), 4) for at in (0, 1))
    assert torch.equal(shares, torch.lerp(patch.float(), own.float(), found[:, 2:]))
