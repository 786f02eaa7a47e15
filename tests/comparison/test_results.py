"""A comparison as data: written and read back, and what is said of means."""

import json
import math

import comparisons
import pytest

from zoo.comparison.results import Comparison
from zoo.comparison.statistics import (
    Pair,
    compare_named,
    estimate_mean,
    excludes_zero,
    measure_noise,
)
from zoo.errors import DataError


@pytest.mark.parametrize("made", [comparisons.images, comparisons.texts])
def test_a_comparison_is_read_back_as_it_was_written(made, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(made().to_dict()))
    assert Comparison.read(path) == made()


def test_what_is_no_number_is_none_in_a_file(tmp_path):
    text = json.dumps(comparisons.hostile().to_dict(), allow_nan=False)
    (tmp_path / "results.json").write_text(text)
    odd = Comparison.read(tmp_path / "results.json").variants[2].cells[0]
    assert odd.measurements[1].metrics["test/accuracy"] is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"axes": 1}'])
def test_what_is_no_comparison_is_told(text, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(DataError, match="holds no comparison"):
        Comparison.read(path)


def difference(one, other, bounds=(-math.inf, math.inf)):
    values = {"a": one, "b": other}
    found = compare_named(values, [Pair("a", "b")], measure_noise(values), bounds)
    return found[Pair("a", "b")].estimate if found else None


def test_intervals_are_students():
    found = estimate_mean([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    quantile = 4.302653  # of tables: t of 0.975, 2 degrees
    assert found.high - found.mean == pytest.approx(quantile * 1.0 / math.sqrt(3), rel=1e-6)
    assert estimate_mean([1.0]).low is None


def test_intervals_end_where_values_do():
    found = estimate_mean([0.6, 0.9, 1.0], (0.0, 1.0))
    assert found.high == 1.0
    assert found.low == estimate_mean([0.6, 0.9, 1.0]).low
    found = difference({0: 1.0, 1: 1.0, 2: 1.0}, {0: 0.0, 1: 0.3, 2: 0.9}, (0.0, 1.0))
    assert found.high == 1.0
    assert comparisons.images().bounds == (0.0, 1.0)
    assert comparisons.texts().bounds == (0.0, math.inf)


def test_differences_are_of_the_same_seeds():
    one, other = {0: 1.0, 1: 5.0, 2: 9.0}, {0: 0.9, 1: 4.91, 2: 8.88, 3: 100.0}
    found = difference(one, other)
    assert (found.count, found.mean) == (3, pytest.approx(0.31 / 3))
    assert excludes_zero(found)
    assert not excludes_zero(difference({0: 1.0, 1: 2.0, 2: 1.0}, {0: 2.0, 1: 1.0, 2: 1.5}))
    assert difference({0: 1.0}, {1: 1.0}) is None
