"""Baselines: what guessing and softmax regression reach."""

import math

import pytest
import torch
from torch.nn import functional as F

from zoo.data.baselines import fit_labels, score_answers
from zoo.data.digits import Digits
from zoo.data.spec import ImageSpec, TextBatch


class Samples:
    """Pairs in memory that remember which were fetched."""

    def __init__(self, inputs, labels):
        self.inputs, self.labels, self.fetched = inputs, labels, []

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, keys):
        self.fetched += keys
        return self.inputs[keys], self.labels[keys]


def draw_splits(count, side, label):
    draw = torch.Generator().manual_seed(0)
    splits = {}
    for split in ("train", "val", "test"):
        images = torch.randn(count, 1, side, side, generator=draw)
        splits[split] = Samples(images, label(images, draw))
    return splits


def label_randomly(images, draw):
    return torch.randint(2, (len(images),), generator=draw)


def test_digits_are_nearly_solved_by_their_pixels():
    data = Digits(0)
    data.setup("fit")
    found = data.compute_baselines()
    labels = data.splits["test"].labels
    share = (labels == data.splits["train"].labels.bincount().argmax()).float().mean().item()
    assert found["test/accuracy"]["majority class"] == pytest.approx(share)
    assert 0.93 < found["test/accuracy"]["softmax regression"] < 1
    assert found["test/loss"]["softmax regression"] < 0.25


def test_images_of_another_size_are_resized_to_the_fitted_one():
    data, larger = Digits(0, size=16), Digits(0, size=24)
    for one in (data, larger):
        one.setup("fit")
    score = data.fit_baselines()
    assert score(data) == data.compute_baselines()
    found = score(larger)
    assert [*found["test/accuracy"]] == ["majority class", "softmax regression (resized)"]
    images, labels = larger.splits["test"].images, larger.splits["test"].labels
    small = F.interpolate(images, (16, 16), mode="bilinear", align_corners=False, antialias=True)
    literal = fit_labels(data.splits, data.spec).score(Samples(small, labels))
    for metric in ("test/accuracy", "test/loss"):
        expected = literal[metric]["softmax regression"]
        assert found[metric]["softmax regression (resized)"] == expected
    # the same digits at another size are still nearly solved
    assert found["test/accuracy"]["softmax regression (resized)"] > 0.93


def test_a_linear_rule_is_learned():
    rule = torch.randn(16, generator=torch.Generator().manual_seed(1))
    splits = draw_splits(500, 4, lambda images, _: (images.flatten(1) @ rule > 0).long())
    found = fit_labels(splits, ImageSpec(1, 4, 4, classes=2)).score(splits["test"])
    assert found["test/accuracy"]["softmax regression"] > 0.95


def test_the_weight_decay_is_chosen_on_other_samples_than_are_fitted():
    splits = draw_splits(60, 8, label_randomly)
    found = fit_labels(splits, ImageSpec(1, 8, 8, classes=2)).score(splits["test"])
    # with little decay 64 weights fit 60 labels, at a loss far above that of guessing
    assert found["test/loss"]["softmax regression"] < 1.5


def test_of_many_samples_ten_thousand_are_drawn():
    splits = draw_splits(12_000, 2, label_randomly)
    # sorted: most are 1, but not of the first 10,000
    splits["train"].labels[:5_500] = 0
    splits["train"].labels[5_500:] = 1
    splits["test"].labels[:] = 1
    found = fit_labels(splits, ImageSpec(1, 2, 2, classes=2)).score(splits["test"])
    assert found["test/accuracy"]["majority class"] == 1
    assert {len(set(one.fetched)) for one in splits.values()} == {10_000}


@pytest.mark.parametrize("spec", [ImageSpec(1, 65, 8, classes=2), ImageSpec(1, 8, 8, classes=101)])
def test_large_images_and_many_classes_are_only_guessed(spec):
    splits = draw_splits(20, 2, label_randomly)
    assert [*fit_labels(splits, spec).score(splits["test"])["test/accuracy"]] == ["majority class"]
    assert splits["val"].fetched == []


class Windows:
    targets = torch.tensor([[-100, 3, 4], [-100, 3, 4], [-100, 4, -100], [5, 4, -100]])

    def __len__(self):
        return len(self.targets)

    def __getitems__(self, keys):
        return TextBatch(torch.zeros(len(keys), 3, dtype=torch.long), self.targets[keys])


def test_answers_are_guessed_by_token_and_whole():
    found = score_answers(Windows())
    assert found["test/accuracy"] == {"commonest answer": pytest.approx(4 / 7)}
    assert found["test/exact"] == {"commonest answer": 0.5}
    entropy = -(4 / 7 * math.log(4 / 7) + 2 / 7 * math.log(2 / 7) + 1 / 7 * math.log(1 / 7))
    assert found["test/loss"] == {"answer frequencies": pytest.approx(entropy)}


def test_classes_are_guessed_without_whole_answers():
    found = score_answers(Samples(torch.zeros(4, 2), torch.tensor([1, 1, 0, 2])))
    assert found["test/accuracy"] == {"commonest answer": 0.5}
    assert "test/exact" not in found
