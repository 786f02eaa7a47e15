"""No encoding: scores q k^T / sqrt(K), so that only a mask tells the order of tokens."""

from __future__ import annotations

import pytest
import torch
from calls import assert_close
from literal.none import none
from parameters import list_facts, make_initial
from rotations import AXES, CASES, check_reference_catches, check_rotation, make_rotary

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.none import None_


@CASES
@AXES
def test_formula(axes, case):
    check_rotation(make_rotary("none", axes), none, case)


def test_facts():
    assert list_facts("none") == {"shift_invariant": True, "axes": (1, 2, 3)}


@AXES
def test_parameters(axes):
    assert make_initial("none", axes).state_dict() == {}


def test_attention_is_equivariant_and_not_invariant():
    layer, order = zoo.Attention(Dims(16, 2), "none").double(), torch.randperm(9)
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    assert_close(layer(x[:, order]), layer(x)[:, order])
    assert (layer(x[:, order]) - layer(x)).abs().max() > 1e-6


class Unscaled(None_):
    """The root of the head dim forgotten."""

    def modify(self, call):
        return call.replace(scale=1.0)


class Nearest(None_):
    """A bias of distance, however small."""

    def modify(self, call):
        return call.add_bias(lambda b, h, i, j: -1e-6 * call.distance(b, i, j))


@pytest.mark.parametrize("fault", [Unscaled, Nearest])
def test_planted_fault(fault):
    check_reference_catches(fault, none, axes=1)
