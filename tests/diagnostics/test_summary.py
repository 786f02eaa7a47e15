"""What is measured of a layer, and what is drawn of it, where its attention is known."""

import math

import pytest
import torch

import zoo
from zoo.attention.encoding import Dims
from zoo.diagnostics.looking import look
from zoo.diagnostics.pictures import GAP, MARK, STOPS, attended
from zoo.diagnostics.probe import numbers
from zoo.diagnostics.summary import kinds, unit


def even(axes=1, length=(8,), causal=False, queries=None):
    """A look at a layer of two heads that looks at everything alike, for two samples of noise."""
    layer = zoo.Attention(Dims(16, 2, axes=axes, length=length), "none", causal=causal)
    for parameter in layer.layer.query.parameters():
        torch.nn.init.zeros_(parameter)
    (found,) = look(layer, (torch.randn(2, math.prod(length), 16),), queries=queries)
    return found


def measured(look):
    return {kind.name: kind.of(look) for kind in kinds(look)}


def test_even_attention_over_a_text_is_measured_as_such():
    found = measured(even())
    mean = sum(abs(i - j) for i in range(8) for j in range(8)) / 64
    expected = {"entropy": math.log(8), "distance": mean, "self": 1 / 8, "first": 1 / 8, "near": 1.0, "total": 1.0,
        "similarity": 1.0, "effective_rank": 1.0, "largest_score": 0.0}  # fmt: skip
    for name, value in expected.items():
        torch.testing.assert_close(found[name], torch.full((2,), value), atol=1e-5, rtol=1e-5, msg=name)
    assert "distance_row" not in found


def test_a_causal_mask_leaves_what_came_before():
    found = measured(even(causal=True))
    torch.testing.assert_close(found["self"], torch.full((2,), sum(1 / n for n in range(1, 9)) / 8))
    torch.testing.assert_close(found["distance"], torch.full((2,), sum(n / 2 for n in range(8)) / 8))


def test_distances_on_a_grid_are_in_patches():
    seen = even(2, (2, 4))
    found = measured(seen)
    assert unit(seen) == "patches"
    torch.testing.assert_close(found["distance_row"], torch.full((2,), 0.5))
    torch.testing.assert_close(found["distance_column"], torch.full((2,), 1.25))
    assert {kind.name: kind.unit for kind in kinds(seen)}["distance_column"] == "columns"


def test_distances_in_a_clip_are_told_along_time_too():
    found = measured(even(3, (4, 1, 2)))
    torch.testing.assert_close(found["distance_step"], torch.full((2,), 1.25))
    torch.testing.assert_close(found["distance_column"], torch.full((2,), 0.5))


def test_numbers_are_means_over_heads_and_leave_out_what_cannot_be_said():
    found = numbers(even())
    assert found["entropy"] == pytest.approx(math.log(8), abs=1e-5)
    assert "by_position" not in found  # scores are constant


def test_what_encodings_say_in_numbers_is_among_them():
    layer = zoo.Attention(Dims(16, 2), "fox", causal=True)
    (seen,) = look(layer, (torch.randn(1, 6, 16),))
    assert [name for name in numbers(seen) if name.startswith("fox/")]


def test_a_picture_of_a_text_has_a_cell_for_each_head():
    seen = even(queries=4)
    picture = attended(seen)
    cell = 96 // 8  # pixels of a weight
    assert picture.shape == (3, 4 * cell + GAP, 2 * (8 * cell + GAP))
    assert tuple(picture[:, 0, 0].tolist()) == STOPS[-1]  # all weights are the largest
    assert tuple(picture[:, -1, -1].tolist()) == (255, 255, 255)


def test_a_picture_of_a_grid_has_a_row_for_each_query_and_a_dot_on_it():
    picture = attended(even(2, (2, 4), queries=2))
    cell = 96 // 4
    assert picture.shape == (3, 2 * (2 * cell + GAP), 2 * (4 * cell + GAP))
    assert tuple(picture[:, cell // 2, cell // 2].tolist()) == MARK  # the first patch, in the first row
    last = (2 * cell + GAP) + cell + cell // 2, 3 * cell + cell // 2
    assert tuple(picture[:, last[0], last[1]].tolist()) == MARK


def test_a_picture_of_a_clip_has_its_frames_side_by_side():
    picture = attended(even(3, (2, 2, 2), queries=1))
    cell = 96 // 4
    assert picture.shape == (3, 2 * cell + GAP, 2 * (4 * cell + GAP))
