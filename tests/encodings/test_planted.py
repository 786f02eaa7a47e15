"""The laws under the law: sound encodings pass all of them, and each catches the fault that it is there for."""

from __future__ import annotations

import pytest
import references
import torch
from calls import near
from samples import SAMPLES, Carried, Forget, Slope
from torch import Tensor, nn
from torch.nn import functional as F

import zoo
from zoo.attention import Block, chain
from zoo.attention.backends import attend as attending
from zoo.attention.backends import chunked, fused
from zoo.attention.call import Span, Terms
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens, pick, precise
from zoo.encodings.common.rotation import circle
from zoo.encodings.liere import LieRE
from zoo.encodings.rope import RoPE
from zoo.encodings.rope_axial import RoPEAxial
from zoo.encodings.rope_mixed import RoPEMixed
from zoo.laws import (
    LAWS,
    Broken,
    Member,
    backends,
    causality,
    equivariance,
    gradients,
    numerics,
    packing,
    shapes,
)
from zoo.laws.case import HEADS, TOKENS
from zoo.laws.certificate import roundings, tried


def member(cls: type[Encoding], axes: int | None = None) -> Member:
    return Member(cls.__name__, axes or cls.axes[0], cls)


@pytest.mark.parametrize(
    ("law", "sound"),
    [
        pytest.param(law, one, id=f"{law.name}-{one}")
        for law in LAWS
        for one in map(member, SAMPLES)
        if not law.exempt(one)
    ],
)
def test_a_sound_encoding_passes(law, sound):
    law(sound)


class FlippedKey(RoPE):
    def turn_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.turn(k, *self.prepare(-tokens.pos))


class Noncommuting(LieRE):
    relative = True


class SecretlyRelative(RoPE):
    relative = False


class LookingAhead(Encoding):
    """A rescoring that reads all keys."""

    def terms(self, terms: Terms) -> Terms:
        return terms.replace(
            rescore=lambda scores, visible, span: scores * scores.mean(-1, keepdim=True)
        )


class NextToken(Encoding):
    """A bias that reads the key after the query."""

    def terms(self, terms: Terms) -> Terms:
        def ahead(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (
                terms.k[b, h, (terms.slot(i) + 1).clamp(max=terms.k.shape[2] - 1), 0]
                * terms.offset(b, i, j)[..., 0]
            )

        return terms.add_bias(ahead)


class Detached(RoPEMixed):
    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(table.detach() for table in super().prepare(pos))


class Doubled(torch.autograd.Function):
    """Hands on twice the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Untrue(RoPEMixed):
    """A backward of its own, which is wrong."""

    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(Doubled.apply(table) for table in super().prepare(pos))


class DroppedByZero(RoPEMixed):
    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(table.detach() + 0 * self.frequencies.sum() for table in super().prepare(pos))


class InfiniteAtFirst(Encoding):
    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.scale = nn.Parameter(torch.zeros(dims.heads))

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return q * self.scale.abs().sqrt()[:, None, None].exp()


class NotANumberAtZero(RoPEMixed):
    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        waves = self.frequencies / self.frequencies.norm(dim=0)
        return (
            circle(sum(pos[:, None, :, a, None] * waves[a, :, None] for a in range(len(waves)))),
        )


class TurnedClassToken(RoPE):
    unplaced, origin = True, False

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return self.turn(q, *self.prepare(tokens.index))

    def turn_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.turn(k, *self.prepare(tokens.index))


class AddedToClassToken(Encoding):
    unplaced = True

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + 1)


class TouchedAgain(Encoding):
    """Keys that are changed where they lie, in the cache."""

    def terms(self, terms: Terms) -> Terms:
        terms.k.mul_(1.1)
        return terms


class TopLeft(Encoding):
    """Distance in slots, as if the queries were the first tokens."""

    def terms(self, terms: Terms) -> Terms:
        return terms.add_bias(lambda b, h, i, j: -(i - j).abs() * 0.1)


class FirstRows(Encoding):
    """Distances of a chunk's queries, as if they were the first."""

    def terms(self, terms: Terms) -> Terms:
        def block(span: Span) -> Tensor:
            n, m = span.size
            return -0.1 * (torch.arange(n)[:, None] - torch.arange(m)).abs().double()[None, None]

        return terms.add_bias(Block(block))


class SecondRows(FirstRows):
    """The same in the second layer alone."""

    shared = False

    def terms(self, terms: Terms) -> Terms:
        return super().terms(terms) if self.dims.layer else terms


class TwiceAsFar(Encoding):
    """Another slope where tokens are known to be one place apart."""

    def terms(self, terms: Terms) -> Terms:
        slope = 0.2 if terms.consecutive else 0.1
        return terms.add_bias(lambda b, h, i, j: -slope * terms.distance(b, i, j))


class Counted(Encoding):
    """A bias of how many tokens came in this pass."""

    def annotate(self, tokens: Tokens) -> Tokens:
        return tokens.note(slot=torch.arange(len(tokens), dtype=tokens.pos.dtype)[None])

    def terms(self, terms: Terms) -> Terms:
        return terms.add_bias(lambda b, h, i, j: pick(terms.keys.notes["slot"], b, j))


class OfTheWhole(Encoding):
    """Positions as fractions of the run."""

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + tokens.pos / len(tokens))


