"""Faults of positions, documents, special tokens and shared keys that the laws of `zoo.laws.equivariance` catch."""

from __future__ import annotations

import pytest
import torch
from faults import check_fault_is_caught, make_case, name_parameter
from samples import Forget, Slope
from test_causality import TopLeft
from torch import Tensor
from torch.nn import functional as F

from zoo.attention import chain
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens
from zoo.encodings.liere import LieRE
from zoo.encodings.rope import RoPE
from zoo.encodings.rope_mixed import RoPEMixed
from zoo.laws import LawBroken, equivariance

# positions


class FlippedKey(RoPE):
    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.rotate(k, *self.compute_rotation(-tokens.pos))


class NeverTurnedBack(RoPE):
    """Values turn, and outputs stay as they are."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims, turn_values=True)

    def transform_value(self, v: Tensor, tokens: Tokens, *, back: bool = False) -> Tensor:
        return v if back else super().transform_value(v, tokens)


class TurnedByTheFirstHead(RoPEMixed):
    """Outputs of all heads turn back as those of the first one."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.turn_values = True

    def turn(self, x: Tensor, *tables: Tensor, back: bool = False) -> Tensor:
        if back:
            tables = tuple(table[:, :1].expand_as(table) for table in tables)
        return super().turn(x, *tables, back=back)


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
    (equivariance.shifts_change_nothing, FlippedKey),
    (equivariance.shifts_change_nothing, Noncommuting),
    (equivariance.shifts_change_nothing, NeverTurnedBack),
    (equivariance.shifts_change_nothing, TurnedByTheFirstHead),
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
]


@pytest.mark.parametrize(("law", "fault"), FAULTS, ids=name_parameter)
def test_a_planted_fault_is_caught(law, fault):
    check_fault_is_caught(law, fault)


def test_a_bias_of_unplaced_pairs_is_caught(monkeypatch):
    monkeypatch.setattr(chain, "restrict_to_positions", lambda old, new: new)
    with pytest.raises(LawBroken):
        equivariance.special_tokens_are_left_alone(make_case(Slope))
