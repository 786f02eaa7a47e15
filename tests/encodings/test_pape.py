"""PaPE: scores + sum_m (-a_im (u_im - u_jm)^2 + b_im (u_im - u_jm)) / sqrt(K), u = position(p)."""

from __future__ import annotations

import math

import pytest
import torch
from calls import (
    MASKS,
    QUERIES,
    assert_close,
    check_attention,
    check_cached_decoding,
    check_documents,
    check_reference_catches,
    draw_positions,
    make_call,
    make_encoding,
    move_parameters,
)
from grids import GRIDS, compute_biases
from literal.pape import pape, tabulate, widen_as_released
from panels import list_panels
from parameters import HEADS, WIDTH, is_uniform, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings import pape as module
from zoo.encodings.pape import PaPE

FORMS = pytest.mark.parametrize(
    "options",
    [{}, {"parabolas": 3}, {"rotation_invariant": True}],
    ids=["default", "few", "rotation invariant"],
)
SPREADS = pytest.mark.parametrize(
    "spread", [1, 1000]
)  # as products of rank P^2 + P + 1, and as offsets


def is_low_rank(encoding, pos):
    tokens = zoo.attention.Tokens.at(torch.randn(1, len(pos), encoding.dims.dim).double(), pos)
    heads = torch.randn(1, encoding.dims.heads, len(pos), encoding.dims.head_dim).double()
    call = zoo.attention.AttentionCall(
        heads, heads, heads, heads, tokens, tokens, causal=False, scale=1.0
    )
    modified = encoding.modify(call)
    assert bool(modified.low_rank_biases) != bool(modified.biases)
    return bool(modified.low_rank_biases)


@MASKS
@QUERIES
@FORMS
@SPREADS
def test_formula(options, queries, causal, spread):
    encoding = make_encoding("pape", **options)
    call = make_call(queries=queries, causal=causal, pos=spread * draw_positions(real=True))
    check_attention(encoding, call, pape(encoding, call), causal)


@FORMS
def test_formula_in_packed_documents(options):
    names = [{"name": "pape", **options}]
    check_documents(names, lambda chain, call: pape(chain.pape, call))


@FORMS
@SPREADS
@pytest.mark.parametrize("axes", [2, 3])
def test_formula_on_grids(options, axes, spread):
    encoding = move_parameters(zoo.encoding("pape", Dims(16, 2, axes), **options))
    pos, x = spread * GRIDS[axes], torch.randn(12, 16, dtype=torch.float64)
    assert is_low_rank(encoding, pos) == (spread == 1)
    assert_close(compute_biases(encoding, pos, x=x[None]), tabulate(encoding, x, pos))


@FORMS
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_scores_are_those_of_the_published_module(options, axes):
    encoding = move_parameters(zoo.encoding("pape", Dims(32, 4, axes), **options))
    q, k = torch.randn(2, 2, 4, 9, 8, dtype=torch.float64).unbind()
    x, pos = torch.randn(2, 9, 32).double(), 9 * torch.rand(9, axes).double()
    wide_q, wide_k = widen_as_released(encoding, q, k, x, pos)
    found = zoo.functional.scores(encoding, q, k, pos, x=x)
    assert_close(found, wide_q @ wide_k.mT / math.sqrt(8))


def test_a_class_token_has_no_bias():
    encoding, placed = move_parameters(zoo.encoding("pape", Dims(16, 4, 2))), torch.arange(12) > 0
    x = torch.randn(1, 12, 16).double()
    biases = compute_biases(encoding, GRIDS[2], has_position=placed, x=x)
    assert not biases[:, 0].any()
    assert not biases[:, :, 0].any()
    assert_close(biases[:, 1:, 1:], compute_biases(encoding, GRIDS[2], x=x)[:, 1:, 1:])


