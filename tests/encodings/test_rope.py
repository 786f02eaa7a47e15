"""RoPE: pairs (2t, 2t+1) of q and k rotate by p w_t, w_t = base^(-2t/K'), K' = rotary_fraction K."""

from __future__ import annotations

import math

import language
import pytest
import torch
from calls import (
    MASKS,
    QUERIES,
    assert_close,
    check_attention,
    draw_positions,
    make_call,
    make_encoding,
)
from extrapolate import make_extended
from literal.rope import (
    clipped,
    dynamic,
    linear,
    list_frequencies,
    llama3,
    longrope,
    ntk,
    proportional,
    rope,
    rope_waves,
    score_rope,
    yarn,
)
from panels import list_panels
from parameters import list_facts, make_initial
from rotations import CASES, check_reference_catches, check_rotation, make_rotary

import zoo
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.encodings.rope import RoPE
from zoo.errors import OptionError
from zoo.models.generation import sample_tokens

POS = torch.arange(9).double()[:, None]


@CASES
def test_formula(case):
    check_rotation(make_rotary("rope", 1), rope, case)


@MASKS
@QUERIES
@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_formula_for_a_fraction_of_the_head(fraction, queries, causal):
    encoding = make_encoding("rope", head=16, rotary_fraction=fraction)
    pos = draw_positions(real=True)
    call = make_call(head=16, queries=queries, causal=causal, pos=pos)
    expected = score_rope(call, list_frequencies(int(16 * fraction)))
    check_attention(encoding, call, expected, causal)


def test_facts():
    assert list_facts("rope") == {"shift_invariant": True, "identity_at_zero": True}


def test_parameters():
    assert make_initial("rope").state_dict() == {}


def test_values_are_not_rotated():
    encoding, far = zoo.encoding("rope", Dims(16, 2)).double(), POS + 1000
    q, k, v = torch.randn(3, 1, 2, 9, 8).double().unbind()
    weights = zoo.functional.weights(encoding, q, k, far)
    assert_close(zoo.functional.attend(encoding, q, k, v, far), weights @ v)
    first = (one[:, :, :1] for one in (q, k, v))
    assert_close(zoo.functional.attend(encoding, *first, far[:1]), v[:, :, :1])


def test_a_score_is_not_the_product_times_a_cosine():
    q, k = torch.randn(2, 1, 2, 9, 2).double().unbind()
    encoding = zoo.encoding("rope", Dims(4, 2)).double()
    score = zoo.functional.scores(encoding, q, k, POS)[0, 0, 5, 2] * math.sqrt(2)
    one, other = (torch.view_as_complex(side[0, 0, slot]) for side, slot in ((q, 5), (k, 2)))
    both = one * other.conj()
    assert_close(score, both.real * math.cos(3) - both.imag * math.sin(3))
    assert (score - q[0, 0, 5] @ k[0, 0, 2] * math.cos(3)).abs() > 1e-6


def test_a_score_does_not_fade_with_distance():
    one = torch.ones(1, 2, 3, 2, dtype=torch.float64)
    pos = torch.tensor([[0.0], [355.0], [710.0]])  # 355 / 113 = pi
    scores = zoo.functional.scores(zoo.encoding("rope", Dims(4, 2)).double(), one, one, pos)[
        0, 0, 0
    ]
    assert_close(scores, math.sqrt(2) * torch.tensor([1.0, -1, 1], dtype=torch.float64), 1e-4)


# rules that scale frequencies


