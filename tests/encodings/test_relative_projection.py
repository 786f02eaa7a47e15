"""Relative projection: scores + r_i . profiles[:, p_i - p_j] within reach, r_i = clip(scale query(x_i))."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from calls import (
    MASKS,
    QUERIES,
    check_attention,
    check_cached_decoding,
    check_documents,
    check_reference_catches,
    make_call,
    make_encoding,
)
from grids import compute_biases
from literal.relative_projection import relative_projection
from panels import list_panels
from parameters import HEADS, WIDTH, check_normal, list_facts, list_shapes, make_initial
from transformers.models.inkling2 import modeling_inkling2
from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig

import zoo
from zoo.attention.encoding import Dims
from zoo.encodings.relative_projection import RelativeProjection
from zoo.errors import OptionError

CASES = {
    "default": {},
    "short reach": {"reach": 3, "width": 5},
    "clip": {"reach": 4, "clip": 1.5},
    "log_scale": {"reach": 4, "log_scale": [0.3, 2.0]},
    "both": {"width": 3, "clip": 0.8, "log_scale": [0.1, 3.0]},
}


def pick_literal(options):
    return {key: options[key] for key in ("clip", "log_scale") if key in options}


@MASKS
@QUERIES
@pytest.mark.parametrize("case", CASES)
def test_formula(case, queries, causal):
    encoding = make_encoding("relative_projection", **CASES[case])
    call = make_call(queries=queries, causal=causal)
    expected = relative_projection(encoding, call, **pick_literal(CASES[case]))
    check_attention(encoding, call, expected, causal)


def test_a_clip_shortens_some_mixtures_and_leaves_others():
    encoding, call = make_encoding("relative_projection", width=3, clip=3.0), make_call()
    weight = encoding.query.weight.unflatten(0, (4, 3))
    lengths = (encoding.scale * torch.einsum("hrd,bnd->bnhr", weight, call.x)).norm(dim=-1)
    assert (lengths > 3).any()
    assert (lengths < 3).any()
    check_attention(encoding, call, relative_projection(encoding, call, clip=3.0))


@pytest.mark.parametrize("case", ["clip", "both"])
def test_formula_in_packed_documents(case):
    literal = partial(relative_projection, **pick_literal(CASES[case]))
    names = [{"name": "relative_projection", **CASES[case]}]
    check_documents(names, lambda chain, call: literal(chain.relative_projection, call))


def test_tokens_without_a_position_have_no_bias():
    encoding, placed = make_encoding("relative_projection", log_scale=[0.3, 2.0]), torch.ones(7)
    placed[[0, 4]] = 0
    call = make_call(pos=torch.arange(7.0).double())
    found = compute_biases(
        encoding, call.pos[:, None], causal=True, x=call.x[:1], has_position=placed.bool()
    )
    assert not found[:, [0, 4]].nan_to_num(neginf=0).any()
    assert not found[:, :, [0, 4]].nan_to_num(neginf=0).any()
    assert found[:, 2, 1].all()


@torch.no_grad()
@pytest.mark.parametrize("log_scaling", [False, True])
def test_biases_are_those_of_inkling_at_its_sizes(log_scaling):
    config = Inkling2TextConfig()
    heads, reach = config.num_attention_heads, config.rel_extent
    released = modeling_inkling2.Inkling2RelativePositionBias(config, heads, reach, log_scaling)
    options = {"reach": reach, "width": config.d_rel, "clip": config.rel_l2_clip_threshold}
    if log_scaling:
        options["log_scale"] = [config.log_scaling_alpha, config.log_scaling_n_floor]
    dims = Dims(config.hidden_size, heads, head_dim=config.head_dim)
    encoding = zoo.encoding("relative_projection", dims, **options)
    torch.nn.init.normal_(released.proj, std=0.3)
    torch.nn.init.normal_(released.norm.scale, mean=1.0, std=0.3)
    torch.nn.init.normal_(released.linear.weight, std=0.04)
    encoding.load_state_dict(
        {
            "query.weight": released.linear.weight,
            "scale": released.norm.scale,
            "profiles": released.proj,
        }
    )
    places = torch.tensor([0, 1, 2, 200, 201, 900, 1023, 1024, 1025, 2000]) + 127_000
    x = torch.randn(1, len(places), config.hidden_size)
    x[:, ::3] *= 0.2
    expected = released(x, places[:, None] - places, places[None])
    q = torch.randn(1, heads, len(places), config.head_dim)
    call = {"pos": places.float()[:, None], "x": x, "causal": True}
    found = zoo.functional.scores(encoding, 0 * q, q, **call)
    visible = torch.ones(len(places), len(places)).tril().bool()
    torch.testing.assert_close(found[..., visible], expected[..., visible], atol=1e-5, rtol=1e-5)
    mixtures = released.linear(x).unflatten(-1, (heads, -1)) * released.norm.scale
    is_long = mixtures.norm(dim=-1) > config.rel_l2_clip_threshold
    assert is_long.any()
    assert not is_long.all()

    # queries grow as the mixtures do
    scaled = released.norm.log_scale(q.transpose(1, 2), places[None]) if log_scaling else None
    grown = q if scaled is None else scaled.transpose(1, 2)
    products = grown @ q.mT / config.head_dim**0.5 + expected
    found = zoo.functional.scores(encoding, q, q, **call)
    torch.testing.assert_close(found[..., visible], products[..., visible], atol=2e-5, rtol=1e-5)


def test_facts():
    assert list_facts("relative_projection") == {
        "shared": False,
        "shift_invariant": True,
        "reads_states": True,
    }
    assert not make_initial("relative_projection", log_scale=[0.1, 8.0]).shift_invariant


@pytest.mark.parametrize(
    ("options", "width", "reach", "scale"),
    [({}, 16, 256, False), ({"width": 3, "reach": 9, "clip": 2.0}, 3, 9, True)],
    ids=str,
)
def test_parameters(options, width, reach, scale):
    shapes = {"query.weight": (width * HEADS, WIDTH), "profiles": (width, reach)}
    shapes |= {"scale": (HEADS, width)} if scale else {}
    assert list_shapes(make_initial("relative_projection", kv_heads=2, **options)) == shapes


@torch.no_grad()
def test_initial_values():
    encoding = make_initial("relative_projection", clip=2.0)
    check_normal(encoding.query.weight, 0.02)
    assert (encoding.scale == 1).all()
    assert (encoding.profiles == 0).all()


def test_cached_decoding_equals_one_pass():
    check_cached_decoding("relative_projection", reach=4)
    check_cached_decoding("relative_projection", clip=0.5, log_scale=[0.4, 3.0])


def test_a_cache_keeps_nothing_for_it():
    encoding = make_encoding("relative_projection")
    call = make_call()
    tokens = zoo.attention.Tokens.at(call.x, call.pos[:, None])
    assert encoding.prepare(tokens).per_token == {}


def test_panel_shows_the_mean_profile_of_each_head():
    panel = list_panels("relative_projection", reach=4)["Mean profiles"]
    assert all(len(line) == 4 for line in panel.lines.values())


def test_a_log_scale_is_two_numbers():
    for log_scale, part in (([0.1], "has 1 numbers"), ([0.1, 0.5], "n is 0.5, expected at least")):
        with pytest.raises(OptionError, match=part):
            zoo.encoding("relative_projection", Dims(16, 2), log_scale=log_scale)


class ClippedBeforeScale(RelativeProjection):
    """Mixtures that are clipped before they are scaled."""

    def _mix(self, queries):
        scale = self.scale
        with torch.no_grad():
            kept = scale.clone()
            scale.fill_(1)
            mixture = super()._mix(queries)
            scale.copy_(kept)
        return mixture * scale


def test_planted_fault():
    check_reference_catches(
        ClippedBeforeScale,
        lambda encoding, call: relative_projection(encoding, call, clip=1.0),
        options={"clip": 1.0},
    )
