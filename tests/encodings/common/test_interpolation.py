"""Rows of a table, read between two entries."""

import numpy as np
import pytest
import torch

from zoo.encodings.common.interpolation import interpolate_entries


@pytest.mark.parametrize("far", [0, 9, 30], ids=["none", "some", "most"])
def test_entries_are_interpolated_and_the_last_is_repeated(far):
    table = torch.randn(2, 3, 5, dtype=torch.double)
    positions = torch.rand(2, 3, 30, dtype=torch.double) * 6  # some past the last entry
    positions[..., :far] += 4
    positions[0, 1, far // 2] = 2.5  # a far key that one row still tells apart
    found = interpolate_entries(table, positions)
    for row in np.ndindex(2, 3):
        right = np.interp(positions[row].numpy(), np.arange(5), table[row].numpy())
        np.testing.assert_allclose(found[row].numpy(), right, rtol=1e-12)


def test_positions_that_are_not_numbers_stay_so():
    positions = torch.tensor([[9.0, float("nan"), 0.5]])
    found = interpolate_entries(torch.tensor([[1.0, 3.0]]), positions)
    torch.testing.assert_close(found, torch.tensor([[3.0, float("nan"), 2.0]]), equal_nan=True)


def test_gradients_and_their_derivatives_are_right():
    table = torch.randn(2, 4, dtype=torch.double, requires_grad=True)
    # the first two keys are past the last entry in all rows
    positions = torch.tensor([[7.2, 3.4, 2.7, 0.2], [9.1, 4.3, 3.9, 1.6]], dtype=torch.double)
    positions.requires_grad_()
    assert torch.autograd.gradcheck(interpolate_entries, (table, positions))
    assert torch.autograd.gradgradcheck(interpolate_entries, (table, positions))
    frozen = table.detach()
    assert torch.autograd.gradgradcheck(lambda one: interpolate_entries(frozen, one), positions)