RULES = {
    "linear": ({"rule": "linear", "factor": 4.0}, linear),
    "ntk": ({"rule": "ntk", "factor": 4.0}, ntk),
    "yarn": ({"rule": "yarn", "factor": 8.0, "original": 4096}, yarn),
    "yarn_clipped": ({"rule": "yarn", "factor": 8.0, "original": 64}, yarn),
    "yarn_knobs": (
        {"rule": "yarn", "factor": 8.0, "original": 4096, "beta_fast": 16.0, "beta_slow": 2.0}
        | {"truncate": False, "mscale": 2.0, "mscale_all_dim": 0.5},
        yarn,
    ),
    "yarn_step": (
        {"rule": "yarn", "factor": 8.0, "original": 512, "beta_fast": 4.0, "beta_slow": 4.0}
        | {"truncate": False, "mscale": 2.0, "attention_factor": 1.25},
        yarn,
    ),
    "llama3": ({"rule": "llama3", "factor": 8.0, "original": 64}, llama3),
    "llama3_knobs": (
        {"rule": "llama3", "factor": 8.0, "original": 64}
        | {"low_freq_factor": 0.5, "high_freq_factor": 9.0},
        llama3,
    ),
    "dynamic_short": ({"rule": "dynamic", "factor": 2.0, "original": 300}, dynamic),
    "dynamic_long": ({"rule": "dynamic", "factor": 2.0, "original": 64, "length": 300}, dynamic),
    "proportional": ({"rule": "proportional", "fraction": 0.7}, proportional),
    "proportional_divided": (
        {"rule": "proportional", "fraction": 0.25, "factor": 8.0},
        proportional,
    ),
    "clipped": ({"rule": "clipped"}, clipped),
    **{
        f"clipped_{count}": ({"rule": "clipped", "count": count}, clipped) for count in (0, 1, 2, 4)
    },
}


@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("case", RULES)
def test_formula_with_a_rule(case, fraction, base):
    scaling, rule = RULES[case]
    options = {"rotary_fraction": fraction, "base": base, "scaling": scaling}
    encoding = make_encoding("rope", heads=2, head=32, **options)
    call = make_call(2, 32, pos=20 * draw_positions(real=True))
    rest = {key: value for key, value in scaling.items() if key != "rule"}
    frequencies = rule(int(32 * fraction), base=base, **rest)
    check_attention(encoding, call, score_rope(call, frequencies))


HEAD, LENGTH = 64, 128
LITERAL = {
    "dynamic": lambda factor: dynamic(HEAD, factor, LENGTH, length=int(factor * LENGTH)),
    # 10000^(-2t/64) rotates once within 128 tokens up to t = 10
    "proportional": lambda factor: proportional(HEAD, 11 / 32),
    "clipped": lambda factor: clipped(HEAD, 10),
    "linear": lambda factor: linear(HEAD, factor),
    "ntk": lambda factor: ntk(HEAD, factor),
    "yarn": lambda factor: yarn(HEAD, factor, LENGTH),
    "llama3": lambda factor: llama3(HEAD, factor, LENGTH),
}


@pytest.mark.parametrize("factor", [2.0, 8.0])
@pytest.mark.parametrize("rule", LITERAL)
def test_formula_with_the_options_that_a_rule_declares(rule, factor):
    """Each pair as a complex number, rotated by position times frequency; one score after the other."""
    pos = torch.tensor([0.0, 5.0, 130.0, 128 * factor - 1]).double()[:, None]
    encoding = make_extended("rope", Dims(2 * HEAD, 2, length=LENGTH), rule, (factor,)).double()
    q, k = torch.randn(2, 1, 2, 4, HEAD, dtype=torch.float64)
    scores = zoo.functional.scores(encoding, q, k, pos, causal=True)
    frequencies, size = LITERAL[rule](factor)
    w = torch.tensor(frequencies, dtype=torch.float64)
    z, y = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (q, k))
    assert encoding.text_length in (None, 128 * factor)
    for i in range(4):
        for j in range(i + 1):
            turn = torch.exp(1j * w * (pos[i] - pos[j]))
            products = (z[0, :, i] * y[0, :, j].conj() * turn).real.sum(-1)
            torch.testing.assert_close(scores[0, :, i, j], products * size**2 / math.sqrt(HEAD))


def test_rules_differ():
    waves = {rule: LITERAL[rule](4.0)[0] for rule in LITERAL} | {"none": list_frequencies(HEAD)[0]}
    assert len({tuple(one) for one in waves.values()}) == len(waves)


