"""TAPE: q and k rotate by frames, at first RoPE's, which each layer changes by what it attends to."""

from __future__ import annotations

import pytest
import torch
from calls import (
    BATCH,
    QUERIES,
    TOKENS,
    assert_close,
    check_attention,
    draw_positions,
    make_call,
    make_dims,
    move_parameters,
)
from literal.rope import list_frequencies, score_rope
from literal.tape import tape
from panels import list_panels
from parameters import HEADS, WIDTH, check_normal, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.encodings.tape import TAPE

RANKS = 4 * HEADS


def make_layers(count, cls=TAPE):
    """Make layers, and a chain for each.

    States will be a thousand times larger than keys want, so that the eps of the norm does not count.
    """
    chains = [
        Chain.of(move_parameters(cls(make_dims(2, 8, layer, count)), 0.2)) for layer in range(count)
    ]
    layers = [move_parameters(SelfAttention(chain.dims, causal=True), 0) for chain in chains]
    for layer in layers:
        layer.q_proj.weight /= 1000
        layer.k_proj.weight /= 1000
    return layers, chains


def check_layers(count, cls=TAPE):
    layers, chains = make_layers(count, cls)
    x, pos = 1000 * torch.randn(BATCH, TOKENS, 16, dtype=torch.float64), draw_positions()
    tokens = chains[0].embed(Tokens.at(x, pos[:, None]))
    for layer, chain in zip(layers, chains, strict=True):
        after, extra = layer(tokens, chain, Context())
        after = after.replace(x=tokens.x + after.x)
        tokens = after if extra is None else chain.after_attention(after, extra)
    links = [next(iter(chain)) for chain in chains]
    assert_close(tokens.x, torch.stack([tape(layers, links, one, pos) for one in x]))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_formula_carries_frames_from_layer_to_layer(count):
    check_layers(count)


@QUERIES
def test_formula_of_the_first_layer_is_that_of_rope(queries):
    encoding = move_parameters(zoo.encoding("tape", make_dims(depth=2)))
    call = make_call(queries=queries, pos=draw_positions(real=True))
    check_attention(encoding, call, score_rope(call, list_frequencies(8)))


def test_facts():
    assert list_facts("tape") == {"shared": False, "shift_invariant": True, "causal_only": True}


def test_parameters():
    assert list_shapes(make_initial("tape")) == {
        "mix.weight": (HEADS, HEADS),
        "read.weight": (RANKS, WIDTH),
        "into.weight": (RANKS, HEADS),
        "out.weight": (HEADS, RANKS),
    }


def test_parameters_of_the_last_layer_are_none():
    assert list(make_initial("tape", layer=1).parameters()) == []
    unknown = zoo.encoding("tape", Dims(WIDTH, HEADS, layer=1))  # of an unknown depth
    assert len(list(unknown.parameters())) == 4


def test_initial_values():
    encoding = make_initial("tape")
    check_normal(encoding.read.weight, 0.02)
    check_normal(encoding.out.weight, 0.02)
    assert (encoding.mix.weight == 0).all()
    assert (encoding.into.weight == 0).all()


def test_panel_shows_that_no_layer_has_changed_the_first_frames():
    marks = list_panels("tape")["Frame change"].groups
    assert all(values.abs().max() == 0 for _, values in marks.values())


class Ungated(TAPE):
    """The state before the norm opens the gates."""

    def after_attention(self, tokens, extra):
        return super().after_attention(tokens.replace(x=tokens.x.sign()), extra)


class Forgetful(TAPE):
    """Frames that are those of the last layer's attention only."""

    def after_attention(self, tokens, extra):
        frames = tokens.per_token["frames"]
        return super().after_attention(tokens.with_per_token(frames=0 * frames), extra)


@pytest.mark.parametrize("fault", [Ungated, Forgetful])
def test_planted_fault(fault):
    with pytest.raises(AssertionError, match="not close"):
        check_layers(2, fault)
