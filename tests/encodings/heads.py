"""Heads of queries: those that share a key head, are made wider, or stand for a bias."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calls import (
    assert_close,
    compute_scores,
    draw_positions,
    make_call,
    make_dims,
    make_encoding,
    move_parameters,
)

import zoo
from zoo.attention.call import AttentionCall
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError


def check_shared_key_heads(name):
    """Assert that queries rotate as the key head that they share, whatever heads are beside them."""
    encoding = zoo.encoding(name, Dims(64, 4, length=99, kv_heads=2)).double()
    q = torch.randn(1, 4, 5, 16).double()
    tokens = Tokens.at(torch.zeros(1, 5, 64).double(), draw_positions(tokens=5)[:, None])
    rotated = encoding.transform_query(q, tokens)
    for first in (0, 1):
        alone = encoding.transform_query(q[:, [first, first, first + 2, first + 2]], tokens)
        assert_close(rotated[:, [first, first + 2]], alone[:, [0, 2]])
    return encoding, q, tokens, rotated


def modify_shared(name):
    """Return an encoding of two key heads for four query heads, its call, and the modified call.

    The keys of the call are given as often as queries, so that products need no repetition.
    """
    encoding = move_parameters(zoo.encoding(name, Dims(32, 4, length=16, kv_heads=2)))
    call = make_call()
    tokens = encoding.prepare(Tokens.at(call.x, call.pos[:, None], ordered=True))
    modified = encoding.modify(
        AttentionCall(call.q, call.k, call.v, call.q, tokens, tokens, True, 8**-0.5)
    )
    return encoding, call, modified


def check_width(name):
    """Assert that heads which an encoding before it has made wider are refused, not half rotated."""
    layer = zoo.Attention(make_dims(2), ["pope", name], causal=True)
    message = f"{name} rotates pairs of channels, and an encoding before it has made heads wider"
    with pytest.raises(OptionError, match=message):
        layer(torch.randn(1, 4, 16))


@torch.no_grad()
def compare_content_bias(name):
    """Assert that a bias in place of queries, of `transformer_xl`, is transformed as queries are."""
    chain, call = make_encoding([name, "transformer_xl"]), make_call()
    link, bias = dict(chain.named_children())[name], chain.transformer_xl.content

    def score_bias() -> torch.Tensor:
        heads = bias[:, None].expand_as(call.q)
        return compute_scores(link, replace(call, q=heads))

    whole, added = compute_scores(chain, call), score_bias()
    bias.zero_()
    rest, nothing = compute_scores(chain, call), score_bias()
    visible = call.visible
    assert_close((whole - rest)[:, :, visible], (added - nothing)[:, :, visible])
