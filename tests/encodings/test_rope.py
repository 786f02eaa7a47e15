"""RoPE: pairs (2t, 2t+1) of q and k rotate by p w_t, w_t = base^(-2t/K'), K' = rotary_fraction K."""

from __future__ import annotations

import math

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
from literal.rope import linear, list_frequencies, llama3, ntk, rope, score_rope, yarn
from panels import list_panels
from parameters import list_facts, make_initial
from rotations import CASES, check_reference_catches, check_rotation, make_rotary

import zoo
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.encodings.rope import RoPE

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
    "llama3": ({"rule": "llama3", "factor": 8.0, "original": 64}, llama3),
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


def test_other_rules_have_no_factor_of_attention():
    scaling = {"rule": "linear", "factor": 4.0, "attention_factor": 1.5}
    with pytest.raises(zoo.errors.OptionError, match="only yarn has one"):
        zoo.encoding({"name": "rope", "scaling": scaling}, Dims(16, 2))
