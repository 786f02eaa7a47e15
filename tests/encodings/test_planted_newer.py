"""Faults that angles and biases which tokens add up are prone to: a law catches each, or a reference."""

from __future__ import annotations

import literal_newer as newer
import pytest
import torch
from calls import agree, called, dims, moved

import zoo
from zoo.encodings.carope import CARoPE
from zoo.encodings.common.rotation import circle, turn
from zoo.encodings.grape_ap import GRAPEAP
from zoo.encodings.pope import PoPE
from zoo.encodings.selective_rope import SelectiveRoPE
from zoo.errors import Invalid
from zoo.laws import Broken, Member, causality, gradients, packing


class TurnedBeforeTheCache(CARoPE):
    """Sums over the tokens of one pass alone."""

    def turned(self, x, tokens):
        return turn(x, circle(self.steps(tokens).cumsum(1).transpose(1, 2)))

    def turn_query(self, q, tokens):
        return self.turned(q, tokens)

    def turn_key(self, k, tokens):
        return self.turned(k, tokens)

    def terms(self, terms):
        return terms


class FirstRows(CARoPE):
    """Queries that are taken for the first tokens of all."""

    def terms(self, terms):
        rows = circle(self.steps(terms.keys).cumsum(1).transpose(1, 2))
        return super().terms(terms).replace(q=turn(terms.q, rows[:, :, : terms.q.shape[2]]))


class StepsAcrossDocuments(SelectiveRoPE):
    """A convolution that does not stop at the border of a document."""

    def steps(self, tokens):
        return super().steps(tokens.replace(document=None))


class EdgesOfOthers(GRAPEAP):
    """Edges that belong to the tokens before."""

    def terms(self, terms):
        keys = terms.keys
        return super().terms(terms.replace(keys=keys.note(path=keys.notes["path"].roll(1, dims=1))))


class WideScale(PoPE):
    """Scores divided by the root of what heads became."""

    def terms(self, terms):
        return terms.replace(scale=terms.q.shape[-1] ** -0.5)


class PhaseOfBoth(PoPE):
    """A phase for queries as well, which cancels that of keys."""

    def turn_query(self, q, tokens):
        return self.turn_key(q, tokens)


FAULTS = [
    (causality.decoding_equals_one_pass, TurnedBeforeTheCache),
    (causality.full_memory_equals_one_pass, TurnedBeforeTheCache),
    (causality.decoding_equals_one_pass, FirstRows),
    (packing.packed_documents_are_apart, StepsAcrossDocuments),
    (gradients.every_parameter_learns, PhaseOfBoth),
]


@pytest.mark.parametrize(
    ("law", "fault"), [pytest.param(*one, id=f"{one[0].name}-{one[1].__name__}") for one in FAULTS]
)
def test_a_planted_fault_is_caught(law, fault):
    with pytest.raises(Broken):
        law(Member(fault.__name__, 1, fault))


@pytest.mark.parametrize(
    ("reference", "fault"), [(newer.grape_ap, EdgesOfOthers), (newer.pope, WideScale)]
)
def test_a_reference_catches_it(reference, fault):
    encoding, call = moved(fault(dims())), called()
    with pytest.raises(AssertionError, match="not close"):
        agree(encoding, call, reference(encoding, call))


@pytest.mark.parametrize("name", ["selective_rope", "carope", "grape_m_contextual"])
def test_heads_that_were_made_wider_are_not_turned_by_half(name):
    layer = zoo.Attention(dims(2), ["pope", name], causal=True)
    with pytest.raises(
        Invalid, match=f"{name} turns pairs of channels, and a link before it has made heads wider"
    ):
        layer(torch.randn(1, 4, 16))
