"""Rotary positions of every kind, and frames, against literal transcriptions of their formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from calls import BATCH, QUERIES, SEEN, TOKENS, agree, called, dims, made, moved, near, spots
from literal import biases as literal
from literal import rope_tape as rotations

import zoo
from zoo.attention.chain import Chain
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.tokens import Tokens


def rope(call, frequencies):
    q = rotations.each_turned(call.q, call.pos[call.shift :], frequencies)
    k = rotations.each_turned(call.k, call.pos, frequencies)
    turned = replace(call, q=q, k=k)
    return literal.all_pairs(turned, literal.product_of(turned))


# fractions and stretches

RULES = {
    "linear": ({"rule": "linear", "factor": 4.0}, rotations.linear),
    "ntk": ({"rule": "ntk", "factor": 4.0}, rotations.ntk),
    "yarn": ({"rule": "yarn", "factor": 8.0, "original": 4096}, rotations.yarn),
    "yarn_clipped": ({"rule": "yarn", "factor": 8.0, "original": 64}, rotations.yarn),
    "llama3": ({"rule": "llama3", "factor": 8.0, "original": 64}, rotations.llama3),
}


@SEEN
@QUERIES
@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_rope_of_a_fraction(fraction, queries, causal):
    encoding = made("rope", head=16, rotary_fraction=fraction)
    call = called(head=16, queries=queries, causal=causal, pos=spots(real=True))
    agree(encoding, call, rope(call, rotations.plain(int(16 * fraction))), causal)


@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("case", RULES)
def test_rope_stretched(case, fraction, base):
    scaling, rule = RULES[case]
    encoding = made("rope", heads=2, head=32, rotary_fraction=fraction, base=base, scaling=scaling)
    call = called(2, 32, pos=20 * spots(real=True))
    rest = {key: value for key, value in scaling.items() if key != "rule"}
    agree(encoding, call, rope(call, rule(int(32 * fraction), base=base, **rest)))


def test_the_rules_blend_pairs():
    """Each kind of pair occurs, so that the tests above tell the rules apart."""
    plain = rotations.plain(32)[0]
    for waves in (rotations.yarn(32, 8.0, 4096)[0], rotations.llama3(32, 8.0, 64)[0]):
        ratios = [w / p for w, p in zip(waves, plain, strict=True)]
        assert ratios[0] == 1
        assert math.isclose(ratios[-1], 1 / 8)
        assert any(0.15 < ratio < 0.95 for ratio in ratios)


def test_ntk_divides_the_slowest_pair_by_the_factor_and_keeps_the_first():
    slow, plain = rotations.ntk(32, 4.0)[0], rotations.plain(32)[0]
    assert slow[0] == plain[0]
    assert math.isclose(slow[-1], plain[-1] / 4)


# frames


def stacked(count):
    """Layers, and a chain for each. States are a thousand times larger than keys want: the norm's eps must not count."""
    chains = [
        Chain.of(moved(zoo.encoding("tape", dims(2, 8, layer, count)), 0.2))
        for layer in range(count)
    ]
    layers = [moved(SelfAttention(chain.dims, causal=True), 0) for chain in chains]
    for layer in layers:
        layer.q_proj.weight /= 1000
        layer.k_proj.weight /= 1000
    return layers, chains


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tape_carries_frames_from_layer_to_layer(count):
    layers, chains = stacked(count)
    x, pos = 1000 * torch.randn(BATCH, TOKENS, 16, dtype=torch.float64), spots()
    tokens = chains[0].embed(Tokens.at(x, pos[:, None]))
    for layer, chain in zip(layers, chains, strict=True):
        after, extra = layer(tokens, chain, Context())
        after = after.replace(x=tokens.x + after.x)
        tokens = after if extra is None else chain.after_attention(after, extra)
    links = [next(iter(chain)) for chain in chains]
    near(tokens.x, torch.stack([rotations.tape(layers, links, one, pos) for one in x]))


@QUERIES
def test_a_layer_of_tape_turns_as_rope_does(queries):
    encoding = moved(zoo.encoding("tape", dims(depth=2)))
    call = called(queries=queries, pos=spots(real=True))
    agree(encoding, call, rope(call, rotations.plain(8)))
