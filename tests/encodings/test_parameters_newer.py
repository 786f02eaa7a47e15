"""Names, shapes, facts and initial values of angles that tokens add up, polar coordinates and the forms of GRAPE."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.attention.encoding import Dims

HEADS, HEAD, KEY_HEADS = 4, 16, 2
WIDTH, CHANNELS = HEADS * HEAD, KEY_HEADS * HEAD // 2
SELECTIVE = {"into.weight": (32, WIDTH), "out.weight": (CHANNELS, 32), "kernel": (4, CHANNELS)}
GATE = {"gate.weight": (KEY_HEADS, WIDTH), "gate.bias": (KEY_HEADS,)}


def made(name, **options):
    return zoo.encoding(name, Dims(WIDTH, HEADS, length=40, depth=2, kv_heads=KEY_HEADS), **options)


@pytest.mark.parametrize(
    ("name", "options", "shapes"),
    [
        ("selective_rope", {}, SELECTIVE),
        ("selective_rope", {"gate": True}, {**SELECTIVE, **GATE}),
        ("carope", {}, {"frequency.weight": (KEY_HEADS, WIDTH), "frequency.bias": (KEY_HEADS,)}),
        ("pope", {}, {"phase": (KEY_HEADS, HEAD)}),
        ("grape_m", {}, {"log_frequencies": (HEAD // 2,)}),
        ("grape_m", {"planes": 3}, {"first": (KEY_HEADS, 3, HEAD), "second": (KEY_HEADS, 3, HEAD)}),
        (
            "grape_m_contextual",
            {},
            {"log_frequencies": (HEAD // 2,), "pace.weight": (1, WIDTH), "pace.bias": (1,)},
        ),
        ("grape_a", {}, {"rate": (HEADS,), "gate": (HEADS, HEAD)}),
        ("grape_a", {"by": "query"}, {"rate": (HEADS,), "gate": (HEADS, HEAD)}),
        (
            "grape_a",
            {"by": "both"},
            {"rate": (HEADS,), "gate": (HEADS, HEAD), "query_gate": (HEADS, HEAD)},
        ),
        ("grape_ap", {}, {"path.weight": (8 * HEADS, WIDTH)}),
        ("grape_ap", {"size": 4}, {"path.weight": (4 * HEADS, WIDTH)}),
    ],
)
def test_parameters_have_these_names_and_shapes(name, options, shapes):
    assert {
        key: tuple(value.shape) for key, value in made(name, **options).named_parameters()
    } == shapes


@pytest.mark.parametrize(
    ("name", "relative", "causal", "unplaced"),
    [
        ("selective_rope", True, True, True),
        ("carope", True, True, True),
        ("grape_m_contextual", True, True, True),
        ("pope", True, False, True),
        ("grape_m", True, False, False),
        ("grape_a", True, True, False),
        ("grape_ap", False, True, False),
    ],
)
def test_facts(name, relative, causal, unplaced):
    cls = zoo.encoding_class(name)
    assert (cls.shift_invariant, cls.causal_only, cls.handles_special_tokens) == (
        relative,
        causal,
        unplaced,
    )
    assert not cls.shared
    assert cls.axes == (1,)


@torch.no_grad()
def test_phases_start_anywhere_in_a_turn_or_at_zero():
    phase = zoo.encoding("pope", Dims(4096, 64)).phase
    assert (phase <= 0).all()
    assert -2 * math.pi <= phase.min() < -6.2
    assert abs(phase.mean() + math.pi) < 5 * 2 * math.pi / math.sqrt(12 * phase.numel())
    assert not made("pope", init_std=0.0).phase.any()


@torch.no_grad()
def test_paces_and_rates_start_at_what_is_said():
    old = made("grape_m_contextual", activation="softplus").pace.bias
    assert math.isclose(torch.nn.functional.softplus(old).item(), 1e-3, rel_tol=1e-4)
    pace = (made("grape_m_contextual").pace.bias / 16).sigmoid().item()
    assert math.isclose(pace, 0.3937, abs_tol=1e-4)
    chosen = (made("grape_m_contextual", initial=0.25).pace.bias / 16).sigmoid().item()
    assert math.isclose(chosen, 0.25, rel_tol=1e-5)
    assert made("fox").gate.bias.eq(0).all()
    assert made("fox", init_bias=4.0).gate.bias.eq(4).all()
    assert not made("grape_m_contextual").pace.weight.any()
    torch.testing.assert_close(
        torch.nn.functional.softplus(made("grape_a").rate), torch.ones(HEADS)
    )


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "base", "axes"),
    [
        ("rope_mixed", 10000.0, 1),
        ("rope_mixed", 10.0, 2),
        ("rope_mixed", 10.0, 3),
        ("string", 10000.0, 1),
        ("string", 100.0, 2),
        ("string", 100.0, 3),
    ],
)
def test_bases_of_texts_are_those_of_rope_and_a_base_that_is_given_wins(name, base, axes):
    dims = Dims(WIDTH, HEADS, axes=axes, length=(4,) * axes)

    last = (HEAD // 2 + axes - 1) // axes - 1  # of the first group of pairs
    for given, chosen in ((None, base), (50.0, 50.0)):
        waves = zoo.encoding(name, dims, base=given).frequencies.norm(dim=0)  # [G, K/2]
        expected = chosen ** (-2 * axes * last / HEAD)
        assert math.isclose(waves[0, last].item(), expected, rel_tol=1e-4)


@torch.no_grad()
def test_learned_planes_start_orthogonal_with_a_ladder_of_frequencies():
    encoding = made("grape_m", planes=4)
    for first, second in zip(encoding.first, encoding.second, strict=True):
        squares = 10000.0 ** (-torch.arange(4.0) / 4)  # |a| |b| is the frequency
        frame = torch.cat([first, second])
        torch.testing.assert_close(frame @ frame.mT, squares.repeat(2).diag(), atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "parameter", "std"),
    [
        ("grape_a", "gate", HEAD**-0.5),
        ("grape_ap", "path.weight", 0.5 * WIDTH**-0.5),
        ("selective_rope", "kernel", 0.5 / math.sqrt(3)),
        ("selective_rope", "into.weight", WIDTH**-0.5 / math.sqrt(3)),
    ],
)
def test_what_is_drawn_at_first(name, parameter, std):
    values = dict(made(name).named_parameters())[parameter]
    assert abs(values.std(correction=0) / std - 1) < 5 / math.sqrt(2 * values.numel())
    assert values.mean().abs() < 5 * std / math.sqrt(values.numel())
