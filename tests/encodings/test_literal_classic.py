"""head_scale, sandwich, xpos, fope, and biases on grids, against literal transcriptions of their formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calls import QUERIES, SEEN, agree, called, dims, made, moved, near, scores, spots, weights
from literal import biases as literal
from literal import sandwich_xpos_fope as classic
from literal.biases import Call

import zoo
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.fope import FoPE
from zoo.encodings.head_scale import HeadScale
from zoo.encodings.sandwich import Sandwich
from zoo.encodings.xpos import XPos
from zoo.errors import OptionError
from zoo.laws import Case, LawBroken, equivariance

# a temperature


@QUERIES
@pytest.mark.parametrize(
    "before", [[], ["alibi"], ["kerple"], ["t5"], ["shaw"], ["tupe"]], ids=" ".join
)
def test_head_scale_multiplies_the_scores_so_far(before, queries):
    links = [*before, "head_scale"]
    encoding, call = made(links), called(queries=queries)
    plain = Chain(
        encoding.dims, {name: link for name, link in encoding.named_children() if name in before}
    )
    expected = scores(plain, call) * encoding.head_scale.scale[:, None, None]
    hidden = expected.masked_fill(~call.visible, float("-inf"))
    near(scores(encoding, call), hidden)
    near(weights(encoding, call), literal.softmax(hidden))


def test_head_scale_leaves_later_biases_as_they_are():
    encoding, call = made(["head_scale", "kerple"]), called()
    sizes, bias = encoding.head_scale.scale, literal.kerple_log(encoding.kerple)
    scaled = replace(call, q=call.q * sizes[:, None, None])
    agree(encoding, call, literal.biased(scaled, bias))


def test_head_scale_follows_no_rows():
    encoding, call = made(["alibi", "dape", "head_scale"]), called()
    with pytest.raises(OptionError, match="head_scale cannot follow an encoding that transforms"):
        scores(encoding, call)


def test_a_class_token_has_the_temperature_too():
    encoding, call = made("head_scale"), called()
    placed = torch.arange(len(call.pos)) > 0
    near(scores(encoding, call, has_position=placed), scores(encoding, call))


# products of sinusoids


@SEEN
@QUERIES
@pytest.mark.parametrize("width", [128, 6])
def test_sandwich(width, queries, causal):
    call = called(queries=queries, causal=causal, pos=spots(real=True))
    agree(
        made("sandwich", width=width),
        call,
        literal.biased(call, classic.sandwich(4, width)),
        causal,
    )


def test_sandwich_is_exact_at_a_distance_from_the_start():
    zero, far = torch.zeros(1, 2, 3, 4), 200_000 + torch.arange(3.0)[:, None]
    encoding = zoo.encoding("sandwich", Dims(8, 2))
    near(
        zoo.scores(encoding, zero, zero, far), zoo.scores(encoding, zero, zero, far - 200_000), 1e-4
    )


def test_an_odd_width_is_refused():
    with pytest.raises(OptionError, match="width 7 is not even"):
        made("sandwich", width=7)


# fading waves


@QUERIES
@pytest.mark.parametrize(
    "options", [{}, {"gamma": 1.0, "span": 3.0, "base": 50.0}], ids=["default", "other"]
)
def test_xpos(options, queries):
    call = called(queries=queries, pos=10 * spots(real=True))
    expected = classic.xpos(call.q, call.k, call.pos, **options).masked_fill(
        ~call.visible, float("-inf")
    )
    agree(made("xpos", **options), call, expected)


@pytest.mark.parametrize("length", [None, 8192, 35_000])
def test_xpos_is_finite_in_float32_over_the_length_of_training(length):
    encoding, reach = zoo.encoding("xpos", Dims(32, 2, length=length)), length or 8192
    q, pos = torch.randn(1, 2, 4, 16), torch.tensor([0.0, 1, reach - 2, reach - 1])[:, None]
    expected = classic.xpos(q.double(), q.double(), pos[:, 0].double())
    mask = torch.ones(4, 4).triu(1).bool()
    near(
        zoo.scores(encoding, q, q, pos, causal=True).masked_fill(mask, 0),
        expected.masked_fill(mask, 0).float(),
        5e-3,
    )


def test_places_where_powers_overflow_are_refused():
    encoding, q = zoo.encoding("xpos", Dims(32, 2)), torch.randn(1, 2, 2, 16)
    assert zoo.scores(encoding, q, q, torch.tensor([[35_000.0], [35_001]])).isfinite().all()
    with pytest.raises(
        OptionError, match=r"positions 100000 apart.* past 35443, .* larger span than 512"
    ):
        zoo.scores(encoding, q, q, torch.tensor([[99_999.0], [100_000]]))
    assert (
        zoo.scores(encoding.double(), q.double(), q.double(), torch.tensor([[100_000.0]] * 2))
        .isfinite()
        .all()
    )
    half = q.half()
    assert zoo.scores(encoding, half, half, torch.tensor([[3_000.0], [3_001]])).isfinite().all()
    with pytest.raises(OptionError, match="where powers overflow"):
        zoo.scores(encoding, half, half, torch.tensor([[6_000.0], [6_001]]))
    with pytest.raises(OptionError, match="larger span"):
        zoo.encoding("xpos", Dims(32, 2, length=100_000))
    assert zoo.encoding("xpos", Dims(32, 2, length=100_000), span=2048.0)


def test_what_a_mask_hides_does_not_overflow_either():
    layer = zoo.Attention(Dims(32, 2, length=30_000), "xpos", causal=True)
    pos = torch.tensor([[0.0], [29_999.0]])
    assert layer(torch.randn(1, 2, 32), pos, document=torch.tensor([0, 0])).isfinite().all()
    with pytest.raises(OptionError, match="positions 39999 apart"):
        layer(torch.randn(1, 2, 32), torch.tensor([[0.0], [39_999.0]]))


def test_half_precision_reaches_less_far():
    encoding, q = zoo.encoding("xpos", Dims(32, 2)), torch.randn(1, 2, 2, 16).half()
    with pytest.raises(OptionError, match="larger span"):
        zoo.scores(encoding, q, q, torch.tensor([[0.0], [8000.0]]))


def test_fope_leaves_waves_that_are_none_of_its_own():
    longer, shorter = (zoo.encoding("fope", Dims(64, 1, length=length)) for length in (4096, 512))
    assert shorter.adapt_parameter("cosine", longer.cosine, longer) is None
    assert longer.adapt_parameter("cosine", shorter.cosine, shorter).shape == (
        *longer.cosine.shape[:2],
        shorter.cosine.shape[2],
    )
    assert (
        zoo.encoding("fope", Dims(64, 1, length=4096), base=5000.0).adapt_parameter(
            "sine", longer.sine, longer
        )
        is None
    )


# sums of waves


@SEEN
@QUERIES
@pytest.mark.parametrize(("length", "head"), [(2000, 16), (1_000_000, 16), (20, 24), (2000, 4)])
def test_fope(length, head, queries, causal):
    encoding = moved(zoo.encoding("fope", Dims(2 * head, 2, length=length)))
    call = called(2, head, queries=queries, causal=causal, pos=20 * spots(real=True))
    q, k = (classic.fope(encoding, x, call.pos[-x.shape[2] :], length) for x in (call.q, call.k))
    turned = replace(call, q=q, k=k)
    agree(encoding, call, literal.all_pairs(turned, literal.product_of(turned)), causal)


def test_fope_without_noise_turns_as_rope_with_its_longest_waves_still():
    encoding = moved(
        zoo.encoding("fope", Dims(32, 2, length=32), gain=0.0)
    )  # w >= 0.196: of eight waves two
    assert encoding.sine.shape == (2, 2, 2)
    call = called(2, 16)
    waves = torch.tensor([1, 10000 ** (-2 / 16), 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    turns = torch.polar(torch.ones(7, 8).double(), call.pos[:, None] * waves)
    q, k = (torch.complex(*x.chunk(2, dim=-1)) * turns for x in (call.q, call.k))
    expected = (q @ k.mH).real / 4
    agree(encoding, call, expected.masked_fill(~call.visible, float("-inf")))


def test_fope_leaves_a_token_without_a_place_alone():
    encoding, q = (
        zoo.encoding("fope", Dims(32, 2, length=99)).double(),
        torch.randn(1, 2, 3, 16).double(),
    )
    placed = torch.tensor([False, True, True])
    tokens = Tokens.at(torch.zeros(1, 3, 32).double(), torch.zeros(3, 1), placed)
    turned = Chain.of(encoding).transform_query(q, tokens)
    near(turned[:, :, 0], q[:, :, 0])
    assert not torch.allclose(turned[:, :, 1], q[:, :, 1])  # though it stands at 0


@pytest.mark.parametrize("name", ["fope", "xpos"])
def test_query_heads_turn_as_the_key_head_that_they_share(name):
    one = zoo.encoding(name, Dims(64, 4, length=99, kv_heads=2)).double()
    q, tokens = (
        torch.randn(1, 4, 5, 16).double(),
        Tokens.at(torch.zeros(1, 5, 64).double(), spots(tokens=5)[:, None]),
    )
    turned = one.transform_query(q, tokens)
    for first in (0, 1):
        alone = one.transform_query(q[:, [first, first, first + 2, first + 2]], tokens)
        near(turned[:, [first, first + 2]], alone[:, [0, 2]])
    if name == "fope":
        near(turned[:, 1::2], one.transform_key(q[:, 1::2], tokens))


# on grids


PLACES = {2: grid((3, 4), torch.zeros(0)).double(), 3: grid((2, 3, 2), torch.zeros(0)).double()}


def biases(encoding, pos, causal=False):
    zero = torch.zeros(1, encoding.dims.heads, len(pos), 4, dtype=torch.float64)
    return zoo.scores(encoding, zero, zero, pos, causal=causal)[0]


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize(
    "distance", [classic.manhattan, classic.euclidean], ids=["manhattan", "euclidean"]
)
def test_alibi_on_grids(distance, axes):
    encoding = zoo.encoding("alibi", Dims(16, 4, axes), distance=distance.__name__).double()
    expected = classic.alibi(4, PLACES[axes], distance)
    near(biases(encoding, PLACES[axes]), expected)
    hidden = torch.ones(12, 12).triu(1).bool()
    near(biases(encoding, PLACES[axes], causal=True), expected.masked_fill(hidden, float("-inf")))


def test_alibi_measures_manhattan_distance_by_default_and_both_are_one_along_a_text():
    plain, straight = (
        zoo.encoding("alibi", Dims(16, 4, 2), **o).double() for o in ({}, {"distance": "euclidean"})
    )
    near(biases(plain, PLACES[2]), classic.alibi(4, PLACES[2]))
    assert not torch.allclose(biases(straight, PLACES[2]), biases(plain, PLACES[2]))
    for causal in (True, False):
        call = called(causal=causal)
        agree(
            made("alibi", distance="euclidean"),
            call,
            literal.biased(call, literal.alibi(made("alibi"))),
            causal,
        )


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("buckets", [32, 8])
def test_t5_on_grids(axes, buckets):
    encoding = moved(zoo.encoding("t5", Dims(16, 4, axes), num_buckets=buckets))
    pos = PLACES[axes] * torch.tensor([1.0, 9, 40])[:axes]  # near and far
    expected = classic.t5(encoding.table, pos)
    near(biases(encoding, pos), expected)
    hidden = torch.ones(12, 12).triu(1).bool()
    near(biases(encoding, pos, causal=True), expected.masked_fill(hidden, float("-inf")))


@pytest.mark.parametrize("name", ["alibi", "t5"])
def test_a_class_token_has_no_bias_on_a_grid(name):
    encoding, placed = moved(zoo.encoding(name, Dims(16, 4, 2))), torch.arange(12) > 0
    zero = torch.zeros(1, 4, 12, 4, dtype=torch.float64)
    found = zoo.scores(encoding, zero, zero, PLACES[2], has_position=placed)[0]
    assert not found[:, 0].any()
    assert not found[:, :, 0].any()
    near(found[:, 1:, 1:], biases(encoding, PLACES[2])[:, 1:, 1:])


# faults that the references catch


class WholeWidth(Sandwich):
    """The constant forgotten: nothing to a softmax, but the scores are not those of the formula."""

    def modify(self, call):
        found = super().modify(call)
        return found.replace(low_rank_biases=found.low_rank_biases[:1])


class Growing(XPos):
    """Queries and keys have changed places: far keys count more."""

    def compute_rotation(self, pos):
        return tuple(reversed(super().compute_rotation(pos)))


class Still(HeadScale):
    """The biases before it keep their size."""

    def modify(self, call):
        return (
            super().modify(call).replace(biases=call.biases, low_rank_biases=call.low_rank_biases)
        )


class Sines(FoPE):
    """Pairs past the columns have sine 1, as the published code has it."""

    def rotate(self, x, *tables):
        clipped = x.shape[-1] // 2 - tables[0].shape[-2]
        ones = torch.ones(*tables[0].shape[:-2], clipped, 2, dtype=x.dtype)
        return super().rotate(x, torch.cat([tables[0], ones], dim=-2))


def _scores(cls, call: Call, *before: str):
    torch.manual_seed(1)
    at = dims(4, 16)
    links = {**{name: zoo.encoding(name, at) for name in before}, "planted": cls(at)}
    return scores(moved(Chain(at, links)), call)


@pytest.mark.parametrize(
    ("sound", "planted", "before"),
    [
        (Sandwich, WholeWidth, ()),
        (XPos, Growing, ()),
        (HeadScale, Still, ("alibi",)),
        (FoPE, Sines, ()),
    ],
    ids=["sandwich", "xpos", "head_scale", "fope"],
)
def test_a_planted_fault_changes_the_scores(sound, planted, before):
    call = called(4, 16)
    near(_scores(sound, call, *before), _scores(sound, call, *before))
    with pytest.raises(AssertionError):
        near(_scores(planted, call, *before), _scores(sound, call, *before))


class OwnMiddle(XPos):
    """Places count from the middle of the tokens at hand: cached keys have another one than later queries."""

    def compute_rotation(self, pos):
        self.centre = float(pos.mean())
        return super().compute_rotation(pos)


def test_a_middle_that_passes_do_not_share_is_caught_by_the_law_of_decoding():
    equivariance.decoding_equals_one_pass(Case("sound", 1, XPos))
    with pytest.raises(LawBroken):
        equivariance.decoding_equals_one_pass(Case("planted", 1, OwnMiddle))
