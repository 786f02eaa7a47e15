"""Measures of states are those of a loop over tokens, and layers with weights have none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from language import decoder, text

from zoo.attention.mixer import make_mixer_factory
from zoo.diagnostics.capture import capture_model, evaluation_mode
from zoo.diagnostics.layer_states import draw_states, hook_states
from zoo.options import Choice


def make_model(**options):
    mixers = {
        "delta": Choice("gated_delta", {"heads": 2, "key_dim": 4, "conv": 0, **options}),
        "conv": Choice("short_conv", {}),
        "linear": Choice("linear", {}),
    }
    types = {name: {"mixer": make_mixer_factory(one)} for name, one in mixers.items()}
    pattern = ["delta", "conv", "linear", "full"]
    return decoder("rope", depth=4, layer_types={**types, "full": {}}, layer_pattern=pattern)


def measure(model, *inputs):
    found = {}
    with hook_states(model, found.__setitem__), evaluation_mode(model):
        model(*inputs)
    return found


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_decay_and_span_are_those_of_equal_steps(decay):
    model = make_model(decay=decay)
    mixer = model.blocks[0].mixer
    torch.nn.init.zeros_((mixer.decay if decay == "head" else mixer.decay_up).weight)
    found = measure(model, text())[0]
    rates = mixer.a_log.exp()[:, None] * F.softplus(mixer.dt_bias).view(2, -1)  # [heads, 1|K]
    torch.testing.assert_close(found["decay of the state"], (-rates).exp().mean(1))
    torch.testing.assert_close(found["span of the state"], (1 / rates).mean(1))


def test_norms_are_those_of_states():
    model, inputs = make_model(), text(1)
    mixer, seen = model.blocks[0].mixer, []
    hook = mixer.register_forward_pre_hook(lambda _, given: seen.append(given[0].x))
    found = measure(model, inputs)
    hook.remove()
    x = seen[0][0].detach()
    state = torch.zeros(2, 4, 4)
    for one in x:
        k, v = (project(one).view(2, 4) for project in (mixer.key, mixer.value))
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        beta = mixer.beta(one).sigmoid()[:, None, None]
        step = mixer.a_log.exp() * F.softplus(mixer.decay(one) + mixer.dt_bias)
        state = state * (-step).exp()[:, None, None]
        error = v - torch.einsum("hkv,hk->hv", state, k)
        state = state + beta * torch.einsum("hk,hv->hkv", k, error)
    expected = state.square().mean((1, 2)).sqrt()
    torch.testing.assert_close(found[0]["norm of the state"], expected, atol=1e-5, rtol=1e-4)


def test_padding_changes_no_measure():
    model, inputs = make_model(), text(1)
    alone = measure(model, inputs[:, 3:9])
    documents = torch.tensor([[-1] * 3 + [0] * 6 + [-1] * 3])
    padded = measure(model, inputs, documents)
    for layer, measures in alone.items():
        for name, values in measures.items():
            torch.testing.assert_close(padded[layer][name], values, atol=1e-6, rtol=1e-5)


def test_only_layers_without_weights_have_measures():
    model, inputs = make_model(), (text(),)
    assert [*measure(model, *inputs)] == [0, 1]
    assert [one.layer for one in capture_model(model, inputs)] == [2, 3]
    panels = draw_states(model, inputs)
    assert [panel.title.split()[0] for panel in panels] == ["Norm", "Decay", "Span"]
    assert panels[0].x_values.tolist() == [0, 1]
    assert draw_states(decoder("rope"), inputs) == ()