@FORMS
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("spread", [100, 1000, 10**5])
def test_float32_is_exact_for_near_keys_however_far_the_grid(options, axes, spread):
    single = zoo.encoding("pape", Dims(64, 2, axes), **options).requires_grad_(False)
    double = zoo.encoding("pape", Dims(64, 2, axes), **options).double().requires_grad_(False)
    double.load_state_dict(single.state_dict())
    near = torch.arange(4.0)[:, None].expand(-1, axes)
    pos = torch.cat([near, near + spread])
    x = torch.randn(1, 8, 64)
    found = compute_biases_of(single, pos, x)
    expected = compute_biases_of(double, pos.double(), x.double())
    for part in (slice(0, 4), slice(4, 8)):
        error = (found.double() - expected)[:, part, part].abs().max()
        # the products of squares are used up to 128, offsets are exact at any spread
        assert error < (0.02 if spread <= 128 else 1e-4)


def compute_biases_of(encoding, pos, x):
    zero = torch.zeros(1, 2, len(pos), 32, dtype=x.dtype)
    return zoo.functional.scores(encoding, zero, zero, pos, x=x)[0]


@pytest.mark.parametrize(("spread", "expected"), [(128, True), (129, False)])
def test_squares_are_multiplied_up_to_a_spread_of_128(spread, expected):
    encoding = make_encoding("pape")
    for start in (0.0, 1e5):
        pos = torch.tensor([start, start + spread]).double()[:, None]
        assert is_low_rank(encoding, pos) == expected


def test_facts():
    assert list_facts("pape") == {
        "shared": False,
        "shift_invariant": True,
        "axes": (1, 2, 3),
        "reads_states": True,
    }


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_parameters(axes):
    encoding = make_initial("pape", axes, kv_heads=2)
    assert list_shapes(encoding) == {
        "position.weight": (50 * HEADS, axes),
        "a.weight": (50 * HEADS, WIDTH),
        "b.weight": (50 * HEADS, WIDTH),
    }
    few = list_shapes(make_initial("pape", axes, parabolas=7))
    assert few["position.weight"] == (7 * HEADS, axes)
    invariant = make_initial("pape", axes, rotation_invariant=True)
    assert list_shapes(invariant) == {"a.weight": (HEADS, WIDTH)}
    assert {name: tuple(one.shape) for name, one in invariant.named_buffers()} == {
        "scale": (HEADS,)
    }
    assert "scale" in invariant.state_dict()


@torch.no_grad()
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_initial_values(axes):
    """Those of torch's linear layers: U(-1, 1) / sqrt(inputs)."""
    encoding = make_initial("pape", axes)
    bounds = {"position": axes**-0.5, "a": WIDTH**-0.5, "b": WIDTH**-0.5}
    for name, bound in bounds.items():
        weight = encoding.get_submodule(name).weight
        assert is_uniform(weight + bound, 2 * bound)
    scale = zoo.encoding("pape", Dims(512, 512, axes), rotation_invariant=True).scale
    assert is_uniform(scale + axes**-0.5, 2 * axes**-0.5)


def test_the_scale_does_not_learn():
    encoding = zoo.encoding("pape", Dims(16, 2, 2), rotation_invariant=True)
    assert not encoding.scale.requires_grad


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("pape")
    check_cached_decoding("pape", rotation_invariant=True)


def test_cached_decoding_past_the_spread_equals_one_pass(monkeypatch):
    """The form of the bias changes between two steps."""
    monkeypatch.setattr(module, "LARGEST_SPREAD", 5.0)
    check_cached_decoding("pape")


def test_panel_shows_mean_curvatures():
    assert (torch.tensor(list(list_panels("pape")["Curvatures"].values.values())) > 0).all()


class CurvaturesOfKeys(PaPE):
    """Parabolas that keys choose."""

    def modify(self, call):
        return super().modify(call.replace(queries=call.queries.replace(x=call.keys.x.flip(1))))


def test_planted_fault():
    check_reference_catches(CurvaturesOfKeys, pape)
