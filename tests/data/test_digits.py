"""The digits: split, size, augmentation, order."""

import hashlib

import pytest
import torch

from zoo.data.digits import Digits, load_digits
from zoo.errors import OptionError


def digits(seed=0, **options):
    data = Digits(seed, **options)
    data.setup("fit")
    return data


def test_the_split_is_whole_disjoint_and_seeded():
    data, again, other = digits(), digits(), digits(seed=1)
    assert [data.count_samples(part) for part in ("train", "val", "test")] == [1258, 180, 359]
    rows = torch.cat([part.images for part in data.splits.values()]).flatten(1)
    assert len(rows.unique(dim=0)) > 1790  # a few digits may look alike
    assert torch.equal(data.splits["test"].images, again.splits["test"].images)
    assert not torch.equal(data.splits["test"].labels, other.splits["test"].labels)


def test_images_come_in_the_size_that_is_asked():
    images, labels = next(iter(digits(size=24, batch_size=10).val_dataloader()))
    assert images.shape == (10, 1, 24, 24)
    assert labels.shape == (10,)


def test_only_training_images_are_augmented():
    data = digits()
    keys = [(0, index) for index in range(8)]
    train, test = data.splits["train"], data.splits["test"]
    assert not torch.equal(train.__getitems__(keys)[0], train.images[:8])
    assert torch.equal(test.__getitems__(keys)[0], test.images[:8])


def test_augmentation_is_drawn_from_epoch_and_index_alone():
    part = digits().splits["train"]
    one, two = part.__getitems__([(3, 5), (3, 9)])[0], part.__getitems__([(3, 9)])[0]
    torch.testing.assert_close(one[1], two[0])
    assert not torch.allclose(one[1], part.__getitems__([(4, 9)])[0][0])


def test_the_order_is_drawn_from_seed_and_epoch_alone():
    first, second = digits().train_dataloader(), digits(workers=1).train_dataloader()
    for loader in (first, second):
        loader.epoch_sampler.set_epoch(2)
    here, there = next(iter(first)), next(iter(second))
    assert torch.equal(here[0], there[0])
    first.epoch_sampler.set_epoch(3)
    assert not torch.equal(next(iter(first))[1], here[1])


def test_a_loader_goes_on_in_the_middle_of_an_epoch():
    whole = [labels for _, labels in digits().train_dataloader()]
    loader = digits().train_dataloader()
    loader.load_state_dict({"consumed": 15 * 64})
    rest = [labels for _, labels in loader]
    assert len(rest) == len(whole) - 15
    assert all(torch.equal(a, b) for a, b in zip(rest, whole[15:], strict=True))
    assert len(list(loader)) == len(whole)


def test_shares_that_leave_nothing_to_train_on_are_refused():
    with pytest.raises(OptionError, match=r"val 0.6 and test 0.5"):
        Digits(0, val=0.6, test=0.5)


def test_the_digits_are_those_of_scikit_learn():
    images, labels = load_digits()
    table = torch.cat([images.flatten(1) * 16, labels[:, None]], dim=1).double()
    digest = hashlib.sha256(table.numpy().tobytes()).hexdigest()
    assert digest == "30aa855cd90427ff3c4996b3f40109597c57049f8a038cc52db1efeac8ad2e26"
