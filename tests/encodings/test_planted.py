"""The laws under the law: sound encodings pass all of them, and each catches the fault that it is there for."""

from __future__ import annotations

import pytest
import torch
from calls import near
from literal import rope_axial_liere_comrope as references
from samples import SAMPLES, Carried, Forget, Slope
from torch import Tensor, nn
from torch.nn import functional as F

import zoo
from zoo.attention import BlockBias, chain
from zoo.attention.backends import chunked, dispatch, fused
from zoo.attention.call import AttentionCall, Span
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens, pick, upcast
from zoo.encodings.common.rotation import cos_sin
from zoo.encodings.liere import LieRE
from zoo.encodings.rope import RoPE
from zoo.encodings.rope_axial import RoPEAxial
from zoo.encodings.rope_mixed import RoPEMixed
from zoo.laws import LAWS, Case, LawBroken, backends, equivariance, gradients
from zoo.laws.case import HEADS, TOKENS
from zoo.laws.certificate import measure_roundings, try_law


def member(cls: type[Encoding], axes: int | None = None) -> Case:
    return Case(cls.__name__, axes or cls.axes[0], cls)


@pytest.mark.parametrize(
    ("law", "sound"),
    [
        pytest.param(law, one, id=f"{law.name}-{one}")
        for law in LAWS
        for one in map(member, SAMPLES)
        # an export takes seconds, and all encodings of zoo are tried elsewhere
        if not law.exempt(one)
        and (law is not backends.exports_at_any_size or one.name == "Carried")
    ],
)
def test_a_sound_encoding_passes(law, sound):
    law(sound)


class FlippedKey(RoPE):
    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.rotate(k, *self.compute_rotation(-tokens.pos))


class Noncommuting(LieRE):
    shift_invariant = True


class SecretlyRelative(RoPE):
    shift_invariant = False


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


class Detached(RoPEMixed):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(table.detach() for table in super().compute_rotation(pos))


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

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(Doubled.apply(table) for table in super().compute_rotation(pos))


class DroppedByZero(RoPEMixed):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            table.detach() + 0 * self.frequencies.sum() for table in super().compute_rotation(pos)
        )


class InfiniteAtFirst(Encoding):
    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.scale = nn.Parameter(torch.zeros(dims.heads))

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return q * self.scale.abs().sqrt()[:, None, None].exp()


class NotANumberAtZero(RoPEMixed):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        waves = self.frequencies / self.frequencies.norm(dim=0)
        return (
            cos_sin(sum(pos[:, None, :, a, None] * waves[a, :, None] for a in range(len(waves)))),
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


class TouchedAgain(Encoding):
    """Keys that are changed where they lie, in the cache."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        call.k.mul_(1.1)
        return call


class TopLeft(Encoding):
    """Distance in slots, as if the queries were the first tokens."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: -(i - j).abs() * 0.1)


class FirstRows(Encoding):
    """Distances of a chunk's queries, as if they were the first."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        def block(span: Span) -> Tensor:
            n, m = span.size
            return -0.1 * (torch.arange(n)[:, None] - torch.arange(m)).abs().double()[None, None]

        return call.add_bias(BlockBias(block))


class SecondRows(FirstRows):
    """The same in the second layer alone."""

    shared = False

    def modify(self, call: AttentionCall) -> AttentionCall:
        return super().modify(call) if self.dims.layer else call


class TwiceAsFar(Encoding):
    """Another slope where tokens are known to be one place apart."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        slope = 0.2 if call.is_consecutive else 0.1
        return call.add_bias(lambda b, h, i, j: -slope * call.distance(b, i, j))


class Counted(Encoding):
    """A bias of how many tokens came in this pass."""

    def prepare(self, tokens: Tokens) -> Tokens:
        return tokens.with_per_token(slot=torch.arange(len(tokens), dtype=tokens.pos.dtype)[None])

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: pick(call.keys.per_token["slot"], b, j))


class OfTheWhole(Encoding):
    """Positions as fractions of the run."""

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + tokens.pos / len(tokens))


class FirstSampleOnly(RoPE):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return super().compute_rotation(pos[:1])


