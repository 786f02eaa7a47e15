"""RePo: pairs (2t, 2t+1) of q_i and k_i rotate by z_i w_t, z = position(silu(gate(x)) content(x))."""

from __future__ import annotations

from dataclasses import replace

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
    compute_scores,
    make_call,
    make_dims,
    make_encoding,
    move_parameters,
)
from heads import compare_content_bias
from literal.repo import choose_positions, repo
from literal.rope import list_frequencies, score_rope
from panels import list_panels
from parameters import HEADS, WIDTH, list_facts, list_shapes, make_initial

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.repo import RePo
from zoo.errors import OptionError


@MASKS
@QUERIES
@pytest.mark.parametrize("options", [{}, {"base": 100.0}], ids=str)
def test_formula(options, queries, causal):
    encoding, call = make_encoding("repo", **options), make_call(queries=queries, causal=causal)
    check_attention(encoding, call, repo(encoding, call, **options), causal)


def test_formula_of_layers_below_the_first():
    dims = make_dims(layer=1, depth=4)
    encoding, call = zoo.encoding("repo", dims, first_layer=2).double(), make_call()
    check_attention(encoding, call, score_rope(call, list_frequencies(8)))
    assert encoding.state_dict() == {}
    assert encoding.reads_positions
    assert not encoding.reads_states


def test_formula_in_packed_documents():
    check_documents("repo", repo)


def test_formula_with_tokens_without_a_position():
    encoding, call = make_encoding("repo"), make_call()
    placed = torch.tensor([False, True, True, False, True, True, True])
    chosen = repo(encoding, call)
    plain = replace(call, x=torch.zeros_like(call.x))  # at z = 0 nothing rotates
    rest = call.x * placed[:, None]
    expected = repo(encoding, replace(call, x=rest))
    found = compute_scores(encoding, call, has_position=placed)
    assert_close(found, expected)
    both = placed[:, None] & placed & call.visible
    assert_close(found[..., both], chosen[..., both])
    neither = ~placed[:, None] & ~placed & call.visible
    assert_close(found[..., neither], repo(encoding, plain)[..., neither])


def test_no_index_enters():
    encoding, call = make_encoding("repo"), make_call()
    moved = replace(call, pos=call.pos.flip(0) * 3 + 0.5)
    assert_close(compute_scores(encoding, moved), compute_scores(encoding, call))


@pytest.mark.parametrize(
    ("depth", "first"), [(16, 5), (12, 4), (6, 2), (4, 1), (2, 1), (1, 0), (None, 0)]
)
def test_the_first_layer_by_default(depth, first):
    for layer in range(depth or 1):
        encoding = zoo.encoding("repo", make_dims(layer=layer, depth=depth))
        assert bool(encoding.state_dict()) == (layer >= first)


def test_facts():
    assert list_facts("repo") == {
        "shared": False,
        "shift_invariant": True,
        "reads_states": True,
        "identity_at_zero": True,
    }
    assert not RePo.reads_positions


def test_parameters():
    assert list_shapes(make_initial("repo", layer=1)) == {
        "gate.weight": (WIDTH // 8, WIDTH),
        "content.weight": (WIDTH // 8, WIDTH),
        "position.weight": (HEADS, WIDTH // 8),
    }


@torch.no_grad()
def test_initial_values():
    """N(0, 0.02^2), of which what lies past three standard deviations is drawn again."""
    encoding = zoo.encoding("repo", Dims(512, 64))
    for weight in encoding.parameters():
        # the standard deviation of a normal distribution that is cut there
        assert abs(weight.std() / (0.02 * 0.98658) - 1) < 5 / (2 * weight.numel()) ** 0.5
        assert 0.05 < weight.abs().max() <= 0.06
    drawn = encoding.gate.weight
    assert drawn.mean().abs() < 5 * 0.02 / drawn.numel() ** 0.5


def test_shared_key_heads_are_refused():
    with pytest.raises(OptionError, match="each query head has its own positions"):
        zoo.encoding("repo", Dims(32, 4, kv_heads=2))
    zoo.encoding("repo", Dims(32, 4, kv_heads=4))


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("repo")
    check_cached_decoding("repo", first_layer=0)


def test_a_vector_in_place_of_queries_is_rotated_as_they_are():
    compare_content_bias("repo")


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_float32_is_exact_at_far_positions(size):
    encoding, call = move_parameters(zoo.encoding("repo", make_dims())), make_call()
    encoding.position.weight *= size
    single = zoo.encoding("repo", make_dims()).requires_grad_(False)
    single.load_state_dict(encoding.state_dict())
    given = {name: getattr(call, name).float() for name in ("q", "k", "x")}
    # the same numbers in float64: what differs is the encoding's own rounding
    encoding.load_state_dict(single.state_dict())
    wide = replace(call, **{name: value.double() for name, value in given.items()})
    chosen = choose_positions(encoding, wide.x[0, 0]).abs().max()
    found = compute_scores(single, replace(call, **given))
    expected = compute_scores(encoding, wide)
    visible = call.visible.expand(found.shape)
    error = (found.double() - expected)[visible].abs().max()
    # positions themselves are float32: 2^-24 of them, in radians at the fastest pair
    assert error < 1e-5 + 20 * float(chosen) * 2**-24


def test_panel_shows_the_chosen_positions():
    panels = list_panels("repo")
    assert list(panels) == ["Chosen positions"]
    assert list(list_panels("repo", first_layer=3)) == ["Rotation frequencies"]


class PositionsOfTheNext(RePo):
    """Each token at the positions that the token before it chose."""

    def prepare(self, tokens):
        return super().prepare(tokens.replace(x=tokens.x.roll(1, dims=1)))


def test_planted_fault():
    check_reference_catches(PositionsOfTheNext, repo)
