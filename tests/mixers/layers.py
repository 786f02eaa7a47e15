"""Mixers as layers of their own: made lively in float64, run on states, compared with a loop."""

from __future__ import annotations

import torch
from loops.gated_delta import gated_delta
from loops.linear import linear
from loops.short_conv import short_conv
from loops.template import fade

import zoo
from zoo import registry
from zoo.attention.chain import Chain
from zoo.attention.layer import Context
from zoo.attention.tokens import Tokens
from zoo.cli.new import MIXER

TEMPLATE = "the template of zoo new"
DIMS = zoo.Dims(12, 2, depth=2)
# by name of a case: the mixer, its options, and its loop over the tokens of one document
CASES = {
    "short_conv": ("short_conv", {}, short_conv),
    "short_conv of one token": (
        "short_conv",
        {"width": 1},
        lambda *given: short_conv(*given, width=1),
    ),
    "short_conv of five": ("short_conv", {"width": 5}, lambda *given: short_conv(*given, width=5)),
    "gated_delta": ("gated_delta", {}, lambda *given: gated_delta(*given, heads=2)),
    "by channel": (
        "gated_delta",
        {"decay": "channel"},
        lambda *given: gated_delta(*given, heads=2, decay="channel"),
    ),
    "value heads": (
        "gated_delta",
        {"heads": 2, "value_heads": 6, "key_dim": 5, "value_dim": 3, "gate": "sigmoid"},
        lambda *given: gated_delta(*given, heads=2, gate="sigmoid"),
    ),
    "value heads by channel": (
        "gated_delta",
        {"heads": 3, "value_heads": 6, "key_dim": 20, "decay": "channel", "gate": None},
        lambda *given: gated_delta(*given, heads=3, decay="channel", gate=None),
    ),
    "doubled, without convolution": (
        "gated_delta",
        {
            "negative_eigenvalues": True,
            "conv": 0,
            "gate_rank": 2,
            "norm_eps": 1e-3,
            "output_norm_eps": 1e-2,
        },
        lambda *given: gated_delta(
            *given, heads=2, conv=0, doubled=True, eps=1e-3, output_eps=1e-2
        ),
    ),
    "no gate": (
        "gated_delta",
        {"gate": None, "conv": 2},
        lambda *given: gated_delta(*given, heads=2, conv=2, gate=None),
    ),
    "linear": ("linear", {}, lambda *given: linear(*given, heads=2)),
    TEMPLATE: (TEMPLATE, {}, fade),
}


def find_class(name):
    if name != TEMPLATE:
        return registry.find("mixers", name)
    names = {"__name__": "template"}
    exec(MIXER.format(title="Template"), names)
    return names["Template"]


def make_mixer(name, dims=DIMS, seed=0, **options):
    torch.manual_seed(seed)
    return find_class(name)(dims, **options)


def make_lively(case):
    """Return the mixer of a case in float64, with weights that make every part of it count."""
    name, options, _ = CASES[case]
    mixer = make_mixer(name, **options).double()
    for key, parameter in mixer.named_parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.6)
        elif key != "a_log":
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
        else:
            parameter.data.uniform_(-3, 1)
    return mixer.eval()


def run(mixer, x, documents=None, context=None):
    """Return the outputs of a mixer for states [B, N, D]."""
    pos = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
    tokens = Tokens.at(x, pos, document=documents, ordered=True)
    return mixer(tokens, Chain(mixer.dims, {}), context or Context()).x


def make_states(rows=2, count=150, dim=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, count, dim, generator=generator, dtype=torch.float64)


def near(actual, expected, tolerance=1e-9):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