class ByGridShape(Encoding):
    """A bias that depends on how an interpreter asks for it."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: 0.0 * i + 0.01 * j * j.numel())


class RoundedAngles(RoPE):
    """Angles by a product of matrices, which autocast rounds."""

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        ladder = self.base ** (
            -torch.arange(0, self.dims.head_dim, 2, dtype=tokens.pos.dtype)[None]
            / self.dims.head_dim
        )
        return self.rotate(q, cos_sin(upcast(tokens.pos[:, None] @ ladder)))

    transform_key = transform_query


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
    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.replace(
            normalize=lambda scores, visible, span: (
                2 * scores.masked_fill(~visible, -1e9).softmax(-1) * visible
            )
        )


class NegativeWeights(Encoding):
    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.replace(
            normalize=lambda scores, visible, span: (
                scores.masked_fill(~visible, 0).tanh() / scores.shape[-1]
            )
        )


class WeightsOfTheInvisible(Encoding):
    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.replace(
            normalize=lambda scores, visible, span: scores.masked_fill(~visible, -9).softmax(-1)
        )


class BlindSoftmax(Encoding):
    """A softmax that forgets that a row may be empty."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.replace(normalize=lambda scores, visible, span: scores.softmax(-1))


class EvenlyBlind(Encoding):
    """A row of the lowest number: a mean of everything, silently."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        lowest = torch.finfo(call.q.dtype).min
        return call.replace(
            normalize=lambda scores, visible, span: scores.masked_fill(~visible, lowest).softmax(-1)
        )


class AcrossDocuments(Forget):
    """Gates that also read the last token but one, whatever document they are of."""

    def prepare(self, tokens: Tokens) -> Tokens:
        before = F.pad(tokens.x, (0, 0, 2, 0))[:, :-2]
        return (
            super().prepare(tokens).with_per_token(kept=F.logsigmoid(self.gate(tokens.x + before)))
        )


class AllAxes(Encoding):
    axes = (1,)

    def __init__(self, dims: zoo.Dims) -> None:
        nn.Module.__init__(self)
        self.dims = dims


class Uncaptured(Encoding):
    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return 2 * q if q.sum().item() > 0 else q


class OfOneLength(Encoding):
    """A bias of a count that torch.export takes for a constant."""

    shift_invariant = True

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: 0.0 * (i + j) + i / len(call.keys))


class DeclaredOfOneLength(OfOneLength):
    no_export_reason = "its bias counts the tokens"


class OtherwiseExported(Encoding):
    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return 2 * q if torch.compiler.is_exporting() else q


class EndsEarly(RoPE):
    """A table of places that ends, and whose last row is read past that."""

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return super().compute_rotation(pos.clamp(max=64))


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

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return q * (1 + self.scale * (3 if torch.compiler.is_compiling() else 1))


class NotANumberFarOff(Encoding):
    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: (30.0 - call.offset(b, i, j)[..., 0].abs()).log())


class OneSampleWide(Encoding):
    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x[:1] + tokens.pos.sum(-1, keepdim=True))


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


class BySlot(Encoding):
    """Keys are counted from the first that is there."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: (j + 0 * i).sin())


