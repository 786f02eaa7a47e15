"""Angles in float32 are those of float64, near and far, with float64 and without."""

from __future__ import annotations

import pytest
import torch

from zoo.encodings.common import frequencies
from zoo.encodings.common.frequencies import compute_angles, float64_like, sum_angles

POSITIONS = (0.0, 1.0, 17.25, 4095.0, 1e5, 1e6 + 0.5, 16_777_215.0)
ERROR = 1e-6  # rounding of float32 at one turn is 2.4e-7, for each axis


@pytest.fixture(params=["float64", "split"])
def path(request, monkeypatch):
    """Compute as on a CPU, and as on a device without float64."""
    if request.param == "split":
        monkeypatch.setattr(frequencies, "has_float64", lambda device: False)
    return request.param


def make_inputs(axes):
    """Coordinates and wave vectors that float32 numbers are."""
    pos = torch.tensor(POSITIONS)[:, None].repeat(1, axes)[None]
    pos[..., -1] *= -1
    return pos, torch.cat([torch.randn(axes, 2, 12), 3 + torch.rand(axes, 2, 4)], dim=-1)


def require_same_turn(found, exact):
    difference = found.double() - exact
    assert (difference - 2 * torch.pi * (difference / (2 * torch.pi)).round()).abs().max() < ERROR


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_parameters_rotate_far_tokens_exactly(axes, path):
    pos, waves = make_inputs(axes)
    found = compute_angles(pos, waves)
    assert found.dtype == torch.float32
    assert found.abs().max() < 4 * axes * torch.pi  # float32 may count a whole turn too few
    require_same_turn(found, compute_angles(pos.double(), waves))


def test_frequencies_between_two_float32_numbers_rotate_exactly(path):
    pos, _ = make_inputs(1)
    waves = (10000.0 ** (-torch.arange(16, device=float64_like(pos).device).double() / 16))[
        None, None
    ]
    require_same_turn(compute_angles(pos, waves), compute_angles(pos.double(), waves))


def test_angles_within_half_a_turn_stay_as_they_are(path):
    pos = torch.tensor([-1.0, 0.0, 1e-9, 0.5, 1.0])[None, :, None]
    waves = torch.tensor([1e-6, 0.25, 3.0])[None, None]
    torch.testing.assert_close(compute_angles(pos, waves), pos[:, None] * waves, atol=0, rtol=2e-7)


@pytest.mark.parametrize("axes", [1, 2])
def test_gradients_are_those_of_the_products(axes, path):
    pos, waves = make_inputs(axes)
    pos, waves = pos[:, :4].requires_grad_(), waves.requires_grad_()
    towards = torch.randn(1, 2, 4, 16)
    found = torch.autograd.grad(compute_angles(pos, waves), (pos, waves), towards)
    exact = torch.autograd.grad(torch.einsum("bna,agw->bgnw", pos, waves), (pos, waves), towards)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-5)


def test_float64_is_not_reduced():
    pos = torch.tensor([1e6], dtype=torch.float64)[None, :, None]
    assert compute_angles(pos, torch.ones(1, 1, 1)).item() == 1e6


@pytest.mark.parametrize("count", [1, 7, 1_000_000])
def test_sums_of_many_angles_are_exact(count):
    each = torch.randn(1, count, 1, 2) + 1
    require_same_turn(sum_angles(each), each.double().cumsum(1))


def test_sums_up_to_recent_tokens_are_exact_without_float64(monkeypatch):
    monkeypatch.setattr(frequencies, "has_float64", lambda device: False)
    each = torch.randn(1, 1000, 1, 2) + 1
    found, exact = sum_angles(each)[:, -8:], each.double().cumsum(1)[:, -8:]
    require_same_turn(found - found[:, -1:], exact - exact[:, -1:])
