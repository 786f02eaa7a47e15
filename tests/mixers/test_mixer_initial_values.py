"""Names, shapes and initial values of the parameters of mixers, and options that do not fit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from layers import DIMS, make_mixer

import zoo
from zoo.errors import OptionError


def list_shapes(mixer):
    return {name: tuple(parameter.shape) for name, parameter in mixer.named_parameters()}


def test_parameters_of_a_decay_by_head():
    mixer = make_mixer("gated_delta", heads=3, value_heads=6, value_dim=5, gate_rank=2)
    assert list_shapes(mixer) == {
        "query.weight": (12, 12),
        "key.weight": (12, 12),
        "value.weight": (30, 12),
        "beta.weight": (6, 12),
        "decay.weight": (6, 12),
        "gate_down.weight": (2, 12),
        "gate_up.weight": (30, 2),
        "conv.weight": (54, 1, 4),
        "norm.weight": (5,),
        "out.weight": (12, 30),
        "a_log": (6,),
        "dt_bias": (6,),
    }


def test_parameters_of_a_decay_by_channel():
    shapes = list_shapes(make_mixer("gated_delta", heads=3, decay="channel", conv=0))
    assert shapes == {
        "query.weight": (12, 12),
        "key.weight": (12, 12),
        "value.weight": (12, 12),
        "beta.weight": (3, 12),
        "decay_down.weight": (4, 12),
        "decay_up.weight": (12, 4),
        "gate.weight": (12, 12),
        "norm.weight": (4,),
        "out.weight": (12, 12),
        "a_log": (3,),
        "dt_bias": (12,),
    }
    assert not any("gate" in name for name in list_shapes(make_mixer("gated_delta", gate=None)))


def test_parameters_of_a_short_convolution():
    shapes = {"in_proj.weight": (36, 12), "conv.weight": (12, 1, 3), "out_proj.weight": (12, 12)}
    assert list_shapes(make_mixer("short_conv")) == shapes


def test_initial_rates_and_steps():
    mixer = make_mixer("gated_delta", zoo.Dims(4000, 2000), decay="channel", conv=8)
    rates, steps = mixer.a_log.exp(), F.softplus(mixer.dt_bias)
    assert 1 <= rates.min() < 1.1
    assert 15.9 < rates.max() < 16
    assert abs(rates.mean() - 8.5) < 0.4
    # the logarithms are uniform, not the steps
    assert 1e-3 <= steps.min() * 1.001 < 1.02e-3
    assert 0.098 < steps.max() < 0.1001
    assert abs(steps.log10().mean() + 2) < 0.05
    assert torch.equal(mixer.norm.weight, torch.ones(2))
    bound = 8**-0.5
    assert 0.99 * bound < mixer.conv.weight.abs().max() <= bound
    assert abs(mixer.conv.weight.std() - bound / 3**0.5) < 0.01


def test_gates_have_an_activation_for_each_decay():
    assert make_mixer("gated_delta").activation == "silu"
    assert make_mixer("gated_delta", decay="channel").activation == "sigmoid"
    assert make_mixer("gated_delta", decay="channel", gate="silu").activation == "silu"


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"heads": 2, "value_heads": 3}, "value_heads", "no multiple of 2 heads"),
        ({"heads": 5}, "heads", "write key_dim"),
        ({"gate": None, "gate_rank": 4}, "gate_rank", "there is no gate"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, key, words):
    with pytest.raises(OptionError, match=words) as caught:
        make_mixer("gated_delta", DIMS, **options)
    assert caught.value.key == key
