"""LookHere: scores - slope |p_i - p_j| in a field of view of each head, which hides all other keys."""

from __future__ import annotations

import pytest
import torch
from calls import assert_close
from extrapolate import make_extended
from grids import GRIDS, check_class_token, compute_biases
from literal.lookhere import lookhere
from panels import list_panels
from parameters import list_facts, list_shapes, make_initial

import zoo
from zoo.attention.backends.dispatch import attend
from zoo.attention.call import AttentionCall
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims
from zoo.attention.tokens import Tokens
from zoo.encodings.lookhere import LookHere, split_heads
from zoo.errors import OptionError

GROUPS = {4: (4, 0, 0), 6: (4, 0, 2), 8: (4, 0, 4), 12: (4, 4, 4), 16: (8, 4, 4), 24: (8, 8, 8)}
INF = float("inf")


def make_lookhere(heads=12, layer=0, depth=3, cls=LookHere, **options):
    return cls(Dims(8 * heads, heads, 2, (3, 4), layer=layer, depth=depth), **options)


def compute_expected(heads, layer=0, depth=3, pos=None, **options):
    pos = (GRIDS[2] if pos is None else pos).tolist()
    biases = lookhere(GROUPS[heads], pos, layer, depth, **options)
    return torch.tensor(biases, dtype=torch.float64)


@pytest.mark.parametrize("heads", GROUPS)
@pytest.mark.parametrize("fov", [180, 90, 45])
def test_formula(fov, heads):
    biases = compute_biases(make_lookhere(heads, fov=fov), GRIDS[2])
    assert_close(biases, compute_expected(heads, fov=fov))


@pytest.mark.parametrize("distance", ["linear", "sqrt", "square"])
@pytest.mark.parametrize(("layer", "depth"), [(0, 1), (1, 4), (3, 4)])
def test_formula_of_slopes(layer, depth, distance):
    options = {"distance": distance, "layer_slopes": (2.0, 0.25)}
    encoding = make_lookhere(layer=layer, depth=depth, global_slope=0.7, **options)
    options["slopes"] = options.pop("layer_slopes")
    expected = compute_expected(12, layer, depth, scale=0.7, **options)
    assert_close(compute_biases(encoding, GRIDS[2]), expected)


def test_formula_at_real_positions():
    pos = torch.rand(12, 2).double() * 9
    assert_close(compute_biases(make_lookhere(), pos), compute_expected(12, pos=pos))


def test_formula_under_a_causal_mask():
    hidden = torch.ones(12, 12).triu(1).bool()
    expected = compute_expected(12).masked_fill(hidden, -INF)
    assert_close(compute_biases(make_lookhere(), GRIDS[2], causal=True), expected)


def test_a_class_token_has_no_bias_and_is_never_hidden():
    check_class_token("lookhere")


def test_diagonals_do_not_depend_on_the_size_of_patches():
    """Interpolated coordinates are rounded: a key on the edge of a field of view stays in it."""
    pos = grid((7, 7), torch.zeros(0))
    whole = compute_biases(make_lookhere(fov=45), pos).isinf()
    assert torch.equal(compute_biases(make_lookhere(fov=45), pos * (0.1 / 0.3)).isinf(), whole)


def test_facts():
    assert list_facts("lookhere") == {"shared": False, "shift_invariant": True, "axes": (2,)}


def test_parameters():
    assert list_shapes(make_initial("lookhere", axes=2)) == {}


def test_heads_without_groups_are_refused():
    for heads in (1, 2, 3, 5, 10, 20):
        with pytest.raises(OptionError, match="choose 4, 6, 8, 16 or a multiple of 12") as refusal:
            split_heads(heads)
        assert refusal.value.key == "heads"


def test_options_that_would_compute_something_else_are_refused():
    with pytest.raises(OptionError, match="share one module have one slope"):
        make_initial("lookhere", axes=2, shared=True)
    make_initial("lookhere", axes=2, shared=True, layer_slopes=[1.0, 1.0])
    with pytest.raises(OptionError, match=r"has 1 numbers"):
        make_initial("lookhere", axes=2, layer_slopes=[1.0])
    with pytest.raises(OptionError, match=r"Dims\(depth"):
        make_lookhere(layer=1, depth=None)


@pytest.mark.parametrize("backend", ["chunked", "sdpa", "flex"])
@torch.no_grad()
def test_backends_agree_where_a_mask_leaves_only_hidden_keys(backend):
    encoding = zoo.encoding("lookhere", Dims(32, 4, 2))
    q, k, v = torch.randn(3, 1, 4, 12, 8).double()
    mask = torch.zeros(1, 1, 12, 12, dtype=torch.bool)
    mask[..., -1] = True  # heads that look up or left do not see the last token
    tokens = Tokens.at(q.new_zeros(1, 12, 0), GRIDS[2])
    call = encoding.modify(AttentionCall(q, k, v, q, tokens, tokens, False, 1.0, mask=mask))
    (out, _), (expected, _) = attend(call, backend), attend(call, "reference")
    assert_close(out, expected)
    assert not expected[:, 0, :8].any()
    assert expected[:, 1].all()


def test_slope_divides_by_the_factor_of_the_grid():
    dims = Dims(32, 4, 2, (3, 4), depth=2)
    plain = zoo.encoding("lookhere", dims, global_slope=3.0)
    assert plain.extrapolations((2.0, 2.0))["slope"] == {"global_slope": 1.5}
    assert plain.extrapolations((0.5, 0.5))["slope"] == {"global_slope": 3.0}
    assert plain.extrapolations((2.0, 1.0)).keys() == {"linear"}
    pos = grid((6, 8), torch.zeros(0)).double()
    biases = compute_biases(make_extended("lookhere", dims, "slope", (2.0, 2.0)), pos)
    assert_close(biases, compute_biases(zoo.encoding("lookhere", dims), pos / 2))


def test_panel_shows_the_slopes():
    panels = list_panels("lookhere", Dims(32, 4, 2, (3, 4), depth=2), causal=False)
    assert set(panels["Slopes"].values.values()) == {0.75}


class Mirrored(LookHere):
    """Left and right have changed places."""

    def _edges(self, like):
        return [(-right, up) for right, up in super()._edges(like)]


def test_planted_fault():
    with pytest.raises(AssertionError):
        assert_close(compute_biases(make_lookhere(cls=Mirrored), GRIDS[2]), compute_expected(12))
