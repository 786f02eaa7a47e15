"""Faults of order, shifts, documents and caches that the laws of `zoo.laws.equivariance` catch."""

from __future__ import annotations

import pytest
import torch
from faults import check_fault_is_caught, make_case, name_parameter
from samples import Forget, Slope
from torch import Tensor
from torch.nn import functional as F

from zoo.attention import chain
from zoo.attention.call import AttentionCall
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens, pick
from zoo.encodings.liere import LieRE
from zoo.encodings.rope import RoPE
from zoo.encodings.rope_mixed import RoPEMixed
from zoo.laws import LawBroken, equivariance

# causality and caches


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


# positions


class FlippedKey(RoPE):
    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.rotate(k, *self.compute_rotation(-tokens.pos))


class Noncommuting(LieRE):
    shift_invariant = True


class EndsEarly(RoPE):
    """A table of places that ends, and whose last row is read past that."""

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return super().compute_rotation(pos.clamp(max=64))


class SecretlyRelative(RoPE):
    shift_invariant = False


class FirstSampleOnly(RoPE):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return super().compute_rotation(pos[:1])


# documents, special tokens and shared key heads


class AcrossDocuments(Forget):
    """Gates that also read the last token but one, whatever document they are of."""

    def prepare(self, tokens: Tokens) -> Tokens:
        before = F.pad(tokens.x, (0, 0, 2, 0))[:, :-2]
        return (
            super().prepare(tokens).with_per_token(kept=F.logsigmoid(self.gate(tokens.x + before)))
        )


class TurnedClassToken(RoPE):
    handles_special_tokens, identity_at_zero = True, False

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return self.rotate(q, *self.compute_rotation(tokens.index))

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.rotate(k, *self.compute_rotation(tokens.index))


class AddedToClassToken(Encoding):
    handles_special_tokens = True

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + 1)


class FirstOfEachGroup(RoPEMixed):
    """Of the query heads that share a key head all but the first are left as they are."""

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        turned = super().transform_query(q, tokens)
        first = torch.arange(self.dims.heads) % (self.dims.heads // self.dims.num_kv_heads) == 0
        return torch.where(first[:, None, None], turned, q)


class BySizeOfKeys(Encoding):
    """Heads of keys are told apart by the size of the layer."""

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return k * self.dims.num_kv_heads


FAULTS = [
    (equivariance.future_tokens_change_nothing, LookingAhead),
    (equivariance.future_tokens_change_nothing, NextToken),
    (equivariance.decoding_equals_one_pass, TouchedAgain),
    (equivariance.decoding_equals_one_pass, TopLeft),
    (equivariance.decoding_equals_one_pass, Counted),
    (equivariance.documents_decode_as_in_one_pass, NumberedFromHere),
    (equivariance.a_longer_run_begins_the_same, OfTheWhole),
    (equivariance.full_memory_equals_one_pass, Counted),
    (equivariance.shifts_change_nothing, FlippedKey),
    (equivariance.shifts_change_nothing, Noncommuting),
    (equivariance.shifts_change_nothing, EndsEarly),
    (equivariance.shifts_are_seen, SecretlyRelative),
    (equivariance.each_sample_has_its_own_positions, FirstSampleOnly),
    (equivariance.permuted_tokens_permute_the_output, TopLeft),
    (equivariance.the_position_of_a_special_token_is_not_read, TurnedClassToken),
    (equivariance.special_tokens_are_left_alone, AddedToClassToken),
    (equivariance.packed_documents_are_apart, AcrossDocuments),
    (equivariance.padding_changes_nothing, AcrossDocuments),
    (equivariance.shared_key_heads_equal_repeated_ones, FirstOfEachGroup),
    (equivariance.shared_key_heads_equal_repeated_ones, BySizeOfKeys),
    (equivariance.what_left_the_window_is_not_needed, BySlot),
]


@pytest.mark.parametrize(("law", "fault"), FAULTS, ids=name_parameter)
def test_a_planted_fault_is_caught(law, fault):
    check_fault_is_caught(law, fault)


def test_a_mask_aligned_top_left_is_caught(monkeypatch):
    monkeypatch.setattr(AttentionCall, "key_index", lambda call, i: i)
    with pytest.raises(LawBroken):
        equivariance.decoding_equals_one_pass(make_case(RoPE))


def test_a_bias_of_unplaced_pairs_is_caught(monkeypatch):
    monkeypatch.setattr(chain, "_restrict_to_positions", lambda old, new: new)
    with pytest.raises(LawBroken):
        equivariance.special_tokens_are_left_alone(make_case(Slope))