def test_rules_blend_pairs():
    """Each kind of pair occurs, so that the tests above tell the rules apart."""
    plain = list_frequencies(32)[0]
    for waves in (yarn(32, 8.0, 4096)[0], llama3(32, 8.0, 64)[0]):
        ratios = [w / p for w, p in zip(waves, plain, strict=True)]
        assert ratios[0] == 1
        assert math.isclose(ratios[-1], 1 / 8)
        assert any(0.15 < ratio < 0.95 for ratio in ratios)


def test_ntk_divides_the_slowest_pair_by_the_factor_and_keeps_the_first():
    slow, plain = ntk(32, 4.0)[0], list_frequencies(32)[0]
    assert slow[0] == plain[0]
    assert math.isclose(slow[-1], plain[-1] / 4)


@pytest.mark.parametrize(("size", "count"), [(128, 20), (64, 10), (32, 5), (8, 1)])
def test_clipped_lowers_a_share_of_the_pairs_to_zero(size, count):
    encoding = zoo.encoding("rope", Dims(2 * size, 2), scaling={"rule": "clipped"})
    waves = encoding.wave_vectors(torch.zeros(0, dtype=torch.float64)).flatten()
    plain = torch.tensor(list_frequencies(size)[0], dtype=torch.float64)
    # the first of the pairs that fall has the factor 1
    assert int((waves != plain).sum()) == count - 1
    assert (float(waves[-1]) == 0) == (count > 1)


def test_scaled_waves_have_no_other_rule():
    scaling = {"rule": "ntk", "factor": 2}
    scaled = zoo.encoding({"name": "rope", "scaling": scaling}, Dims(16, 2, length=8))
    assert scaled.extrapolations((2.0,)) == {}


# panels


def test_panel_shows_the_frequencies():
    (pairs,) = list_panels("rope", base=100.0)["Rotation frequencies"].groups.values()
    torch.testing.assert_close(pairs[1], 100.0 ** (-torch.arange(8.0) / 8))


def test_panel_shows_frequencies_per_token_whatever_the_coordinates():
    panels = list_panels("rope", base=100.0, coordinates="fraction")
    (pairs,) = panels["Rotation frequencies"].groups.values()
    torch.testing.assert_close(pairs[1], 100.0 ** (-torch.arange(8.0) / 8) / 16)


@torch.no_grad()
@pytest.mark.parametrize(
    ("convention", "radians"), [("symmetric", 2 / 16), ("growing", 1 / 15), ("fraction", 1 / 16)]
)
def test_panel_shows_rotations_of_the_document_whatever_stands_before_it(convention, radians):
    encoding = zoo.encoding({"name": "rope", "coordinates": convention}, Dims(16, 1, length=16))
    chain = Chain.of(encoding)
    extent = torch.tensor([1.0] + [16.0] * 16)[None, :, None]  # a class token first
    index = torch.cat([torch.zeros(1), torch.arange(16.0)])[:, None]
    tokens = Tokens.at(torch.zeros(1, 17, 16), index, torch.arange(17) > 0)
    tokens = tokens.replace(grid_size=extent)
    call = SelfAttention(chain.dims).describe(tokens, chain, Context())[1]
    (panel,) = chain.panels(call)
    (points,) = panel.groups.values()
    assert float(points[1][0]) == pytest.approx(radians)


class FlippedKey(RoPE):
    """Keys rotate the other way."""

    def transform_key(self, k, tokens):
        return self.rotate(k, *self.compute_rotation(-tokens.pos))


def test_planted_fault():
    check_reference_catches(FlippedKey, rope, axes=1)


def test_yarn_sharpens_scores_by_a_factor_of_its_own():
    scaling = {"rule": "yarn", "factor": 4.0, "original": 32}
    plain, own = (
        zoo.encoding({"name": "rope", "scaling": {**scaling, **more}}, Dims(16, 2)).double()
        for more in ({}, {"attention_factor": 1.5})
    )
    ratio = own.compute_rotation(POS[None])[0] / plain.compute_rotation(POS[None])[0]
    expected = torch.full_like(ratio, 1.5 / (0.1 * math.log(4) + 1))
    torch.testing.assert_close(ratio.nan_to_num(expected.max().item()), expected)


