"""Key offset: the last channels of k_j are those of k_(j-1), after rotations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calls import (
    DOCUMENTS,
    TOKENS,
    assert_close,
    check_attention,
    check_cached_decoding,
    check_documents,
    check_future_changes_nothing,
    check_reference_catches,
    compute_scores,
    make_call,
    make_encoding,
)
from literal.key_offset import key_offset
from literal.rope import list_frequencies, rotate_heads
from parameters import list_facts, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.key_offset import KeyOffset
from zoo.errors import OptionError

CASES = pytest.mark.parametrize(
    ("fraction", "first"),
    [(0.5, "zero"), (0.5, "own"), (0.25, "zero"), (1.0, "own"), (0.0, "zero")],
)


@pytest.mark.parametrize("queries", [TOKENS, 3, 1])
@CASES
def test_formula(fraction, first, queries):
    encoding = make_encoding("key_offset", fraction=fraction, first=first)
    call = make_call(queries=queries)
    check_attention(encoding, call, key_offset(call, fraction, first))


def test_formula_by_default():
    call = make_call()
    check_attention(make_encoding("key_offset"), call, key_offset(call, 0.5, "zero"))


@pytest.mark.parametrize("names", [["rope", "key_offset"], ["key_offset", "rope"]])
def test_formula_after_rotations(names):
    call = make_call()
    q, k = (rotate_heads(one, call.pos, list_frequencies(8)) for one in (call.q, call.k))
    check_attention(make_encoding(names), call, key_offset(replace(call, q=q, k=k)))


@CASES
def test_formula_with_tokens_without_a_position(fraction, first):
    placed = [False, True, True, False, False, True, True]
    call = make_call()
    encoding = make_encoding("key_offset", fraction=fraction, first=first)
    expected = key_offset(call, fraction, first, placed=placed)
    found = compute_scores(encoding, call, has_position=torch.tensor(placed))
    assert_close(found, expected)


@pytest.mark.parametrize("first", ["zero", "own"])
def test_formula_in_packed_documents(first):
    names = [{"name": "key_offset", "first": first}]
    check_documents(
        names, lambda _, call: key_offset(call, first=first, documents=DOCUMENTS.tolist())
    )


@pytest.mark.parametrize("first", ["zero", "own"])
def test_formula_passes_over_padding_inside_a_document(first):
    document = [0, 0, -1, -1, 0, 1, 1]
    call = make_call()
    same = torch.tensor([[a == b and a >= 0 for b in document] for a in document])
    real = torch.tensor(document) >= 0
    expected = key_offset(
        replace(call, visible=same.tril()), first=first, documents=document, placed=real.tolist()
    )
    found = compute_scores(
        make_encoding("key_offset", first=first), call, document=torch.tensor(document)
    )
    assert_close(found[:, :, real], expected[:, :, real])


def test_a_query_that_matches_a_token_attends_to_the_next_one():
    """An induction head of one layer: after "a b .. a", the second a finds b."""
    units = torch.eye(4, dtype=torch.float64)
    k = torch.cat([torch.zeros(5, 4), units[[0, 1, 2, 3, 0]]], dim=-1)[None, None].double()
    q = torch.cat([torch.zeros(5, 4), 9 * units[[0, 1, 2, 3, 0]]], dim=-1)[None, None].double()
    encoding = zoo.encoding("key_offset", Dims(8, 1)).double()
    pos = torch.arange(5.0)[:, None]
    weights = zoo.functional.weights(encoding, q, k, pos, causal=True)
    assert int(weights[0, 0, -1].argmax()) == 1


def test_facts():
    assert list_facts("key_offset") == {
        "shift_invariant": True,
        "causal_only": True,
        "handles_special_tokens": True,
        "reads_keys": True,
    }
    assert KeyOffset.lookback == 1
    assert not KeyOffset.reads_positions


def test_parameters():
    assert make_initial("key_offset").state_dict() == {}


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("key_offset")
    check_cached_decoding("key_offset", first="own", fraction=0.25)


def test_future_changes_nothing():
    check_future_changes_nothing("key_offset")


def test_a_part_of_a_channel_is_refused():
    with pytest.raises(OptionError, match="of the head dim 8 is not an integer number"):
        zoo.encoding("key_offset", Dims(16, 2), fraction=0.3)


def test_wider_heads_are_refused():
    layer = zoo.Attention(Dims(16, 2), ["pope", "key_offset"], causal=True)
    with pytest.raises(OptionError, match="an encoding before it has made heads wider"):
        layer(torch.randn(1, 4, 16))


def test_updated_keys_are_refused():
    layer = zoo.Attention(Dims(16, 2), ["path", "key_offset"], causal=True)
    with pytest.raises(OptionError, match="key_offset reads or changes keys, which path updates"):
        layer(torch.randn(1, 4, 16))


class FirstChannels(KeyOffset):
    """The first channels move, not the last ones."""

    def modify(self, call):
        moved = super().modify(call.replace(k=call.k.flip(-1)))
        return call.replace(k=moved.k.flip(-1))


def test_planted_fault():
    check_reference_catches(
        FirstChannels, lambda encoding, call: key_offset(call, 0.25), options={"fraction": 0.25}
    )
