"""Datasets of a Python program: targets and tokens that do not exist are refused by sample."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from zoo.data.base import Datasets
from zoo.data.spec import (
    IGNORE_INDEX,
    ImageSpec,
    PointSpec,
    SegmentationSpec,
    TextClassificationSpec,
    TextSpec,
)
from zoo.data.torch_dataset import TorchDataset
from zoo.errors import DataError


class Tokens(SimpleNamespace):
    """A vocabulary of five tokens."""

    def __len__(self):
        return 5


def fill(value, *shape):
    return torch.full(shape, value)


IMAGE, POINTS = fill(0.5, 1, 4, 4), (np.zeros((3, 2)), np.zeros((3, 1)))
CASES = {
    "label": (ImageSpec(1, 4, 4, 3), (IMAGE, 2), (IMAGE, 3), "label 3, but there are 3"),
    "negative label": (ImageSpec(1, 4, 4, 3), (IMAGE, 2), (IMAGE, -1), "label -1, but"),
    "mask": (
        SegmentationSpec(1, 4, 4, 3),
        (IMAGE, fill(IGNORE_INDEX, 4, 4)),
        (IMAGE, fill(255, 4, 4)),
        "class 255, but there are 3, counted from 0; set task.ignore_index",
    ),
    "times": (
        PointSpec(2, 1, 3, 3),
        (*POINTS, 2),
        (POINTS[0], 1.7e9 + np.arange(3.0)[:, None], 2),
        "coordinates up to 1.7e+09 are 2 apart at most, and float32 has steps of 128 there; subtract a start",
    ),
    "point": (PointSpec(2, 1, 3, 3), (*POINTS, 2), (*POINTS, 3), "label 3, but there are 3"),
    "text label": (
        TextClassificationSpec(4, Tokens(), 2),
        (fill(4, 3), 1),
        (fill(4, 4), 2),
        "label 2, but there are 2",
    ),
    "text": (TextSpec(4, Tokens()), fill(4, 5), fill(5, 5), "token 5, but there are 5"),
    "target": (
        TextSpec(4, Tokens(), "some"),
        (fill(4, 4), fill(IGNORE_INDEX, 4)),
        (fill(4, 4), fill(-1, 4)),
        "target -1, but there are 5",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_class_or_token_that_does_not_exist_names_its_sample(case):
    spec, good, bad, problem = CASES[case]
    samples = [good, good, bad]
    data = TorchDataset(0)
    data.adopt_datasets(Datasets(dict.fromkeys(("train", "val", "test"), samples), spec))
    data.check_source()
    with pytest.raises(DataError) as refusal:
        next(iter(data.build_loader("test")))
    assert str(refusal.value).startswith(f"data, test, sample 2: {problem}")


def test_numbers_that_the_task_ignores_may_stand_in_masks():
    spec, good, bad, _ = CASES["mask"]
    data = TorchDataset(0)
    data.ignored_target = 255
    data.adopt_datasets(Datasets({"test": [good, bad]}, spec))
    assert next(iter(data.build_loader("test")))[1].unique().tolist() == [IGNORE_INDEX, 255]
