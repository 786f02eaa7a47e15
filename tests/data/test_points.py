"""Sets of points from Parquet and NPZ files: what is read, and the row and column of what is refused."""

import json

import numpy as np
import pytest
import torch

from zoo.data.points import PointFiles
from zoo.data.spec import PointSpec
from zoo.errors import DataError, OptionError

COUNT = 20


def draw_sets(seed=0):
    """Draw lists of times, values of two features, classes and numbers."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 6, COUNT)
    times = [rng.uniform(0, 9, n).tolist() for n in sizes]
    values = [rng.standard_normal((n, 2)).tolist() for n in sizes]
    return times, values, [("calm", "wild")[n % 2] for n in range(COUNT)], rng.uniform(2, 8, COUNT)


def write_parquet(path, **changes):
    from datasets import Dataset

    times, values, names, numbers = draw_sets()
    columns = {"time": times, "x": values, "state": names, "height": numbers.tolist()}
    columns["width"] = (10 * numbers).tolist()
    Dataset.from_dict({**columns, **changes}).to_parquet(path)
    return str(path)


def write_npz(path, **changes):
    times, values, names, numbers = draw_sets()
    most = max(map(len, times))
    mask = np.array([[n < len(one) for n in range(most)] for one in times])
    pos = np.full((COUNT, most), np.nan)
    x = np.full((COUNT, most, 2), np.nan)
    pos[mask] = np.concatenate(times)
    x[mask] = np.concatenate(values)
    np.savez(
        path, **{"time": pos, "x": x, "mask": mask, "state": names, "height": numbers, **changes}
    )
    return str(path)


WRITERS = pytest.mark.parametrize("write", [write_parquet, write_npz])


def name_file(folder, write):
    return folder / ("sets.parquet" if write is write_parquet else "sets.npz")


def make_points(path, **options):
    data = PointFiles(
        0, path=path, **{"pos": "time", "target": "state", "batch_size": 4, **options}
    )
    data.setup("fit")
    data.setup("test")
    return data


@WRITERS
def test_classes_are_read_with_their_points(tmp_path, write):
    data = make_points(write(name_file(tmp_path, write)))
    longest = max(map(len, draw_sets()[0]))
    assert data.spec == PointSpec(2, 1, longest, 2, names=("calm", "wild"))
    assert [data.count_samples(split) for split in ("train", "val", "test")] == [14, 2, 4]

    times, values, names, _ = draw_sets()
    known = {tuple(np.float32(one)): number for number, one in enumerate(times)}
    for x, pos, mask, target in data.build_loader("test"):
        for row in range(len(x)):
            number = known[tuple(pos[row, mask[row], 0].tolist())]
            torch.testing.assert_close(x[row, mask[row]], torch.tensor(values[number]))
            assert ("calm", "wild")[target[row]] == names[number]
    assert data.compute_baselines()["test/accuracy"]["majority class"] <= 1


@WRITERS
def test_numbers_are_standardized_by_the_training_part(tmp_path, write):
    data = make_points(write(name_file(tmp_path, write)), target="height")
    train = torch.cat([batch.target for batch in data.build_loader("train")])
    assert data.spec.classes is None
    assert data.spec.target_means == pytest.approx(train.mean(0).tolist())
    assert data.spec.target_stds == pytest.approx(train.std(0, correction=0).tolist())


def test_several_columns_are_several_features_coordinates_and_numbers(tmp_path):
    path = write_parquet(tmp_path / "a.parquet")
    data = make_points(path, x=["x", "time"], pos=["time", "x"], target=["height", "width"])
    assert (data.spec.features, data.spec.axes, data.spec.outputs) == (3, 3, 2)
    x, pos, _, target = next(iter(data.build_loader("test")))
    torch.testing.assert_close(x[..., 2], pos[..., 0])
    torch.testing.assert_close(x[..., :2], pos[..., 1:])
    torch.testing.assert_close(target[:, 1], 10 * target[:, 0])


UNIX = 1.7e9
LOST = r"row \d+, column time: coordinates up to 1.7e\+09 are .* apart at most, and float32 has"


@WRITERS
def test_times_that_float32_cannot_tell_apart_are_centred_or_refused(tmp_path, write):
    times = draw_sets()[0]
    late = [[UNIX + one for one in row] for row in times]
    path = name_file(tmp_path, write)
    if write is write_npz:
        most = max(map(len, times))
        late = np.array([row + [0.0] * (most - len(row)) for row in late])
    write(path, time=late)
    with pytest.raises(DataError, match=f"{LOST}.*set data.center to true"):
        make_points(str(path))

    data = make_points(str(path), center=True)
    _, pos, mask, _ = next(iter(data.build_loader("test")))
    found = pos[0, mask[0], 0]
    right = [np.subtract(row, np.mean(row)) for row in times]
    assert any(len(row) == len(found) and np.allclose(row, found, atol=1e-5) for row in right)
    # files to predict are treated alike
    files = [*data.read_files([path], data.spec)]
    assert not any(one.errors for one in files)
    torch.testing.assert_close(files[0].batch[1][0].sum(), torch.tensor(0.0), atol=1e-5, rtol=0)
    data.center = False
    (refused,) = data.read_files([path], data.spec)
    assert "float32 has steps" in refused.errors[path]


def test_arrays_that_numpy_would_turn_into_numbers_are_refused(tmp_path):
    times = np.ones((COUNT, 5))
    for kind, array in (
        ("datetime64", times.astype("datetime64[s]")),
        ("complex128", times.astype(complex)),
        ("<U", times.astype(str)),
    ):
        path = write_npz(tmp_path / "a.npz", time=array)
        with pytest.raises(DataError, match=f"array time: {kind}.*, expected real numbers"):
            make_points(path)


def test_integers_are_classes_if_their_number_is_given(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", state=[n % 3 for n in range(COUNT)])
    assert make_points(path, classes=3).spec.classes == 3
    assert make_points(path).spec.classes is None
    with pytest.raises(DataError, match=r"row \d+, column state: label 2 is none of 2 classes"):
        make_points(path, classes=2)


@pytest.mark.parametrize("key", ["x", "pos", "target"])
def test_an_empty_list_of_columns_is_refused(key):
    with pytest.raises(OptionError, match="name a column") as refusal:
        PointFiles(0, path="a.npz", **{key: ()})
    assert refusal.value.key == key


def test_files_of_a_folder_are_its_splits(tmp_path):
    for name in ("train", "val", "test"):
        write_npz(tmp_path / f"{name}.npz")
    data = make_points(str(tmp_path), val="val", test="test")
    assert [data.count_samples(split) for split in ("train", "val", "test")] == [COUNT] * 3
    with pytest.raises(DataError, match="there is no split dev, but test, train, val"):
        make_points(str(tmp_path), val="dev", test="test")


def break_cell(column, value):
    """Return a column of the table with another value in row 7."""
    times, values, names, _ = draw_sets()
    cells = list({"time": times, "x": values, "state": names}[column])
    cells[7] = value
    return {column: cells}


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("time", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "7 points, but"),
        ("time", [], "there is no point"),
        ("time", [0.5, None], "point 1, axis 0: nan is not a finite number"),
        ("x", [[1.0, 2.0], [1.0]], "no list of a number, or of equally many"),
        ("state", None, "there is no label"),
    ],
    ids=str,
)
def test_a_broken_cell_is_named_by_file_row_and_column(tmp_path, column, value, problem):
    path = write_parquet(tmp_path / "a.parquet", **break_cell(column, value))
    with pytest.raises(DataError) as refusal:
        make_points(path)
    named = "time" if problem.startswith("7 points") else column
    assert f"{path}, row 7, column {named}: " in str(refusal.value)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mask": np.ones((3, 2), bool)}, "array mask: bool of shape"),
        ({"x": np.ones(COUNT)}, r"array x: shape \(20,\)"),
        ({"height": np.full(COUNT, np.nan)}, "row 0, column height: nan is not a finite number"),
    ],
    ids=lambda one: "",
)
def test_a_broken_array_is_named(tmp_path, changes, problem):
    with pytest.raises(DataError, match=problem):
        make_points(write_npz(tmp_path / "a.npz", **changes), target="height")


def test_a_missing_column_or_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no array label; it has time, x, mask, state, height"):
        make_points(write_npz(tmp_path / "a.npz"), target="label")
    with pytest.raises(DataError, match=r"b\.npz: "):
        make_points(str(tmp_path / "b.npz"))
    (tmp_path / "c.npz").write_bytes(b"PK no archive")
    with pytest.raises(DataError, match=r"c\.npz: cannot be read"):
        make_points(str(tmp_path / "c.npz"))


def test_files_to_predict_need_no_target(tmp_path):
    data = PointFiles(0, path="elsewhere", pos="time", batch_size=16)
    spec = PointSpec(2, 1, 5, 2)
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    write_npz(paths[0])
    paths[1].write_bytes(b"")
    first, second, last = data.read_files(paths, spec)
    assert (first.rows, second.rows) == (tuple(range(16)), tuple(range(16, 20)))
    assert [one.shape[0] for one in first.batch] == [16, 16, 16]
    assert last.errors.keys() == {paths[1]}
    (other,) = data.read_files(paths[:1], PointSpec(1, 1, 5, 2))
    assert "its points have 2 features and 1 coordinates" in other.errors[paths[0]]


def test_an_evaluation_has_the_classes_of_the_model(tmp_path):
    path = write_npz(tmp_path / "a.npz")
    data = PointFiles(0, path=path, pos="time", target="state")
    data.adopt_spec(PointSpec(2, 1, 9, 3, names=("wild", "calm", "else")))
    data.setup("test")
    names = draw_sets()[2]
    assert {one.target for one in data._select("test")} <= {0, 1}
    assert data.spec.names[data._read_target(data.tables["train"], 0)] == names[0]
    with pytest.raises(OptionError, match="the model was trained with up, down"):
        PointFiles(0, path=path, pos="time", target="state").adopt_spec(
            PointSpec(2, 1, 9, 2, names=("up", "down"))
        )


@pytest.mark.robustness
def test_targets_of_unequal_length_name_their_row(tmp_path):
    rows = [
        {"x": [[0.1, 1.0]] * 4, "pos": [0.0, 1.0, 2.0, 3.0], "target": [1.0] * (2 if n == 5 else 1)}
        for n in range(20)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = PointFiles(0, path=str(path))
    with pytest.raises(DataError, match="row 5, column target: 2 numbers to predict, and 1 in row"):
        data.check_source()