class TheLast(Encoding):
    """Queries are taken for the last of the tokens, whichever they are."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        first = call.k.shape[2] - call.q.shape[2]
        return call.add_bias(lambda b, h, i, j: (first + i - j).sin())


FAULTS = [
    (gradients.shapes_are_kept, OneSampleWide),
    (gradients.initial_gradients_are_finite, InfiniteAtFirst),
    (gradients.initial_gradients_are_finite, Detached),
    (gradients.every_parameter_learns, Detached),
    (gradients.every_parameter_learns, DroppedByZero),
    (gradients.gradients_are_slopes, Untrue),
    (backends.reference_and_chunks_agree, FirstRows),
    (backends.reference_and_chunks_agree, SecondRows),
    (backends.reference_and_flex_agree, ByGridShape),
    (backends.index_differences_are_offsets, TwiceAsFar),
    (backends.exports_at_any_size, OtherwiseExported),
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
    (gradients.undeclared_axes_are_refused, AllAxes),
    (backends.bfloat16_stays_close, RoundedAngles),
    (backends.weights_may_be_bfloat16, Widened),
    (gradients.a_state_dict_carries_everything, Unsaved),
    (backends.weights_are_shares_of_what_is_visible, DoubleWeights),
    (backends.weights_are_shares_of_what_is_visible, NegativeWeights),
    (backends.weights_are_shares_of_what_is_visible, WeightsOfTheInvisible),
    (backends.a_masked_row_gives_nothing, BlindSoftmax),
    (backends.a_masked_row_gives_nothing, EvenlyBlind),
    (equivariance.each_sample_has_its_own_positions, FirstSampleOnly),
    (equivariance.permuted_tokens_permute_the_output, TopLeft),
    (equivariance.the_position_of_a_special_token_is_not_read, TurnedClassToken),
    (equivariance.special_tokens_are_left_alone, AddedToClassToken),
    (gradients.zero_parameters_give_finite_gradients, NotANumberAtZero),
    (equivariance.packed_documents_are_apart, AcrossDocuments),
    (equivariance.padding_changes_nothing, AcrossDocuments),
    (equivariance.shared_key_heads_equal_repeated_ones, FirstOfEachGroup),
    (equivariance.shared_key_heads_equal_repeated_ones, BySizeOfKeys),
    (equivariance.what_left_the_window_is_not_needed, BySlot),
    (backends.chosen_queries_are_rows_of_the_whole, TheLast),
]


@pytest.mark.parametrize(
    ("law", "fault"), [pytest.param(*one, id=f"{one[0].name}-{one[1].__name__}") for one in FAULTS]
)
def test_a_planted_fault_is_caught(law, fault):
    found = try_law(law, member(fault, 2 if 2 in fault.axes else 1))
    assert found.outcome == "broken"
    assert "Error" not in found.detail  # but by what was seen


def test_a_break_of_the_graph_is_caught():
    with pytest.raises(LawBroken, match="no graph is captured"):
        backends.a_compiler_captures_it(member(Uncaptured))


def test_a_length_that_is_fixed_is_caught_unless_it_is_declared():
    with pytest.raises(LawBroken, match="it is not exported, UserError: Constraints violated"):
        backends.exports_at_any_size(member(OfOneLength))
    found = try_law(backends.exports_at_any_size, member(DeclaredOfOneLength))
    assert (found.outcome, found.detail) == ("exempt", "its bias counts the tokens")


def test_what_zero_hides_from_a_compiler_is_caught():
    with pytest.raises(LawBroken, match="what was compiled: off by"):
        backends.a_compiler_captures_it(member(HiddenByZero))


def test_scores_in_float32_that_are_no_numbers_are_a_fault():
    found = [*measure_roundings([member(Slope), member(NotANumberFarOff)])]
    assert {one.head_dtype for one in found if one.broken} == {"float32"}
    assert not any(one.broken for one in measure_roundings([member(Slope)]))


def test_a_compiler_that_is_switched_off_captures_nothing(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(LawBroken, match="TORCHDYNAMO_DISABLE"):
        backends.a_compiler_captures_it(member(RoPE))


def test_riders_of_chunks_are_compared(monkeypatch):
    def spoiled(call: AttentionCall) -> Tensor:
        out, extra = chunked.attend_chunked(call).split(
            [call.v.shape[-1], 0 if call.extra_values is None else 4], dim=-1
        )
        return torch.cat([out, 1.5 * extra], dim=-1)

    monkeypatch.setattr(dispatch, "attend_chunked", spoiled)
    with pytest.raises(LawBroken, match="in chunks, against the whole: off by"):
        backends.reference_and_chunks_agree(member(Carried))


def test_an_interpreter_that_drops_a_factor_is_caught(monkeypatch):
    backends.reference_and_sdpa_agree(member(Slope))
    monkeypatch.setattr(fused, "_make_channels", lambda call: ([], []))
    with pytest.raises(LawBroken):
        backends.reference_and_sdpa_agree(member(Slope))


def test_a_mask_aligned_top_left_is_caught(monkeypatch):
    monkeypatch.setattr(AttentionCall, "key_index", lambda call, i: i)
    with pytest.raises(LawBroken):
        equivariance.decoding_equals_one_pass(member(RoPE))


def test_a_bias_of_unplaced_pairs_is_caught(monkeypatch):
    monkeypatch.setattr(chain, "_restrict_to_positions", lambda old, new: new)
    with pytest.raises(LawBroken):
        equivariance.special_tokens_are_left_alone(member(Slope))


def test_riders_left_behind_are_caught(monkeypatch):
    monkeypatch.setattr(Carried, "after_attention", Encoding.after_attention)
    with pytest.raises(LawBroken):
        gradients.every_parameter_learns(member(Carried))


class SwappedAxes(RoPEAxial):
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return super().compute_rotation(pos.flip(-1))


@pytest.mark.parametrize(
    ("planted", "rotation"), [(SwappedAxes, references.rope_axial), (FlippedKey, references.rope)]
)
def test_a_reference_catches_what_no_law_can(planted, rotation):
    one = member(planted)
    made, pos = one.build().double(), one.positions()
    q, k = torch.randn(2, 1, HEADS, TOKENS, one.head_dim, dtype=pos.dtype).unbind()
    with pytest.raises(AssertionError, match="not close"):
        near(zoo.scores(made, q, k, pos), references.scores(rotation, made, q, k, pos))


def test_every_law_has_a_fault_that_it_catches():
    elsewhere = {"a_compiler_captures_it", "reference_and_sdpa_agree"}
    assert {law.name for law in LAWS} == {law.name for law, _ in FAULTS} | elsewhere
