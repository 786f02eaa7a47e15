"""Exponentials of small skew-symmetric matrices and turning by them, element by element and as batches of products."""

from __future__ import annotations

import pytest
import torch

from zoo.encodings.parts import blocks
from zoo.encodings.parts.blockwise import turn_blocks
from zoo.encodings.parts.exponential import exponential


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 20.0])
@pytest.mark.parametrize("size", [2, 3, 8, 12])
def test_exponentials_and_their_gradients_are_torch_s(size, scale):
    upper = (scale * torch.randn(5, 3, size, size, dtype=torch.float64)).requires_grad_()
    there, here = torch.linalg.matrix_exp(upper - upper.mT), exponential(upper - upper.mT)
    towards = torch.randn_like(there)
    torch.testing.assert_close(here, there, atol=1e-11, rtol=1e-11)
    found, wanted = (torch.autograd.grad(one, upper, towards)[0] for one in (here, there))
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)


def test_parts_are_joined_as_they_were(monkeypatch):
    monkeypatch.setattr(blocks, "CACHED", 4 * 9)
    matrices = torch.randn(2, 7, 3, 3)
    found = blocks.parts(matrices)
    assert [len(part) for part in found] == [4, 4, 4, 2]
    assert torch.equal(blocks.joined(found, matrices.shape), matrices)


def test_several_parts_have_the_gradient_of_one(monkeypatch):
    upper = torch.randn(20, 3, 3, dtype=torch.float64, requires_grad=True)
    towards = torch.randn_like(upper)
    whole = torch.autograd.grad(exponential(upper - upper.mT), upper, towards)[0]
    monkeypatch.setattr(blocks, "CACHED", 4 * 9)
    torch.testing.assert_close(torch.autograd.grad(exponential(upper - upper.mT), upper, towards)[0], whole)


def test_a_count_that_cannot_be_asked_for_gives_the_same(monkeypatch):
    upper = torch.randn(6, 3, 3, dtype=torch.float64, requires_grad=True)
    towards = torch.randn_like(upper)
    known = torch.autograd.grad(exponential(3 * (upper - upper.mT)), upper, towards)[0]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(torch.autograd.grad(exponential(3 * (upper - upper.mT)), upper, towards)[0], known)


@pytest.mark.parametrize("batch", [1, 3], ids=["shared", "per sample"])
@pytest.mark.parametrize("size", [3, 10])
def test_turning_by_blocks_has_exact_gradients(size, batch):
    x = torch.randn(3, 2, 2, 2 * size + 1, dtype=torch.float64, requires_grad=True)
    rotations = torch.randn(batch, 2, 2, 2, size, size, dtype=torch.float64, requires_grad=True)
    expected = (rotations @ x[..., :-1].unflatten(-1, (2, size))[..., None]).flatten(-3)
    torch.testing.assert_close(turn_blocks(x, rotations), torch.cat([expected, x[..., -1:]], dim=-1))
    assert torch.autograd.gradcheck(turn_blocks, (x, rotations), fast_mode=True)
