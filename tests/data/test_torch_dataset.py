"""Datasets of a Python program: targets and tokens that do not exist are refused by sample."""

import numpy as np
import pytest
import torch

from zoo import config
from zoo.data.base import Datasets
from zoo.data.corpus.tokenizer import Words
from zoo.data.spec import (
    IGNORE_INDEX,
    ImageSpec,
    PointSpec,
    SegmentationSpec,
    TextClassificationSpec,
    TextSpec,
)
from zoo.data.torch_dataset import TorchDataset
from zoo.errors import DataError, RecipeError
from zoo.run.preflight import build_experiment

TOKENS = Words(("a", "b", "c", "d", "e"))


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
        TextClassificationSpec(4, TOKENS, 2),
        (fill(4, 3), 1),
        (fill(4, 4), 2),
        "label 2, but there are 2",
    ),
    "text": (TextSpec(4, TOKENS), fill(4, 5), fill(5, 5), "token 5, but there are 5"),
    "target": (
        TextSpec(4, TOKENS, "some"),
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


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (TextSpec(4, 20), r"expected a vocabulary, such as .*Words\(.*, got 20"),
        (TextClassificationSpec(4, ["a"], 2), r"expected a vocabulary, .*, got \['a'\]"),
        (TextSpec("4", TOKENS), "'4' is no size"),
        (ImageSpec(1, 4, 0, 3), "0 is no size"),
        (SegmentationSpec(1, 4, 4, 3, names=("a",)), "the names of 3 classes"),
        (PointSpec(2, 1, 3), "numbers to predict, with target_means and target_stds"),
    ],
)
def test_a_spec_that_describes_nothing_is_refused(spec, problem):
    data = TorchDataset(0)
    data.adopt_datasets(Datasets({}, spec))
    with pytest.raises(DataError, match=problem):
        _ = data.spec


def test_numbers_that_the_task_ignores_may_stand_in_masks():
    spec, good, bad, _ = CASES["mask"]
    data = TorchDataset(0)
    data.ignored_target = 255
    data.adopt_datasets(Datasets({"test": [good, bad]}, spec))
    assert next(iter(data.build_loader("test")))[1].unique().tolist() == [IGNORE_INDEX, 255]


def test_windows_may_be_tuples_of_one_tensor():
    windows = torch.utils.data.TensorDataset(torch.arange(3).repeat(2, 1))
    data = TorchDataset(0)
    data.adopt_datasets(Datasets({"train": windows}, TextSpec(2, TOKENS)))
    (batch,) = data.build_loader("train")
    assert batch.inputs.tolist() == [[0, 1], [0, 1]]
    assert batch.targets.tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize("is_trained", [True, False])
def test_several_processes_cannot_share_datasets(is_trained):
    samples = [(IMAGE, label) for label in range(3)]
    splits = dict.fromkeys(("train", "val", "test"), samples)
    datasets = Datasets(splits, ImageSpec(1, 4, 4, 3))
    changes = {"data": "torch_dataset", "model.patch_size": 2, "trainer.accelerator": "cpu"}

    build_experiment(config.load("vit_none", changes), datasets=datasets, is_trained=is_trained)
    recipe = config.load("vit_none", {**changes, "trainer.devices": 2})
    with pytest.raises(RecipeError, match=r"trainer\.devices: several processes cannot share"):
        build_experiment(recipe, datasets=datasets, is_trained=is_trained)
