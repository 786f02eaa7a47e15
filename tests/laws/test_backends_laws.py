"""Faults of backends, dtypes, compilers and exports that the laws of `zoo.laws.backends` catch."""

from __future__ import annotations

import pytest
import torch
from faults import check_fault_is_caught, make_case, name_parameter
from samples import Carried, Slope
from torch import Tensor, nn

import zoo
from zoo.attention import BlockBias
from zoo.attention.backends import chunked, dispatch, fused
from zoo.attention.call import AttentionCall, Span
from zoo.attention.encoding import Encoding
from zoo.attention.tokens import Tokens, upcast
from zoo.encodings.common.rotation import cos_sin
from zoo.encodings.rope import RoPE
from zoo.laws import LawBroken, backends
from zoo.laws.certificate import try_law

# biases and weights


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


class ByGridShape(Encoding):
    """A bias that depends on how an interpreter asks for it."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: 0.0 * i + 0.01 * j * j.numel())


class TwiceAsFar(Encoding):
    """Another slope where tokens are known to be one place apart."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        slope = 0.2 if call.is_consecutive else 0.1
        return call.add_bias(lambda b, h, i, j: -slope * call.distance(b, i, j))


class TheLast(Encoding):
    """Queries are taken for the last of the tokens, whichever they are."""

    def modify(self, call: AttentionCall) -> AttentionCall:
        first = call.k.shape[2] - call.q.shape[2]
        return call.add_bias(lambda b, h, i, j: (first + i - j).sin())


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


# dtypes


class RoundedAngles(RoPE):
    """Angles by a product of matrices, which autocast rounds."""

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        ladder = self.base ** (
            -torch.arange(0, self.dims.head_dim, 2, dtype=tokens.pos.dtype)[None]
            / self.dims.head_dim
        )
        return self.rotate(q, cos_sin(upcast(tokens.pos[:, None] @ ladder)))

    transform_key = transform_query


class SinglePrecision(RoPE):
    """Products of positions and frequencies in float32."""

    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        return (cos_sin(pos[:, None] * self.wave_vectors(pos)[0]),)


class Widened(Encoding):
    """A norm in the dtype of its weights, of coordinates that are never less than float32."""

    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.norm = nn.LayerNorm(1)

    def embed(self, tokens: Tokens) -> Tokens:
        return tokens.replace(x=tokens.x + self.norm(tokens.pos).to(tokens.x.dtype))


# exports


class OtherwiseExported(Encoding):
    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return 2 * q if torch.compiler.is_exporting() else q


FAULTS = [
    (backends.reference_and_chunks_agree, FirstRows),
    (backends.reference_and_chunks_agree, SecondRows),
    (backends.reference_and_flex_agree, ByGridShape),
    (backends.index_differences_are_offsets, TwiceAsFar),
    (backends.exports_at_any_size, OtherwiseExported),
    (backends.bfloat16_stays_close, RoundedAngles),
    (backends.float32_is_exact_far_away, SinglePrecision),
    (backends.weights_may_be_bfloat16, Widened),
    (backends.weights_are_shares_of_what_is_visible, DoubleWeights),
    (backends.weights_are_shares_of_what_is_visible, NegativeWeights),
    (backends.weights_are_shares_of_what_is_visible, WeightsOfTheInvisible),
    (backends.a_masked_row_gives_nothing, BlindSoftmax),
    (backends.a_masked_row_gives_nothing, EvenlyBlind),
    (backends.chosen_queries_are_rows_of_the_whole, TheLast),
]


@pytest.mark.parametrize(("law", "fault"), FAULTS, ids=name_parameter)
def test_a_planted_fault_is_caught(law, fault):
    check_fault_is_caught(law, fault)


def test_riders_of_chunks_are_compared(monkeypatch):
    def attend_wrongly(call: AttentionCall) -> Tensor:
        out, extra = chunked.attend_chunked(call).split(
            [call.v.shape[-1], 0 if call.extra_values is None else 4], dim=-1
        )
        return torch.cat([out, 1.5 * extra], dim=-1)

    monkeypatch.setattr(dispatch, "attend_chunked", attend_wrongly)
    with pytest.raises(LawBroken, match="in chunks, against the whole: off by"):
        backends.reference_and_chunks_agree(make_case(Carried))


def test_an_interpreter_that_drops_a_factor_is_caught(monkeypatch):
    backends.reference_and_sdpa_agree(make_case(Slope))
    monkeypatch.setattr(fused, "_make_channels", lambda call: ([], []))
    with pytest.raises(LawBroken):
        backends.reference_and_sdpa_agree(make_case(Slope))


# compilers and exports


class Uncaptured(Encoding):
    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return 2 * q if q.sum().item() > 0 else q


def test_a_break_of_the_graph_is_caught():
    with pytest.raises(LawBroken, match="no graph is captured"):
        backends.a_compiler_captures_it(make_case(Uncaptured))


def test_a_compiler_that_is_switched_off_captures_nothing(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(LawBroken, match="TORCHDYNAMO_DISABLE"):
        backends.a_compiler_captures_it(make_case(RoPE))


class HiddenByZero(Encoding):
    """What is another function where it is compiled, behind a parameter that is zero at first."""

    def __init__(self, dims: zoo.Dims) -> None:
        super().__init__(dims)
        self.scale = nn.Parameter(torch.zeros(()))

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return q * (1 + self.scale * (3 if torch.compiler.is_compiling() else 1))


def test_what_zero_hides_from_a_compiler_is_caught():
    with pytest.raises(LawBroken, match="after compilation: off by"):
        backends.a_compiler_captures_it(make_case(HiddenByZero))


class OfOneLength(Encoding):
    """A bias of a count that torch.export takes for a constant."""

    shift_invariant = True

    def modify(self, call: AttentionCall) -> AttentionCall:
        return call.add_bias(lambda b, h, i, j: 0.0 * (i + j) + i / len(call.keys))


class DeclaredOfOneLength(OfOneLength):
    no_export_reason = "its bias counts the tokens"


def test_a_length_that_is_fixed_is_caught_unless_it_is_declared():
    with pytest.raises(LawBroken, match="it is not exported, UserError: Constraints violated"):
        backends.exports_at_any_size(make_case(OfOneLength))
    found = try_law(backends.exports_at_any_size, make_case(DeclaredOfOneLength))
    assert (found.outcome, found.detail) == ("exempt", "its bias counts the tokens")
