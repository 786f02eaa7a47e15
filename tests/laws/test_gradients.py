"""Faults of shapes, gradients and states that the laws of `zoo.laws.gradients` catch."""

from __future__ import annotations

import pytest
import torch
from faults import check_fault_is_caught, make_case, name_parameter
from samples import Carried
from torch import Tensor, nn

import zoo
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens
from zoo.encodings.common.rotation import cos_sin
from zoo.encodings.fox import FoX
from zoo.encodings.rope_mixed import RoPEMixed
from zoo.laws import LawBroken
from zoo.laws.gradients import (
    a_state_dict_carries_everything,
    every_parameter_learns,
    gradients_are_slopes,
    initial_gradients_are_finite,
    shapes_are_kept,
    states_are_read_as_declared,
    undeclared_axes_are_refused,
    zero_parameters_give_finite_gradients,
)


class OneSampleWide(Encoding):
    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x[:1] + tokens.pos.sum(-1, keepdim=True))


class AsWideAsAllHeads(Encoding):
    """Takes the width of all heads together for that of the states."""

    def embed(self, tokens: Tokens) -> Tokens:
        width = self.dims.heads * self.dims.head_dim
        return tokens.replace(x=tokens.x.sum(-1, keepdim=True).expand(-1, -1, width))


class ReadsSilently(FoX):
    reads_states = False


class ReadsNothing(Encoding):
    reads_states = True


class AllAxes(Encoding):
    axes = (1,)

    def __init__(self, dims: zoo.Dims) -> None:
        nn.Module.__init__(self)
        self.dims = dims


class Unsaved(Encoding):
    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.table = [torch.randn(dims.dim, dtype=torch.float64)]

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + self.table[0])


class InfiniteAtFirst(Encoding):
    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.scale = nn.Parameter(torch.zeros(dims.heads))

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return q * self.scale.abs().sqrt()[:, None, None].exp()


class Detached(RoPEMixed):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(table.detach() for table in super().compute_rotation(pos))


class DroppedByZero(RoPEMixed):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            table.detach() + 0 * self.frequencies.sum() for table in super().compute_rotation(pos)
        )


class Doubled(torch.autograd.Function):
    """Hands on twice the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Untrue(RoPEMixed):
    """A backward of its own, which is wrong."""

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(Doubled.apply(table) for table in super().compute_rotation(pos))


class NotANumberAtZero(RoPEMixed):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        waves = self.frequencies / self.frequencies.norm(dim=0)
        return (
            cos_sin(sum(pos[:, None, :, a, None] * waves[a, :, None] for a in range(len(waves)))),
        )


FAULTS = [
    (shapes_are_kept, OneSampleWide),
    (shapes_are_kept, AsWideAsAllHeads),
    (initial_gradients_are_finite, InfiniteAtFirst),
    (initial_gradients_are_finite, Detached),
    (every_parameter_learns, Detached),
    (every_parameter_learns, DroppedByZero),
    (gradients_are_slopes, Untrue),
    (undeclared_axes_are_refused, AllAxes),
    (states_are_read_as_declared, ReadsSilently),
    (states_are_read_as_declared, ReadsNothing),
    (a_state_dict_carries_everything, Unsaved),
    (zero_parameters_give_finite_gradients, NotANumberAtZero),
]


@pytest.mark.parametrize(("law", "fault"), FAULTS, ids=name_parameter)
def test_a_planted_fault_is_caught(law, fault):
    check_fault_is_caught(law, fault)


def test_riders_left_behind_are_caught(monkeypatch):
    monkeypatch.setattr(Carried, "after_attention", Encoding.after_attention)
    with pytest.raises(LawBroken):
        every_parameter_learns(make_case(Carried))
