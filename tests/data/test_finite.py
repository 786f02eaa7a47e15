"""Numbers that the precision of a model does not hold are refused by file, row and axis, in all readers."""

import numpy as np
import pytest
import torch
from tables import jsonl

from zoo.data.base import Datasets
from zoo.data.finite import find_not_finite
from zoo.data.points import PointFiles
from zoo.data.spec import ImageSpec, PointSpec, SegmentationSpec, VideoSpec
from zoo.data.torch_dataset import TorchDataset
from zoo.data.vision import Augmentation, ImageTransform
from zoo.errors import DataError, OptionError
from zoo.tasks.segmentation import Segmentation

COUNT = 20
ROW, POINT = 7, 2


def draw_sets():
    """Draw features, coordinates on two axes and targets of sets, in float64."""
    draw = np.random.default_rng(0)
    return {
        "x": draw.normal(size=(COUNT, 4, 3)),
        "pos": draw.normal(size=(COUNT, 4, 2)),
        "target": draw.normal(size=COUNT),
    }


def write_npz(folder, arrays):
    np.savez(folder / "sets.npz", **arrays)
    return folder / "sets.npz"


def write_rows(folder, arrays):
    rows = [{name: array[n].tolist() for name, array in arrays.items()} for n in range(COUNT)]
    return jsonl(folder / "sets.jsonl", rows)


def write_parquet(folder, arrays):
    from datasets import Dataset

    columns = {name: array.tolist() for name, array in arrays.items()}
    Dataset.from_dict(columns).to_parquet(folder / "sets.parquet")
    return folder / "sets.parquet"


def load(path, dtype=torch.float32, **options):
    data = PointFiles(0, path=str(path), val=0.2, test=0.2, **options)
    data.dtype = dtype
    assert data.spec
    data.check_source()
    return data


@pytest.mark.parametrize("write", [write_npz, write_rows, write_parquet])
class TestFiles:
    @pytest.mark.parametrize("value", [1e39, -1e300, 3.5e38])
    @pytest.mark.parametrize("name", ["x", "pos", "target"])
    def test_a_number_beyond_float32_is_named(self, write, name, value, tmp_path):
        arrays = draw_sets()
        arrays[name][ROW, *[POINT, 1][: arrays[name].ndim - 1]] = value
        path = write(tmp_path, arrays)
        where = "" if name == "target" else f"point {POINT}, axis 1: "
        with pytest.raises(DataError) as refusal:
            load(path)
        problem = f"{where}{value:g} is infinite in float32"
        assert str(refusal.value) == f"{path}, row {ROW}, column {name}: {problem}"

    def test_the_precision_of_training_decides(self, write, tmp_path):
        arrays = draw_sets()
        arrays["x"][ROW, POINT, 0] = 1e5
        path = write(tmp_path, arrays)
        load(path)
        load(path, torch.bfloat16)
        with pytest.raises(DataError, match=r"row 7, column x: point 2, axis 0: 100000 is infinit"):
            load(path, torch.float16)

    def test_centered_coordinates_are_what_counts(self, write, tmp_path):
        arrays = draw_sets()
        arrays["pos"][ROW] = 1e39
        path = write(tmp_path, arrays)
        with pytest.raises(DataError, match="row 7, column pos: point 0, axis 0: 1e"):
            load(path)
        load(path, center=True)

    @pytest.mark.parametrize("value", [1e25, 2e19])
    def test_targets_can_be_squared(self, write, value, tmp_path):
        arrays = draw_sets()
        arrays["target"][ROW] = value
        with pytest.raises(DataError, match=r"row 7, column target: the square of .* is infinite"):
            load(write(tmp_path, arrays))

    def test_targets_of_tiny_scale_are_refused(self, write, tmp_path):
        arrays = draw_sets()
        arrays["target"] *= 1e-25
        with pytest.raises(DataError, match=r"column target: float32 cannot hold the square of a"):
            load(write(tmp_path, arrays))

    def test_targets_whose_differences_are_lost_are_refused(self, write, tmp_path):
        arrays = draw_sets()
        arrays["target"] += 1.7e9
        with pytest.raises(DataError, match=r"column target: targets up to 1.7e\+09 .*; subtract"):
            load(write(tmp_path, arrays))


