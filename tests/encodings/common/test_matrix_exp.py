"""Exponentials of small skew-symmetric matrices and turning by them, element by element and as batches of products."""

from __future__ import annotations

import pytest
import torch

from zoo.encodings.common import matrix_exp
from zoo.encodings.common.matrix_exp import rotate_blocks, skew_matrix_exp


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 20.0])
@pytest.mark.parametrize("size", [2, 3, 8, 12])
def test_exponentials_and_their_gradients_are_torch_s(size, scale):
    upper, times, towards = make_family(size, scale)
    skew = upper - upper.mT
    there, here = (
        torch.linalg.matrix_exp(torch.einsum("tp,pkij->tkij", times, skew)),
        skew_matrix_exp(skew, times),
    )
    torch.testing.assert_close(here, there, atol=1e-11, rtol=1e-11)
    found, wanted = (torch.autograd.grad(one, (upper, times), towards) for one in (here, there))
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("size", [3, 12])
def test_several_parts_give_what_one_does(size, monkeypatch):
    upper, times, towards = make_family(size, 2.0)
    results = []
    for cached in (10**6, 2 * 3 * size**2):
        monkeypatch.setattr(matrix_exp, "CACHED", cached)
        found = skew_matrix_exp(upper - upper.mT, times)
        results.append((found, *torch.autograd.grad(found, (upper, times), towards)))
    assert [len(part) for part in matrix_exp.split_times(times, upper)] == [2, 2, 1]
    torch.testing.assert_close(*results)


def test_a_count_that_cannot_be_asked_for_gives_the_same(monkeypatch):
    upper, times, towards = make_family(3, 3.0)
    known = torch.autograd.grad(skew_matrix_exp(upper - upper.mT, times), upper, towards)[0]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(
        torch.autograd.grad(skew_matrix_exp(upper - upper.mT, times), upper, towards)[0], known
    )


def test_single_precision_is_kept_through_all_squarings():
    upper, times, towards = make_family(8, 5.0)
    exact = skew_matrix_exp(upper - upper.mT, times)
    single = skew_matrix_exp(*((one.float()) for one in (upper - upper.mT, times)))
    torch.testing.assert_close(
        single.double(), exact, atol=1e-4, rtol=0
    )  # angles of about 100, in units of 6e-8 each
    grown = torch.autograd.grad(single, upper, towards.float())[0]
    wanted = torch.autograd.grad(exact, upper, towards)[0]
    assert (grown - wanted).abs().max() < 1e-4 * wanted.abs().max()


def make_family(size, scale):
    """Upper parts of two matrices in each of three blocks, five times of each, and a gradient."""
    upper = (scale * torch.randn(2, 3, size, size, dtype=torch.float64)).requires_grad_()
    times = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    return upper, times, torch.randn(5, 3, size, size, dtype=torch.float64)


@pytest.mark.parametrize("batch", [1, 3], ids=["shared", "per sample"])
@pytest.mark.parametrize("size", [3, 10])
def test_turning_by_blocks_has_exact_gradients(size, batch):
    x = torch.randn(3, 2, 2, 2 * size + 1, dtype=torch.float64, requires_grad=True)
    rotations = torch.randn(batch, 2, 2, 2, size, size, dtype=torch.float64, requires_grad=True)
    expected = (rotations @ x[..., :-1].unflatten(-1, (2, size))[..., None]).flatten(-3)
    torch.testing.assert_close(
        rotate_blocks(x, rotations), torch.cat([expected, x[..., -1:]], dim=-1)
    )
    assert torch.autograd.gradcheck(rotate_blocks, (x, rotations), fast_mode=True)


@pytest.mark.parametrize("size", [3, 12], ids=["elements", "batches"])
@pytest.mark.parametrize("wide", ["skew", "times"])
def test_the_wider_of_two_dtypes_is_computed_in(size, wide):
    upper, times, towards = make_family(size, 1.0)
    skew = (upper - upper.mT).detach()
    given = {"skew": skew, "times": times.detach()}
    given = {
        name: (one if name == wide else one.float()).requires_grad_() for name, one in given.items()
    }
    found = skew_matrix_exp(**given)
    exact = {name: one.detach().double().requires_grad_() for name, one in given.items()}
    wanted = skew_matrix_exp(**exact)
    torch.testing.assert_close(found, wanted)
    gradients = torch.autograd.grad(found, [*given.values()], towards)
    expected = torch.autograd.grad(wanted, [*exact.values()], towards)
    for one, other, leaf in zip(gradients, expected, given.values(), strict=True):
        torch.testing.assert_close(one, other.to(leaf.dtype))


@pytest.mark.parametrize("size", [3, 12], ids=["elements", "batches"])
def test_second_derivatives_are_differences_of_gradients(size):
    upper, times, _ = make_family(size, 1.0)
    leaves = [one.detach().double().requires_grad_() for one in (upper[:, :1], times[:2])]
    assert torch.autograd.gradgradcheck(
        lambda upper, times: skew_matrix_exp(upper - upper.mT, times), leaves, fast_mode=True
    )


def test_second_derivatives_of_rotated_heads_are_differences_of_gradients():
    shapes = ((2, 1, 4, 6), (1, 1, 4, 2, 3, 3))
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradgradcheck(rotate_blocks, leaves, fast_mode=True)