class FirstSampleOnly(RoPE):
    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        return super().prepare(pos[:1])


class ByGridShape(Encoding):
    """A bias that depends on how an interpreter asks for it."""

    def terms(self, terms: Terms) -> Terms:
        return terms.add_bias(lambda b, h, i, j: 0.0 * i + 0.01 * j * j.numel())


class RoundedAngles(RoPE):
    """Angles by a product of matrices, which autocast rounds."""

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        ladder = self.base ** (
            -torch.arange(0, self.dims.head, 2, dtype=tokens.pos.dtype)[None] / self.dims.head
        )
        return self.turn(q, circle(precise(tokens.pos[:, None] @ ladder)))

    turn_key = turn_query


class Widened(Encoding):
    """A norm in the dtype of its weights, of coordinates that are never less than float32."""

    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.norm = nn.LayerNorm(1)

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + self.norm(tokens.pos).to(tokens.x.dtype))


class Unsaved(Encoding):
    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.table = [torch.randn(dims.dim, dtype=torch.float64)]

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + self.table[0])


class DoubleWeights(Encoding):
    def terms(self, terms: Terms) -> Terms:
        return terms.replace(
            weigh=lambda scores, visible, span: (
                2 * scores.masked_fill(~visible, -1e9).softmax(-1) * visible
            )
        )


class NegativeWeights(Encoding):
    def terms(self, terms: Terms) -> Terms:
        return terms.replace(
            weigh=lambda scores, visible, span: (
                scores.masked_fill(~visible, 0).tanh() / scores.shape[-1]
            )
        )


class WeightsOfTheInvisible(Encoding):
    def terms(self, terms: Terms) -> Terms:
        return terms.replace(
            weigh=lambda scores, visible, span: scores.masked_fill(~visible, -9).softmax(-1)
        )


class BlindSoftmax(Encoding):
    """A softmax that forgets that a row may be empty."""

    def terms(self, terms: Terms) -> Terms:
        return terms.replace(weigh=lambda scores, visible, span: scores.softmax(-1))


class EvenlyBlind(Encoding):
    """A row of the lowest number: a mean of everything, silently."""

    def terms(self, terms: Terms) -> Terms:
        lowest = torch.finfo(terms.q.dtype).min
        return terms.replace(
            weigh=lambda scores, visible, span: scores.masked_fill(~visible, lowest).softmax(-1)
        )


class AcrossDocuments(Forget):
    """Gates that also read the last token but one, whatever document they are of."""

    def annotate(self, tokens: Tokens) -> Tokens:
        before = F.pad(tokens.x, (0, 0, 2, 0))[:, :-2]
        return super().annotate(tokens).note(kept=F.logsigmoid(self.gate(tokens.x + before)))


class AllAxes(Encoding):
    axes = (1,)

    def __init__(self, dims: zoo.Dims) -> None:
        nn.Module.__init__(self)
        self.dims = dims


class Uncaptured(Encoding):
    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return 2 * q if q.sum().item() > 0 else q


class EndsEarly(RoPE):
    """A table of places that ends, and whose last row is read past that."""

    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        return super().prepare(pos.clamp(max=64))


