"""Turning by exponentials: gradients agree with those of `torch.linalg.matrix_exp`, wherever planes turn alike."""

from __future__ import annotations

import pytest
import torch

from zoo.encodings.common.spectral_rotation import (
    cayley_basis,
    fourier_basis,
    from_upper_triangle,
    rotate_by_spectrum,
    skew_part,
    spectral_tables,
    spectrum,
)

HEADS, BLOCKS, SIZE, TOKENS, AXES = 2, 4, 4, 5, 2
TURN = torch.block_diag(*[torch.tensor([[0.0, -1.0], [0.0, 0.0]])] * (SIZE // 2)).double()
HARDLY = (
    torch.tensor([1.0, 1e-8]).repeat_interleave(2).diag().double()
)  # the second plane is nearly still
STILL = HARDLY @ TURN
SCALES = {"random": 1.0, "alike": 1e-3, "small": 2e-3, "tiny": 1e-7, "zero": 0.0, "still": 1e-10}


def make_inputs(kind, batch):
    """Generators, coordinates, their scales, queries and keys."""
    generators = SCALES[kind] * torch.randn(HEADS, BLOCKS, SIZE, SIZE, dtype=torch.float64)
    pos = torch.randn(batch, TOKENS, AXES, dtype=torch.float64)
    scales = torch.randn(AXES, HEADS, BLOCKS, dtype=torch.float64)
    q, k = torch.randn(2, 3, HEADS, TOKENS, BLOCKS * SIZE, dtype=torch.float64)
    return generators + {"alike": TURN, "still": STILL}.get(kind, 0), pos, scales, q, k


def score_by_exponentials(generators, pos, scales, q, k):
    times = torch.einsum("bnp,phm->bhnm", pos, scales).contiguous()
    rotations = torch.linalg.matrix_exp(times[..., None, None] * skew_part(generators)[:, None])
    q, k = ((rotations @ x.unflatten(-1, (BLOCKS, SIZE))[..., None]).flatten(-3) for x in (q, k))
    return q @ k.mT


def score_by_planes(generators, pos, scales, q, k):
    tables = spectral_tables(skew_part(generators), pos, scales)
    return rotate_by_spectrum(q, *tables) @ rotate_by_spectrum(k, *tables).mT


@pytest.mark.parametrize("batch", [1, 3], ids=["shared", "per sample"])
@pytest.mark.parametrize("kind", SCALES)
def test_gradients_are_those_of_the_exponential(kind, batch):
    inputs = [one.requires_grad_() for one in make_inputs(kind, batch)]
    there, here = score_by_exponentials(*inputs), score_by_planes(*inputs)
    towards = torch.randn_like(there)
    torch.testing.assert_close(here, there)
    gradients = (torch.autograd.grad(one, inputs, towards) for one in (here, there))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("kind", SCALES)
def test_single_precision_is_close(kind):
    exact = [one.requires_grad_() for one in make_inputs(kind, 1)]
    rounded = [one.detach().float().requires_grad_() for one in exact]
    towards = torch.randn(3, HEADS, TOKENS, TOKENS)
    wanted = torch.autograd.grad(score_by_exponentials(*exact), exact, towards.double())[0]
    found = torch.autograd.grad(score_by_planes(*rounded), rounded, towards)[0]
    assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("first", [0, 1, 2, 3], ids=["generators", "times", "q", "k"])
@pytest.mark.parametrize("kind", SCALES)
def test_second_derivatives_are_those_of_the_exponential(kind, first):
    inputs = [one.requires_grad_() for one in make_inputs(kind, 1)]

    # The first derivative of q alone has no part of the keys' rotation, the second has.
    def differentiate_twice(score):
        total = score(*inputs).square().sum()
        (gradient,) = torch.autograd.grad(total, inputs[first], create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), inputs)

    pairs = zip(
        differentiate_twice(score_by_planes),
        differentiate_twice(score_by_exponentials),
        strict=True,
    )
    for found, wanted in pairs:
        assert (found - wanted).abs().max() <= 1e-7 * (1 + wanted.abs().max())


@pytest.mark.parametrize("least", [1e-3, 1e-6, 1e-9, 9e-10, 1e-11, 1e-13, 0.0])
def test_planes_put_together_are_the_matrix_however_still_some_are(least):
    waves = torch.tensor([1.0, 0.5, least, least / 2], dtype=torch.float64)
    orthogonal = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    turns = torch.block_diag(*(w * torch.tensor([[0, -1], [1, 0]]) for w in waves)).double()
    matrix = skew_part(orthogonal @ turns @ orthogonal.mT / 2)
    frequencies, basis = spectrum(matrix)
    turns = torch.block_diag(*(w * torch.tensor([[0, -1], [1, 0]]) for w in frequencies)).double()
    torch.testing.assert_close(basis @ turns @ basis.mT, matrix, atol=1e-11, rtol=0)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(8).double(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("size", [4, 6, 16, 64])
def test_bases_are_orthogonal(size):
    one = torch.eye(size, dtype=torch.float64)
    triangle = 3 * torch.randn(2, size * (size - 1) // 2, dtype=torch.float64)
    fourier, cayley = fourier_basis(size, one), cayley_basis(from_upper_triangle(triangle, size))
    torch.testing.assert_close(fourier.mT @ fourier, one, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(cayley.mT @ cayley, one.expand(2, -1, -1), atol=1e-9, rtol=1e-9)