def test_one_of_several_columns_is_named(tmp_path):
    rows = [
        {"mass": [1.0] * 3, "charge": [0.0, 1.0, 1e39], "t": [0.0, 1.0, 2.0], "a": 0.5, "b": n}
        for n in range(COUNT)
    ]
    path = jsonl(tmp_path / "sets.jsonl", rows)
    options = {"x": ("mass", "charge"), "pos": "t", "target": ("a", "b")}
    with pytest.raises(DataError, match="row 0, column charge: point 2, axis 1: 1e"):
        load(path, **options)
    for row in rows:
        row["charge"] = [0.0] * 3
    rows[ROW]["b"] = 1e39
    with pytest.raises(DataError, match="row 7, column b: 1e"):
        load(jsonl(path, rows), **options)


def image(value, *shape):
    pixels = torch.zeros(*shape, dtype=torch.float64)
    pixels[..., 1, 1] = value
    return pixels


POINTS = PointSpec(3, 1, 4, target_means=(0.0,), target_stds=(1.0,))
SAMPLES = {
    "image": (ImageSpec(1, 4, 4, 3), lambda value: (image(value, 1, 4, 4), 2), "item 0 at [0, 1"),
    "clip": (
        VideoSpec(1, 4, 4, 3, frames=2),
        lambda value: (image(value, 1, 2, 4, 4), 2),
        "item 0 at [0, 0, 1",
    ),
    "mask": (
        SegmentationSpec(1, 4, 4, 3),
        lambda value: (image(value, 1, 4, 4), torch.zeros(4, 4, dtype=torch.long)),
        "item 0 at [0, 1",
    ),
    "features": (
        POINTS,
        lambda value: (image(value, 4, 3), np.zeros((4, 1)), np.ones(1)),
        "item 0 at [1, 1]",
    ),
    "coordinates": (
        POINTS,
        lambda value: (np.zeros((4, 3)), np.full((4, 1), value), np.ones(1)),
        "item 1 at [0, 0]",
    ),
    "numbers": (
        POINTS,
        lambda value: (np.zeros((4, 3)), np.zeros((4, 1)), np.full(1, value)),
        "item 2 at [0]",
    ),
}


@pytest.mark.parametrize("value", [1e39, float("nan"), float("-inf")])
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_sample_of_a_program_is_named(kind, value):
    spec, make, where = SAMPLES[kind]
    samples = [make(0.5), make(0.5), make(value)]
    data = TorchDataset(0)
    data.adopt_datasets(Datasets(dict.fromkeys(("train", "val", "test"), samples), spec))
    data.check_source()
    with pytest.raises(DataError) as refusal:
        next(iter(data.build_loader("test")))
    message = str(refusal.value)
    assert message.startswith(f"data, test, sample 2, {where}")
    assert message.endswith(("is infinite in float32", "is not a finite number"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_images_of_other_types_are_read_in_float32(dtype):
    samples = [(torch.full((1, 4, 4), 0.5, dtype=dtype), 0)] * 3
    data = TorchDataset(0)
    splits = dict.fromkeys(("train", "val", "test"), samples)
    data.adopt_datasets(Datasets(splits, ImageSpec(1, 4, 4, 2)))
    assert next(iter(data.build_loader("test")))[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("means", "stds"),
    [((1e39,), (1.0,)), ((0.0,), (1e39,)), ((0.0,), (1e-50,)), ((0.0,), (1e-25,))],
)
def test_scales_of_targets_are_numbers_of_float32(means, stds):
    with pytest.raises(ValueError, match="float32 cannot hold the square"):
        PointSpec(1, 1, 4, target_means=means, target_stds=stds).check()


@pytest.mark.parametrize(
    ("mean", "std"), [((1e39,), (1.0,)), ((0.5,), (1e-50,)), ((1.0,), (1e-39,))]
)
def test_images_stay_finite(mean, std):
    with pytest.raises(OptionError, match="are infinite in float32"):
        ImageTransform(1, mean, std, Augmentation())


@pytest.mark.parametrize("weights", [(1e39, 1.0), (1e-50, 0.0), (3e38, 3e38)])
def test_weights_of_classes_are_numbers_of_float32(weights):
    with pytest.raises(OptionError, match="infinite in float32, or all are 0"):
        Segmentation(torch.nn.Identity(), None, SegmentationSpec(1, 4, 4, 2), class_weights=weights)


def test_the_first_number_is_found():
    values = torch.tensor([[1.0, 3e4], [7e4, 8e4]], dtype=torch.float64)
    assert find_not_finite(values, torch.float32) is None
    found = find_not_finite(values, torch.float16)
    assert (found.index, found.problem) == ((1, 0), "70000 is infinite in float16")
    assert find_not_finite(torch.empty(0), torch.float16) is None
    assert find_not_finite(torch.tensor([1]), torch.float16) is None
