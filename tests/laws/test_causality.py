"""Faults of order, documents and caches that the laws of `zoo.laws.causality` catch."""

from __future__ import annotations

import pytest
import torch
from faults import check_fault_is_caught, make_case
from torch import Tensor

from zoo.attention.call import AttentionCall
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens, pick
from zoo.encodings.rope import RoPE
from zoo.laws import LawBroken, causality


class LookingAhead(Encoding):
    """A rescoring that reads all keys."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.replace(
            transform_scores=lambda scores, visible, span: scores * scores.mean(-1, keepdim=True)
        )


class NextToken(Encoding):
    """A bias that reads the key after the query."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        def ahead(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (
                call.k[b, h, (call.key_index(i) + 1).clamp(max=call.k.shape[2] - 1), 0]
                * call.offset(b, i, j)[..., 0]
            )

        return call.add_bias(ahead)


class TouchedAgain(Encoding):
    """Keys that are changed where they lie, in the cache."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        call.k.mul_(1.1)
        return call


class TopLeft(Encoding):
    """Distance in slots, as if the queries were the first tokens."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: -(i - j).abs() * 0.1)


class Counted(Encoding):
    """A bias of how many tokens came in this pass."""

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens.with_per_token(slot=torch.arange(len(tokens), dtype=tokens.pos.dtype)[None])

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: pick(call.keys.per_token["slot"], b, j))


class NumberedFromHere(Encoding):
    """Tokens of documents, numbered from the start of a pass."""

    def embed(self, tokens: Tokens) -> Tokens:
        count = torch.arange(tokens.x.shape[1], dtype=tokens.x.dtype)[:, None]
        return tokens if tokens.document is None else tokens.replace(x=tokens.x + count)


class OfTheWhole(Encoding):
    """Positions as fractions of the run."""

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + tokens.pos / len(tokens))


class BySlot(Encoding):
    """Keys are counted from the first that is there."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: (j + 0 * i).sin())


FAULTS = [
    (causality.future_tokens_change_nothing, LookingAhead),
    (causality.future_tokens_change_nothing, NextToken),
    (causality.decoding_equals_one_pass, TouchedAgain),
    (causality.decoding_equals_one_pass, TopLeft),
    (causality.decoding_equals_one_pass, Counted),
    (causality.documents_decode_as_in_one_pass, NumberedFromHere),
    (causality.a_longer_run_begins_the_same, OfTheWhole),
    (causality.full_memory_equals_one_pass, Counted),
    (causality.what_left_the_window_is_not_needed, BySlot),
]


@pytest.mark.parametrize(
    ("law", "fault"), [pytest.param(*one, id=f"{one[0].name}-{one[1].__name__}") for one in FAULTS]
)
def test_a_planted_fault_is_caught(law, fault):
    check_fault_is_caught(law, fault)


def test_a_mask_aligned_top_left_is_caught(monkeypatch):
    monkeypatch.setattr(AttentionCall, "key_index", lambda call, i: i)
    with pytest.raises(LawBroken):
        causality.decoding_equals_one_pass(make_case(RoPE))