DIVISORS = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 3.0, 7.0, 20.0]}
LONGROPE = {
    "short": {"original": 300},
    "long": {"original": 64, "length": 300, "factor": 16.0},
    "of the length of the model": {"original": 64, "length": 300},
    "with a factor of its own": {"original": 64, "length": 300, "attention_factor": 1.5},
}


@pytest.mark.parametrize("case", LONGROPE)
def test_formula_of_longrope(case):
    options = {"factor": 512 / LONGROPE[case]["original"], **DIVISORS, **LONGROPE[case]}
    given = {"rule": "longrope", **DIVISORS, **LONGROPE[case]}
    encoding = zoo.encoding("rope", Dims(16, 2, length=512), scaling=given).double()
    call = make_call(2, 8, pos=20 * draw_positions(real=True))
    check_attention(encoding, call, score_rope(call, longrope(8, **options)))


@pytest.mark.parametrize(
    ("scaling", "part"),
    [
        ({"rule": "linear", "factor": 4.0, "attention_factor": 1.5}, "yarn and longrope do"),
        ({"rule": "ntk", "factor": 4.0, "beta_fast": 8.0}, "ntk has no beta_fast; only yarn has"),
        ({"rule": "yarn", "factor": 4.0, "length": 64}, "dynamic and longrope do"),
        ({"rule": "yarn"}, "factor: missing; expected a finite number, which yarn"),
        ({"rule": "proportional"}, "fraction: missing; expected a finite number"),
        ({"rule": "longrope", "short_factor": [1.0] * 4}, "long_factor: missing; expected a list"),
        ({"rule": "longrope", **DIVISORS, "long_factor": [2.0]}, "1 numbers for 4 pairs"),
        ({"rule": "dynamic", "factor": 0.5}, "must be at least 1"),
        ({"rule": "clipped", "factor": 2.0}, "clipped has no factor"),
        ({"rule": "linear", "factor": 2.0, "count": 2}, "linear has no count; only clipped has"),
        ({"rule": "clipped", "count": 5}, "count 5 is more than the 4 pairs"),
        ({"rule": "clipped", "count": -1}, "must be at least 0"),
        (
            {"rule": "yarn", "factor": 2.0, "beta_fast": 0.5},
            "beta_fast 0.5 is less than beta_slow 1",
        ),
        (
            {"rule": "llama3", "factor": 2.0, "low_freq_factor": 4.0},
            "low_freq_factor 4 is not less than high_freq_factor 4",
        ),
    ],
    ids=str,
)
def test_an_option_that_a_rule_has_not_or_cannot_do_without_is_named(scaling, part):
    with pytest.raises(OptionError, match=part):
        zoo.encoding("rope", Dims(16, 2, length=64), scaling=scaling)


def test_a_rule_that_needs_the_training_length_says_so():
    for rule in ("yarn", "llama3", "dynamic"):
        with pytest.raises(OptionError, match=f"{rule} needs the training size") as error:
            zoo.encoding("rope", Dims(16, 2), scaling={"rule": rule, "factor": 2.0})
        assert error.value.key == "scaling.original"


# the length of the whole text


FIXED = {
    "dynamic": {"rule": "dynamic", "factor": 2.0, "original": 16},
    "longrope": {"rule": "longrope", "original": 16, **DIVISORS},
}


