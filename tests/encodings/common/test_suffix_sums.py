"""Sums over a key and all that follow it."""

import pytest
import torch

from zoo.encodings.common.suffix_sums import sum_suffixes


def test_a_sum_and_its_gradient_are_those_of_plain_operations_to_the_bit():
    x = torch.randn(2, 3, 50, requires_grad=True)
    weights = torch.randn(2, 3, 50)
    found = []
    for compute in (sum_suffixes, lambda x: x.flip(-1).cumsum(-1).flip(-1)):
        out = compute(x)
        (gradient,) = torch.autograd.grad((out * weights).sum(), x)
        found.append((out, gradient))
    assert all(map(torch.equal, *found))
    assert out[0, 0, -1] == x[0, 0, -1]


# torch's own warning, at its first jvp of a process
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_derivatives_of_gradients_and_tangents_are_right():
    x = torch.randn(7, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: sum_suffixes(x).square(), x)
    _, tangent = torch.func.jvp(sum_suffixes, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, torch.arange(7, 0, -1).double())
