"""SSMax: q_i.k_j / sqrt(K) * scale_h log n_i, without the biases of other encodings."""

from __future__ import annotations

import math

import pytest
import torch
from calls import (
    DOCUMENTS,
    QUERIES,
    TOKENS,
    assert_close,
    check_attention,
    check_cached_decoding,
    check_documents,
    check_future_changes_nothing,
    check_reference_catches,
    compute_scores,
    make_call,
    make_dims,
    make_encoding,
)
from literal.ssmax import ssmax
from parameters import HEADS, check_everything_learns, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.backends.reference import attention_mask
from zoo.attention.call import AttentionCall
from zoo.attention.tokens import Tokens
from zoo.encodings.common import visible_keys
from zoo.encodings.common.visible_keys import count_visible_keys
from zoo.encodings.ssmax import SSMax
from zoo.errors import OptionError

M = 9


@QUERIES
@pytest.mark.parametrize("causal", [True, False])
def test_formula(causal, queries):
    encoding, call = make_encoding("ssmax"), make_call(queries=queries, causal=causal)
    check_attention(encoding, call, ssmax(encoding, call), causal)


@pytest.mark.parametrize(
    "names", [["alibi"], ["kerple"], ["t5"], ["shaw"], ["tupe"], ["fox"]], ids=" ".join
)
def test_biases_are_not_multiplied_wherever_they_stand(names):
    """What is left of the scores without the products of queries and keys is the same."""
    call = make_call()
    for links in ([*names, "ssmax"], ["ssmax", *names]):
        chain = make_encoding(links)
        with torch.no_grad():
            counts = torch.arange(1.0, TOKENS + 1).double().log()[:, None]
            factors = chain.ssmax.scale[:, None, None] * counts
        other = zoo.attention.chain.Chain(
            chain.dims, {name: one for name, one in chain.named_children() if name != "ssmax"}
        )
        root = 2**-0.5 if "tupe" in names else 1  # it shares the variance with its own part
        products = (call.q @ call.k.mT) / math.sqrt(call.q.shape[-1]) * root
        expected = compute_scores(other, call) + products * (factors - 1)
        assert_close(compute_scores(chain, call), expected)


@pytest.mark.parametrize(
    "names", [["rope", "ssmax"], ["ssmax", "rope"], ["ssmax", "path"]], ids=" ".join
)
def test_rotations_are_multiplied(names):
    chain, call = make_encoding(names), make_call()
    counts = torch.arange(1.0, TOKENS + 1).double().log()[:, None]
    factors = chain.ssmax.scale[:, None, None] * counts
    other = zoo.attention.chain.Chain(
        chain.dims, {name: one for name, one in chain.named_children() if name != "ssmax"}
    )
    plain = compute_scores(other, call)
    expected = torch.where(plain.isinf(), plain, plain * factors)
    assert_close(compute_scores(chain, call), expected)


def test_what_has_multiplied_keys_cannot_come_before():
    with pytest.raises(OptionError, match="path, before it, has multiplied; list it first"):
        compute_scores(make_encoding(["path", "ssmax"]), make_call())


def test_documents_count_for_themselves():
    check_documents("ssmax", ssmax)


def test_decoding_equals_one_pass():
    check_cached_decoding("ssmax")


def test_future_changes_nothing():
    check_future_changes_nothing("ssmax")


PLACED = torch.arange(M) % 4 > 0
MASK = torch.rand(2, 1, M, M) > 0.4


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3, M])
@pytest.mark.parametrize("queries", [M, 4, 1, "chosen"])
def test_keys_are_counted_as_the_mask_has_them(queries, window, causal, monkeypatch):
    monkeypatch.setattr(visible_keys, "CHUNK_PAIRS", 2 * 2 * M)  # two rows at once
    document = torch.tensor([[0, 0, 0, 1, 1, -1, 1, 2, -1], [0] * M])
    chosen = torch.tensor([7, 2, 3]) if queries == "chosen" else None
    for facts in ({}, {"has_position": PLACED}, {"document": document}, {"mask": MASK}):
        mask = facts.pop("mask", None)
        keys = Tokens.at(torch.zeros(2, M, 0), torch.arange(float(M))[:, None], **facts)
        heads = torch.zeros(2, 2, M, 8)
        if chosen is not None:
            q, own = heads[:, :, chosen], keys.select(chosen)
            mask = None if mask is None else mask[:, :, chosen]
        else:
            q, own = heads[:, :, -queries:], keys.last(queries)
            mask = None if mask is None else mask[:, :, -queries:]
        call = AttentionCall(q, heads, heads, q, own, keys, causal, 1.0)
        call = call.replace(window=window, mask=mask, query_index=chosen)
        assert torch.equal(
            count_visible_keys(call).expand(2, 1, -1), attention_mask(call).sum(-1).expand(2, 1, -1)
        )


def test_facts():
    assert list_facts("ssmax") == {
        "shared": False,
        "shift_invariant": True,
        "axes": (1, 2, 3),
        "handles_special_tokens": True,
    }


def test_parameters():
    assert list_shapes(make_initial("ssmax")) == {"scale": (HEADS,)}


def test_initial_values():
    encoding = make_initial("ssmax")
    assert torch.equal(encoding.scale, torch.full((HEADS,), 0.43))
    check_everything_learns(encoding)
    assert encoding.scale.grad.all()


def test_padding_is_finite():
    attention = zoo.Attention(make_dims(), "ssmax", causal=True).double()
    x = torch.randn(2, 7, 32).double().requires_grad_()
    out = attention(x, document=DOCUMENTS)
    out.sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


class OfAllKeys(SSMax):
    """It counts all keys, also those that the query does not see."""

    def modify(self, call):
        return super().modify(call.replace(causal=False)).replace(causal=call.causal)


def test_planted_fault():
    check_reference_catches(OfAllKeys, ssmax)
