"""Grids within a budget of patches, and rows of the patches of several images."""

import itertools

import pytest
import torch

from zoo.data.patch_rows import find_covered, fit_grid, place_patches
from zoo.errors import OptionError


def test_a_grid_fills_its_budget_in_the_shape_of_its_image():
    assert fit_grid(100, 100, 64) == (8, 8)
    assert fit_grid(100, 400, 64) == (4, 16)
    assert fit_grid(9, 1, 36) == (18, 2)
    assert fit_grid(1, 1000, 64) == (1, 64)
    for height, width, budget in itertools.product(
        (1, 3, 16, 500), (1, 2, 9, 333), (1, 7, 64, 196)
    ):
        rows, columns = fit_grid(height, width, budget)
        assert 1 <= rows * columns <= budget
        # as near as a grid of whole patches comes, where both axes have several
        if rows > 4 < columns:
            assert rows / columns == pytest.approx(height / width, rel=0.3)
            assert rows * columns > budget / 2


def test_rows_are_padded_and_shared():
    padded = place_patches([(1, 2), (2, 2)])
    assert padded.members is None
    # the batch has grids of 2 x 2
    assert padded.places.tolist() == [[0, 1, -1, -1], [4, 5, 6, 7]]
    packed = place_patches([(1, 2), (2, 2), (1, 1)], pack=4)
    assert packed.places.tolist() == [[0, 1, 8, -1], [4, 5, 6, 7]]
    assert packed.members.tolist() == [[0, 2], [1, -1]]
    covered = find_covered(packed.places, 3, (2, 2))
    assert torch.equal(covered[0], torch.tensor([[True, True], [False, False]]))
    assert covered.sum((1, 2)).tolist() == [2, 4, 1]


def test_an_image_that_no_row_holds_is_refused():
    with pytest.raises(
        OptionError, match="3 x 4 patches does not fit a row of 8; write 12 or more"
    ):
        place_patches([(1, 2), (3, 4)], pack=8)
