"""Query heads that share key heads: who shares whose, what is remembered, and who refuses."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.attention.chain import Chain
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context, LayerOptions, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

DIMS, ALONE = zoo.Dims(32, 4, kv_heads=2), zoo.Dims(32, 4)
POS = torch.arange(9.0).double()[:, None]
WHOSE = [0, 0, 1, 1]  # the key head of each query head
FULL = LayerOptions(
    qk_norm=True, output_norm=True, output_gate=True, token_shift=True, key_bias=True
)


def heads(*counts):
    return [torch.randn(2, count, 9, 8, dtype=torch.float64) for count in counts]


def near(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def layer(name, options=FULL, dims=DIMS):
    chain = Chain.of(zoo.encoding(name, dims)).double()
    return SelfAttention(dims, options, causal=True).double(), chain


def run(parts, x, context, *counts):
    attention, chain = parts
    pieces = zip(x.split(counts, 1), POS.split(counts), strict=True)
    out = [
        attention(chain.embed(Tokens.at(*piece, ordered=True)), chain, context)[0].x
        for piece in pieces
    ]
    return torch.cat(out, 1)


@pytest.mark.parametrize("name", ["none", "rope", "alibi"])
def test_neighbouring_query_heads_share_a_key_head(name):
    q, k, v = heads(4, 2, 2)
    shared, alone = zoo.encoding(name, DIMS), zoo.encoding(name, ALONE)
    for backend in ("reference", "sdpa", "flex"):
        own = zoo.functional.attend(alone, q, k[:, WHOSE], v[:, WHOSE], POS, causal=True)
        near(zoo.functional.attend(shared, q, k, v, POS, causal=True, backend=backend), own)
    near(
        zoo.functional.weights(shared, q, k, POS),
        zoo.functional.weights(alone, q, k[:, WHOSE], POS),
    )


def test_query_heads_turn_as_the_key_head_that_they_share():
    shared, alone = (zoo.encoding("rope_mixed", dims).double() for dims in (DIMS, ALONE))
    alone.frequencies.data = shared.frequencies.data[:, WHOSE]
    q, k = heads(4, 2)
    near(
        zoo.functional.scores(shared, q, k, POS), zoo.functional.scores(alone, q, k[:, WHOSE], POS)
    )


def test_keys_with_other_heads_than_said_are_refused():
    q, k = heads(4, 2)
    with pytest.raises(OptionError, match=r"keys have 2 heads, the encoding 4 \(Dims.kv_heads\)"):
        zoo.functional.scores(zoo.encoding("none", ALONE), q, k, POS)


def test_keys_and_values_have_the_heads_of_the_groups():
    attention, _ = layer("none")
    shapes = {name: tuple(parameter.shape) for name, parameter in attention.named_parameters()}
    assert shapes["q_proj.weight"] == shapes["o_proj.weight"] == (32, 32)
    assert shapes["k_proj.weight"] == shapes["v_proj.weight"] == (16, 32)
    assert shapes["k_proj.bias"] == shapes["v_proj.bias"] == (16,)
    assert shapes["token_shift.weight"] == (4, 32)


@pytest.mark.parametrize("name", ["rope_mixed", "fox", "transformer_xl"])
def test_shared_heads_are_remembered(name):
    parts, x = layer(name), torch.randn(2, 9, 32).double()
    whole = run(parts, x, Context(), 9)
    near(run(parts, x, KeyValueCache(), *[1] * 9), whole)
    near(run(parts, x, KeyValueCache(), 4, 1, 4), whole)
    near(run(parts, x, SegmentMemory(9), 5, 4), whole)


def test_a_cache_is_smaller_by_the_heads_that_are_shared():
    sizes = []
    for dims in (ALONE, DIMS, zoo.Dims(32, 4, kv_heads=1)):
        cache = KeyValueCache()
        run(layer("rope", dims=dims), torch.randn(2, 9, 32).double(), cache, 6, 3)
        k, v = cache._layers[0].k.rows, cache._layers[0].v.rows
        last, _ = cache._last[0]
        sizes.append((k.numel(), v.numel(), last.numel()))
    assert [tuple(4 * size for size in sizes[2]), tuple(2 * size for size in sizes[1])] == [
        sizes[0]
    ] * 2


def test_frames_of_query_heads_cannot_be_shared():
    with pytest.raises(
        OptionError,
        match=r"tape: it mixes frames .*4 heads cannot share 2 keys; leave kv_heads out",
    ):
        zoo.encoding("tape", DIMS)
    zoo.encoding("tape", zoo.Dims(32, 4, kv_heads=4))


def test_a_layer_for_peoples_own_models_shares_too():
    made = zoo.Attention(DIMS, ["rope", "fox"], causal=True)
    assert made.layer.k_proj.weight.shape == (16, 32)
    assert made(torch.randn(2, 9, 32)).shape == (2, 9, 32)
