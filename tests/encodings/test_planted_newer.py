"""Faults that angles and biases which tokens add up are prone to: a law catches each, or a reference."""

from __future__ import annotations

import pytest
import torch
from calls import agree, called, dims, moved
from literal import grape_pope_carope as newer

import zoo
from zoo.encodings.carope import CARoPE
from zoo.encodings.common.rotation import cos_sin, rotate_pairs
from zoo.encodings.grape_ap import GRAPEAP
from zoo.encodings.pope import PoPE
from zoo.encodings.selective_rope import SelectiveRoPE
from zoo.errors import OptionError
from zoo.laws import Case, LawBroken, equivariance, gradients


class TurnedBeforeTheCache(CARoPE):
    """Sums over the tokens of one pass alone."""

    def turned(self, x, tokens):
        return rotate_pairs(x, cos_sin(self.token_angles(tokens).cumsum(1).transpose(1, 2)))

    def transform_query(self, q, tokens):
        return self.turned(q, tokens)

    def transform_key(self, k, tokens):
        return self.turned(k, tokens)

    def modify(self, call):
        return call


class FirstRows(CARoPE):
    """Queries that are taken for the first tokens of all."""

    def modify(self, call):
        rows = cos_sin(self.token_angles(call.keys).cumsum(1).transpose(1, 2))
        return super().modify(call).replace(q=rotate_pairs(call.q, rows[:, :, : call.q.shape[2]]))


class StepsAcrossDocuments(SelectiveRoPE):
    """A convolution that does not stop at the border of a document."""

    def token_angles(self, tokens):
        return super().token_angles(tokens.replace(document=None))


class EdgesOfOthers(GRAPEAP):
    """Edges that belong to the tokens before."""

    def modify(self, call):
        keys = call.keys
        return super().modify(
            call.replace(keys=keys.with_per_token(path=keys.per_token["path"].roll(1, dims=1)))
        )


class WideScale(PoPE):
    """Scores divided by the root of what heads became."""

    def modify(self, call):
        return call.replace(scale=call.q.shape[-1] ** -0.5)


class PhaseOfBoth(PoPE):
    """A phase for queries as well, which cancels that of keys."""

    def transform_query(self, q, tokens):
        return self.transform_key(q, tokens)


FAULTS = [
    (equivariance.decoding_equals_one_pass, TurnedBeforeTheCache),
    (equivariance.full_memory_equals_one_pass, TurnedBeforeTheCache),
    (equivariance.decoding_equals_one_pass, FirstRows),
    (equivariance.packed_documents_are_apart, StepsAcrossDocuments),
    (gradients.every_parameter_learns, PhaseOfBoth),
]


@pytest.mark.parametrize(
    ("law", "fault"), [pytest.param(*one, id=f"{one[0].name}-{one[1].__name__}") for one in FAULTS]
)
def test_a_planted_fault_is_caught(law, fault):
    with pytest.raises(LawBroken):
        law(Case(fault.__name__, 1, fault))


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
        OptionError,
        match=f"{name} rotates pairs of channels, and an encoding before it has made heads wider",
    ):
        layer(torch.randn(1, 4, 16))