@pytest.mark.parametrize("length", [None, 12, 40])
@pytest.mark.parametrize("rule", FIXED)
def test_positions_past_the_length_are_refused(rule, length):
    scaling = {**FIXED[rule], "length": length}
    encoding = zoo.encoding("rope", Dims(16, 2, length=16), scaling=scaling)
    end = length or 16
    inside = torch.arange(float(end))[None, :, None]
    table = encoding.compute_rotation(inside)[0]
    assert encoding.text_length == end
    with pytest.raises(
        OptionError, match=f"position {end} is past length {end}.* {rule} "
    ) as error:
        encoding.compute_rotation(inside + 1)
    assert error.value.key == "scaling.length"
    assert "set scaling.length" in str(error.value)

    # What a graph computes there is not a number; the rest is as it was.
    (mapped,) = torch.func.vmap(encoding.compute_rotation)((inside + 1)[None])
    assert mapped[0, :, :, -1].isnan().all()
    torch.testing.assert_close(mapped[0, :, :, :-1], table[:, :, 1:])


@pytest.mark.parametrize("rule", FIXED)
def test_decoding_past_the_length_is_refused(rule):
    links = language.links("rope", options={"rope": {"scaling": FIXED[rule]}})
    model, generator = language.decoder(encoding=links), torch.Generator()
    for context in (KeyValueCache(), None):
        drawn = sample_tokens(model, [1] * 10, context, generator)
        assert len([next(drawn) for _ in range(7)]) == 7
        with pytest.raises(OptionError, match="position 16 is past length 16"):
            next(drawn)


@pytest.mark.parametrize("rule", FIXED)
def test_a_rule_that_follows_the_length_is_set_to_the_evaluated_one(rule):
    scaling = {**FIXED[rule], "length": 16}
    encoding = zoo.encoding("rope", Dims(16, 2, length=16), scaling=scaling)
    (changed,) = (one["scaling"] for one in encoding.extrapolations((2.5,)).values())
    assert (changed.rule, changed.length, changed.original) == (rule, 40, 16)


def test_a_rule_that_follows_the_length_counts_tokens():
    with pytest.raises(OptionError, match="coordinates fraction do not"):
        zoo.encoding(
            {"name": "rope", "scaling": FIXED["dynamic"], "coordinates": "fraction"}, Dims(16, 2)
        )


@pytest.mark.parametrize("case", [*RULES, "longrope"])
def test_float32_is_exact_at_a_million_tokens(case):
    scaling = RULES[case][0] if case in RULES else {**FIXED["longrope"], "original": 512}
    scaling = {**scaling, **({"length": 10**6 + 9} if scaling["rule"] in FIXED else {})}
    encoding = zoo.encoding("rope", Dims(16, 2, length=512), scaling=scaling)
    pos = 10**6 + POS[None]
    exact = encoding.compute_rotation(pos)[0]
    torch.testing.assert_close(
        encoding.compute_rotation(pos.float())[0], exact.float(), atol=1e-5, rtol=0
    )


# wavelengths


@pytest.mark.parametrize("ends", [(0.5, 40.0), (3.0, 3.0)])
def test_wavelengths_are_a_geometric_series_from_the_shortest_to_the_longest(ends):
    dims = Dims(16, 2, points=True)
    encoding = zoo.encoding("rope", dims, t_min=ends[0], t_max=ends[1])
    check_rotation(encoding, rope_waves(*ends))
    waves = encoding.wave_vectors(torch.zeros(0, dtype=torch.float64)).flatten()
    assert_close(2 * math.pi / waves[[0, -1]], torch.tensor(ends, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"t_min": 1.0}, "t_min is given, and wavelengths have both ends"),
        ({"t_min": 2.0, "t_max": 1.0}, "t_min 2 is more than t_max 1"),
        ({"t_min": 1.0, "t_max": 9.0, "base": 500.0}, "base has no effect"),
        ({"t_min": 1.0, "t_max": 9.0, "scaling": {"rule": "linear", "factor": 2.0}}, "scaling has"),
        ({"t_min": 0.0, "t_max": 9.0}, "positive"),
    ],
    ids=str,
)
def test_wavelengths_that_do_not_fit_are_refused(options, part):
    with pytest.raises(OptionError, match=part):
        zoo.encoding("rope", Dims(16, 2, length=16), **options)
