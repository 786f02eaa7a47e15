"""Sinusoids: x + PE(p), PE(p, 2i) = sin(p w_i), PE(p, 2i+1) = cos(p w_i), w_i = base^(-2i/D)."""

from __future__ import annotations

import math

import pytest
import torch
from calls import assert_close
from literal.sinusoidal import sinusoidal
from parameters import list_facts, make_initial
from rotations import AXES, make_rotary

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.sinusoidal import Sinusoidal, sinusoid

POS = torch.arange(9).double()[:, None]


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
@AXES
def test_formula(axes, layout):
    encoding = make_rotary("sinusoidal", axes, layout=layout)
    pos, x = 50 * torch.rand(7, axes, dtype=torch.float64), torch.randn(2, 7, 48).double()
    assert_close(zoo.functional.embed(encoding, x, pos), x + sinusoidal(pos, 48, layout))


def test_formula_with_another_base():
    encoding, pos = make_rotary("sinusoidal", 1, base=100.0), torch.arange(7.0).double()[:, None]
    table = zoo.functional.embed(encoding, torch.zeros(1, 7, 48).double(), pos)[0]
    assert_close(table, sinusoidal(pos, 48, base=100.0))


def test_facts():
    assert list_facts("sinusoidal") == {"axes": (1, 2, 3)}


@pytest.mark.parametrize("axes", [1, 2])
def test_parameters(axes):
    assert make_initial("sinusoidal", axes).state_dict() == {}


@pytest.mark.parametrize("layout", ["interleaved", "concat"])
def test_layouts_hold_the_same_channels(layout):
    encoding = zoo.encoding("sinusoidal", Dims(4, 1), layout=layout)
    table = zoo.functional.embed(encoding, torch.zeros(1, 1, 4), torch.tensor([[2.0]]))
    fast, slow = 2.0, 2.0 / 100
    interleaved = [math.sin(fast), math.cos(fast), math.sin(slow), math.cos(slow)]
    concat = [math.sin(fast), math.sin(slow), math.cos(fast), math.cos(slow)]
    expected = interleaved if layout == "interleaved" else concat
    assert_close(table[0, 0], torch.tensor(expected), 1e-6)


def test_two_neighbouring_channels_share_a_frequency():
    encoding = zoo.encoding("sinusoidal", Dims(16, 2)).double()
    table = zoo.functional.embed(encoding, torch.zeros(1, 9, 16).double(), POS)[0]
    for channel in range(16):
        angle = POS[:, 0] * 10000 ** (-2 * (channel // 2) / 16)
        assert_close(table[:, channel], angle.cos() if channel % 2 else angle.sin())


def test_the_shortest_wave_is_two_pi():
    encoding = zoo.encoding("sinusoidal", Dims(16, 2)).double()
    pos = torch.tensor([[0.0], [2.0], [2 * math.pi]], dtype=torch.float64)
    table = zoo.functional.embed(encoding, torch.zeros(1, 3, 16).double(), pos)[0, :, :2]
    assert_close(table[2], table[0])
    assert (table[1] - table[0]).abs().max() > 1e-6


def test_positions_far_past_training_have_a_value():
    encoding = zoo.encoding("sinusoidal", Dims(16, 2, length=64)).double()
    far = torch.tensor([[1e5]], dtype=torch.float64)
    assert zoo.functional.embed(encoding, torch.zeros(1, 1, 16).double(), far).isfinite().all()


class WavePerChannel(Sinusoidal):
    """A frequency for each channel: w_i = base^(-i/D)."""

    def embed(self, tokens):
        waves = self.base ** (-torch.arange(self.dims.dim).double() / self.dims.dim)
        angles = tokens.pos * waves
        even = torch.arange(self.dims.dim) % 2 == 0
        return tokens.replace(x=tokens.x + torch.where(even, angles.sin(), angles.cos()))


class OneLadder(Sinusoidal):
    """A ladder over all channels, cut into parts for the axes."""

    def embed(self, tokens):
        own = self.dims.dim // self.dims.axes
        parts = [
            sinusoid(tokens.pos[..., [a]], self.dims.dim)[..., a * own : (a + 1) * own]
            for a in range(self.dims.axes)
        ]
        return tokens.replace(x=tokens.x + torch.cat(parts, dim=-1))


@pytest.mark.parametrize(("fault", "axes"), [(WavePerChannel, 1), (OneLadder, 2)])
def test_planted_fault(fault, axes):
    pos, zero = 50 * torch.rand(7, axes, dtype=torch.float64), torch.zeros(1, 7, 48).double()
    expected = sinusoidal(pos, 48)
    sound, planted = (cls(Dims(48, 2, axes)).double() for cls in (Sinusoidal, fault))
    assert_close(zoo.functional.embed(sound, zero, pos)[0], expected)
    with pytest.raises(AssertionError, match="not close"):
        assert_close(zoo.functional.embed(planted, zero, pos)[0], expected)
