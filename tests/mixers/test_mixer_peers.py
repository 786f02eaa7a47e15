"""Mixers compute what the layers of transformers compute, in one pass and with a cache in parts."""

from __future__ import annotations

import pytest
import torch
from layers import make_mixer, make_states, run
from transformers import (
    DynamicCache,
    KimiLinearConfig,
    Lfm2Config,
    OlmoHybridConfig,
    Qwen3NextConfig,
)
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

import zoo
from zoo.attention.kv_cache import KeyValueCache

DIM = 24
DIMS = zoo.Dims(DIM, 2)


def make_qwen():
    config = Qwen3NextConfig(
        hidden_size=DIM,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=6,
        linear_value_head_dim=8,
    )
    options = {"heads": 2, "value_heads": 4, "key_dim": 6, "value_dim": 8}
    return config, Qwen3NextGatedDeltaNet(config, 0), make_mixer("gated_delta", DIMS, **options)


def take_qwen(weights):
    # a group of each key head: query, key, then values and gates of its value heads
    rows = weights["in_proj_qkvz.weight"].view(2, -1, DIM).split([6, 6, 16, 16], dim=1)
    beta, decay = weights["in_proj_ba.weight"].view(2, -1, DIM).split([2, 2], dim=1)
    parts = dict(zip(("query", "key", "value", "gate"), rows, strict=True))
    parts |= {"beta": beta, "decay": decay}
    taken = {f"{name}.weight": part.reshape(-1, DIM) for name, part in parts.items()}
    return taken | {"out.weight": weights["out_proj.weight"]} | take_common(weights, "norm")


def take_common(weights, norm):
    return {"conv.weight": weights["conv1d.weight"], "norm.weight": weights[f"{norm}.weight"]} | {
        own: weights[name].flatten()
        for own, names in {
            "a_log": ("A_log", "forget_gate.A_log"),
            "dt_bias": ("dt_bias", "forget_gate.dt_bias"),
        }.items()
        for name in names
        if name in weights
    }


def take_projections(weights, names):
    return {f"{own}.weight": weights[f"{name}.weight"] for own, name in names.items()}


def make_olmo():
    config = OlmoHybridConfig(
        hidden_size=DIM,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=2,
        linear_num_key_heads=2,
        linear_key_head_dim=6,
        linear_value_head_dim=8,
    )
    layer = OlmoHybridGatedDeltaNet(config, 0)
    options = {"key_dim": 6, "value_dim": 8, "negative_eigenvalues": True, "output_norm_eps": 1e-5}
    return config, layer, make_mixer("gated_delta", DIMS, **options)


def take_olmo(weights):
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "beta": "b_proj"}
    names |= {"decay": "a_proj", "gate": "g_proj", "out": "o_proj"}
    return take_projections(weights, names) | take_common(weights, "o_norm")


def make_kimi():
    config = KimiLinearConfig(
        hidden_size=DIM,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        linear_num_heads=2,
        linear_head_dim=20,
        rms_norm_eps=1e-6,
    )
    options = {"key_dim": 20, "decay": "channel", "gate_rank": 20}
    return config, KimiLinearDeltaAttention(config, 0), make_mixer("gated_delta", DIMS, **options)


def take_kimi(weights):
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "beta": "b_proj"}
    names |= {"decay_down": "forget_gate.f_a_proj", "decay_up": "forget_gate.f_b_proj"}
    names |= {"gate_down": "g_a_proj", "gate_up": "g_b_proj", "out": "o_proj"}
    return take_projections(weights, names) | take_common(weights, "o_norm")


def make_lfm2():
    config = Lfm2Config(
        hidden_size=DIM, num_hidden_layers=2, layer_types=["conv", "full_attention"]
    )
    return config, Lfm2ShortConv(config, 0), make_mixer("short_conv", DIMS)


def take_lfm2(weights):
    names = {name: name for name in ("in_proj", "conv", "out_proj")}
    return take_projections(weights, names)


LAYERS = {
    "qwen3_next": (make_qwen, take_qwen),
    "olmo_hybrid": (make_olmo, take_olmo),
    "kimi_linear": (make_kimi, take_kimi),
    "lfm2": (make_lfm2, take_lfm2),
}


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_are_those_of_transformers(name):
    make, take = LAYERS[name]
    config, layer, mixer = make()
    torch.manual_seed(3)
    for key, parameter in layer.named_parameters():
        # norm weights and rates are moved off their initial values too
        parameter.normal_(std=0.5)
        if key.endswith(("norm.weight", "dt_bias")):
            parameter.add_(1.0)
    mixer.load_state_dict(take(dict(layer.named_parameters())))
    x = make_states(count=150, dim=DIM).float()

    expected = layer.eval()(x)
    tolerance = {"atol": 1e-5 * float(expected.abs().max()), "rtol": 1e-5}
    torch.testing.assert_close(run(mixer, x), expected, **tolerance)

    theirs, ours, start = DynamicCache(config=config), KeyValueCache(), 0
    for count in (7, 8, 1, 1, 1, 70):
        part = x[:, start : start + count]
        start += count
        step = layer(part, cache=theirs)
        torch.testing.assert_close(run(mixer, part, context=ours), step, **tolerance)

    packed = torch.tensor([[0] * 70 + [1] * 3 + [2] * 77] * 2)
    alone = torch.cat([layer(part) for part in x.split([70, 3, 77], 1)], 1)
    torch.testing.assert_close(run(mixer, x, packed), alone, **tolerance)
