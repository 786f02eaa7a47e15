"""Faults that encodings of sequences are prone to: a law catches each, or a reference where every law must let it pass."""

from __future__ import annotations

import pytest
import torch
from calls import called, dims, moved, near, scores
from literal import biases as literal
from torch.nn import functional as F

import zoo
from zoo.attention import AttentionCall, Encoding
from zoo.attention.chain import Chain
from zoo.encodings.alibi import ALiBi
from zoo.encodings.cope import CoPE
from zoo.encodings.stickbreaking import StickBreaking
from zoo.laws import Case, LawBroken, backends, equivariance


def member(cls):
    return Case(cls.__name__, 1, cls)


class GatesAhead(CoPE):
    """Counts that add up the gates of all keys."""

    def modify(self, call):
        z = call.raw_query @ self.table.mT

        def rescore(scores, visible, span):
            counts = scores.sigmoid().flip(-1).cumsum(-1).flip(-1)
            return scores + span.slice_queries(z).gather(-1, counts.long())

        return call.replace(transform_scores=rescore)


class TopLeftStick(StickBreaking):
    """Queries that are taken for the first tokens of all."""

    def modify(self, call):
        return (
            super()
            .modify(call.replace(q=call.q, k=call.k[:, :, : call.q.shape[2]]))
            .replace(k=call.k)
        )


class StickTooLong(StickBreaking):
    """The key itself is left out of what its stick has lost."""

    def modify(self, call):
        def weigh(scores, visible, span):
            seen = visible & call.evaluate(lambda b, h, i, j: j < call.key_index(i), span)
            passed = F.softplus(scores.masked_fill(~seen, 0)) * seen
            return (
                torch.exp(
                    scores.masked_fill(~seen, 0) - (passed.flip(-1).cumsum(-1).flip(-1) - passed)
                )
                * seen
            )

        return super().modify(call).replace(normalize=weigh)


class CountsOfOthers(CoPE):
    """Counts that begin with the row, whatever document that was."""

    def modify(self, call):
        def rescore(scores, visible, span):
            return (
                scores * (1 + 0.1 * scores.sigmoid().cumsum(-1))
                + span.slice_queries(call.raw_query) @ self.table.mT[:, :1]
            )

        return call.replace(transform_scores=rescore)


FAULTS = [
    (equivariance.future_tokens_change_nothing, GatesAhead),
    (equivariance.a_longer_run_begins_the_same, GatesAhead),
    (equivariance.decoding_equals_one_pass, TopLeftStick),
    (backends.weights_are_shares_of_what_is_visible, StickTooLong),
    (equivariance.packed_documents_are_apart, CountsOfOthers),
]


@pytest.mark.parametrize(
    ("law", "fault"), [pytest.param(*one, id=f"{one[0].name}-{one[1].__name__}") for one in FAULTS]
)
def test_a_planted_fault_is_caught(law, fault):
    with pytest.raises(LawBroken):
        law(member(fault))


def test_content_that_is_not_turned_with_the_queries_is_caught(monkeypatch):
    one = Case("rope+transformer_xl", 1, lambda at: zoo.encoding(["rope", "transformer_xl"], at))
    equivariance.shifts_change_nothing(one)
    monkeypatch.setattr(Chain, "transform_query", _unturned_vectors(Chain.transform_query))
    with pytest.raises(LawBroken):
        equivariance.shifts_change_nothing(one)


def _unturned_vectors(transform_query):
    """Vectors that are the same for all tokens are left as they are."""
    return lambda self, q, tokens: q if q.stride(2) == 0 else transform_query(self, q, tokens)


class OneLadder(ALiBi):
    """Slopes 2^(-8h/H) whatever H is."""

    def modify(self, call):
        slopes = 2 ** (-8 * torch.arange(1, self.dims.heads + 1) / self.dims.heads).double()
        return call.add_bias(lambda b, h, i, j: -slopes[h] * call.distance(b, i, j))


class Towards(ALiBi):
    """The sign of distance mistaken: far keys come first."""

    def modify(self, call):
        return call.add_bias(
            lambda b, h, i, j: -ALiBi.modify(self, call.replace(causal=False)).biases[0](b, h, i, j)
        )


@pytest.mark.parametrize(("planted", "heads"), [(OneLadder, 12), (Towards, 4)])
def test_wrong_slopes_are_caught_by_the_reference(planted, heads):
    call = called(heads)
    sound = ALiBi(dims(heads)).double()
    expected = literal.biased(call, literal.alibi(sound))
    near(scores(sound, call), expected)
    with pytest.raises(AssertionError):
        near(scores(planted(dims(heads)).double(), call), expected)


def test_one_ladder_of_slopes_passes_for_a_power_of_two():
    call, one = called(8), OneLadder(dims(8)).double()
    near(scores(one, call), literal.biased(call, literal.alibi(one)))


class OneKeyOn(StickBreaking):
    """A stick that begins at the query itself."""

    def __init__(self, at):
        super().__init__(at, inclusive=True)


def test_a_stick_one_key_too_long_is_caught_by_the_reference():
    call = called()
    expected = literal.stickbreaking(call)[0]
    sound, planted = (moved(cls(dims())) for cls in (StickBreaking, OneKeyOn))
    args = (call.q, call.k, call.pos[:, None])
    near(zoo.weights(sound, *args, causal=True), expected)
    with pytest.raises(AssertionError):
        near(zoo.weights(planted, *args, causal=True), expected)


class Slant(Encoding):
    """A bias that differs between rows only: nothing to a softmax, but not to a stick."""

    name = "slant"

    def modify(self, call: AttentionCall) -> AttentionCall:
        rows = call.queries.pos[:, None]  # [1|B, 1, N, 1]
        return call.add_low_rank_bias(rows, rows.new_ones(1, 1, 1, 1))


def test_a_row_constant_may_be_dropped_only_under_a_softmax():
    call, slant, stick = called(), Slant(dims()), moved(StickBreaking(dims()))
    args = (call.q, call.k, call.v, call.pos[:, None])
    near(
        zoo.attend(slant, *args, causal=True),
        zoo.attend(zoo.encoding("none", dims()), *args, causal=True),
    )
    both = zoo.attend(Chain(dims(), {"slant": slant, "stickbreaking": stick}), *args, causal=True)
    with pytest.raises(AssertionError):
        near(both, zoo.attend(stick, *args, causal=True))