class NumberedFromHere(Encoding):
    """Tokens of documents, numbered from the start of a pass."""

    def embed(self, tokens: Tokens) -> Tokens:
        count = torch.arange(tokens.x.shape[1], dtype=tokens.x.dtype)[:, None]
        return tokens if tokens.document is None else tokens.replace(x=tokens.x + count)


class HiddenByZero(Encoding):
    """What is another function where it is compiled, behind a parameter that is zero at first."""

    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.scale = nn.Parameter(torch.zeros(()))

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return q * (1 + self.scale * (3 if torch.compiler.is_compiling() else 1))


class NotANumberFarOff(Encoding):
    def terms(self, terms: Terms) -> Terms:
        return terms.add_bias(lambda b, h, i, j: (30.0 - terms.offset(b, i, j)[..., 0].abs()).log())


class OneSampleWide(Encoding):
    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x[:1] + tokens.pos.sum(-1, keepdim=True))


class FirstOfEachGroup(RoPEMixed):
    """Of the query heads that share a key head all but the first are left as they are."""

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        turned = super().turn_query(q, tokens)
        first = torch.arange(self.dims.heads) % (self.dims.heads // self.dims.groups) == 0
        return torch.where(first[:, None, None], turned, q)


class BySizeOfKeys(Encoding):
    """Heads of keys are told apart by the size of the layer."""

    def turn_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return k * self.dims.groups


class BySlot(Encoding):
    """Keys are counted from the first that is there."""

    def terms(self, terms: Terms) -> Terms:
        return terms.add_bias(lambda b, h, i, j: (j + 0 * i).sin())


class TheLast(Encoding):
    """Queries are taken for the last of the tokens, whichever they are."""

    def terms(self, terms: Terms) -> Terms:
        first = terms.k.shape[2] - terms.q.shape[2]
        return terms.add_bias(lambda b, h, i, j: (first + i - j).sin())


FAULTS = [
    (shapes.shapes_are_kept, OneSampleWide),
    (gradients.initial_gradients_are_finite, InfiniteAtFirst),
    (gradients.initial_gradients_are_finite, Detached),
    (gradients.every_parameter_learns, Detached),
    (gradients.every_parameter_learns, DroppedByZero),
    (gradients.gradients_are_slopes, Untrue),
    (backends.dense_and_chunks_agree, FirstRows),
    (backends.dense_and_chunks_agree, SecondRows),
    (backends.dense_and_flex_agree, ByGridShape),
    (backends.differences_of_slots_are_offsets, TwiceAsFar),
    (causality.future_tokens_change_nothing, LookingAhead),
    (causality.future_tokens_change_nothing, NextToken),
    (causality.decoding_equals_one_pass, TouchedAgain),
    (causality.decoding_equals_one_pass, TopLeft),
    (causality.decoding_equals_one_pass, Counted),
    (causality.documents_decode_as_in_one_pass, NumberedFromHere),
    (causality.a_longer_run_begins_the_same, OfTheWhole),
    (causality.full_memory_equals_one_pass, Counted),
    (equivariance.shifts_change_nothing, FlippedKey),
    (equivariance.shifts_change_nothing, Noncommuting),
    (equivariance.shifts_change_nothing, EndsEarly),
    (equivariance.shifts_are_seen, SecretlyRelative),
    (shapes.undeclared_axes_are_refused, AllAxes),
    (numerics.bfloat16_stays_close, RoundedAngles),
    (numerics.weights_may_be_bfloat16, Widened),
    (shapes.a_state_dict_carries_everything, Unsaved),
    (numerics.weights_are_shares_of_what_is_visible, DoubleWeights),
    (numerics.weights_are_shares_of_what_is_visible, NegativeWeights),
    (numerics.weights_are_shares_of_what_is_visible, WeightsOfTheInvisible),
    (numerics.a_masked_row_gives_nothing, BlindSoftmax),
    (numerics.a_masked_row_gives_nothing, EvenlyBlind),
    (equivariance.each_sample_has_its_own_positions, FirstSampleOnly),
    (equivariance.permuted_tokens_permute_the_output, TopLeft),
    (packing.the_place_of_an_unplaced_token_is_not_read, TurnedClassToken),
    (packing.unplaced_tokens_are_left_alone, AddedToClassToken),
    (gradients.zero_parameters_give_finite_gradients, NotANumberAtZero),
    (packing.packed_documents_are_apart, AcrossDocuments),
    (packing.padding_changes_nothing, AcrossDocuments),
    (packing.shared_key_heads_equal_repeated_ones, FirstOfEachGroup),
    (packing.shared_key_heads_equal_repeated_ones, BySizeOfKeys),
    (causality.what_left_the_window_is_not_needed, BySlot),
    (backends.chosen_queries_are_rows_of_the_whole, TheLast),
]


@pytest.mark.parametrize(
    ("law", "fault"), [pytest.param(*one, id=f"{one[0].name}-{one[1].__name__}") for one in FAULTS]
)
def test_a_planted_fault_is_caught(law, fault):
    found = tried(law, member(fault, 2 if 2 in fault.axes else 1))
    assert found.outcome == "broken"
    assert "Error" not in found.told  # but by what was seen


def test_a_break_of_the_graph_is_caught():
    with pytest.raises(Broken, match="no graph is captured"):
        backends.a_compiler_captures_it(member(Uncaptured))


def test_what_zero_hides_from_a_compiler_is_caught():
    with pytest.raises(Broken, match="what was compiled: off by"):
        backends.a_compiler_captures_it(member(HiddenByZero))


def test_scores_in_float32_that_are_no_numbers_are_a_fault():
    found = [*roundings([member(Slope), member(NotANumberFarOff)])]
    assert {one.heads for one in found if one.broken} == {"float32"}
    assert not any(one.broken for one in roundings([member(Slope)]))


def test_a_compiler_that_is_switched_off_captures_nothing(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(Broken, match="TORCHDYNAMO_DISABLE"):
        backends.a_compiler_captures_it(member(RoPE))


def test_riders_of_chunks_are_compared(monkeypatch):
    def spoiled(terms: Terms) -> Tensor:
        out, riders = chunked.chunked(terms).split(
            [terms.v.shape[-1], 0 if terms.riders is None else 4], dim=-1
        )
        return torch.cat([out, 1.5 * riders], dim=-1)

    monkeypatch.setattr(attending, "chunked", spoiled)
    with pytest.raises(Broken, match="in chunks, against the whole: off by"):
        backends.dense_and_chunks_agree(member(Carried))


def test_an_interpreter_that_drops_a_factor_is_caught(monkeypatch):
    backends.dense_and_sdpa_agree(member(Slope))
    monkeypatch.setattr(fused, "_channels", lambda terms: ([], []))
    with pytest.raises(Broken):
        backends.dense_and_sdpa_agree(member(Slope))


def test_a_mask_aligned_top_left_is_caught(monkeypatch):
    monkeypatch.setattr(Terms, "slot", lambda terms, i: i)
    with pytest.raises(Broken):
        causality.decoding_equals_one_pass(member(RoPE))


def test_a_bias_of_unplaced_pairs_is_caught(monkeypatch):
    monkeypatch.setattr(chain, "confined", lambda old, new: new)
    with pytest.raises(Broken):
        packing.unplaced_tokens_are_left_alone(member(Slope))


def test_riders_left_behind_are_caught(monkeypatch):
    monkeypatch.setattr(Carried, "update", Encoding.update)
    with pytest.raises(Broken):
        gradients.every_parameter_learns(member(Carried))


class SwappedAxes(RoPEAxial):
    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        return super().prepare(pos.flip(-1))


@pytest.mark.parametrize(
    ("planted", "rotation"), [(SwappedAxes, references.rope_axial), (FlippedKey, references.rope)]
)
def test_a_reference_catches_what_no_law_can(planted, rotation):
    one = member(planted)
    made, pos = one.make().double(), one.pos()
    q, k = torch.randn(2, 1, HEADS, TOKENS, one.head, dtype=pos.dtype).unbind()
    with pytest.raises(AssertionError, match="not close"):
        near(zoo.scores(made, q, k, pos), references.scores(rotation, made, q, k, pos))


def test_every_law_has_a_fault_that_it_catches():
    elsewhere = {"a_compiler_captures_it", "dense_and_sdpa_agree"}
    assert {law.name for law in LAWS} == {law.name for law, _ in FAULTS} | elsewhere
