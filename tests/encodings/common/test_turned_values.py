"""Values that turn as keys do, and outputs that turn back, for each encoding that has the option."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from calls import assert_close, make_call, move_parameters
from literal.call import Call
from literal.carope import carope
from literal.comrope_ap import comrope_ap
from literal.comrope_ld import comrope_ld
from literal.grape_m import grape_m, grape_m_mixture
from literal.grape_m_contextual import grape_m_contextual
from literal.liere import liere
from literal.mrope import mrope
from literal.repo import repo
from literal.rope import rope
from literal.rope_axial import rope_axial
from literal.rope_mixed import rope_mixed
from literal.rotation import score_rotations
from literal.selective_rope import selective_rope
from literal.string import cayley, circulant
from literal.turned_values import attend_turned

import zoo
from zoo.attention.backends.dispatch import attend, choose_backend
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.mixers.linear import LinearAttention
from zoo.options.signature import read_option_names

HEAD = 12
PLACED = torch.tensor([False, True, True, True, False, True, True])
BY_MATRIX = {
    "rope": (rope, (1,), {}),
    "rope_axial": (rope_axial, (2, 3), {}),
    "rope_mixed": (rope_mixed, (1, 2), {}),
    "liere": (liere, (1, 2), {"block": 4}),
    "comrope_ap": (comrope_ap, (1, 2), {"block": 2}),
    "comrope_ld": (comrope_ld, (1, 3), {"block": 4}),
    "string": (cayley, (1, 2), {}),
    "mrope": (mrope([2, 2, 2], "interleaved"), (3,), {}),
}
BY_PAIR = {
    "grape_m": grape_m,
    "grape_m_contextual": grape_m_contextual,
    "carope": carope,
    "selective_rope": selective_rope,
    "repo": repo,
}
MATRICES = [
    *(
        (name, turn, axes, options)
        for name, (turn, on, options) in BY_MATRIX.items()
        for axes in on
    ),
    ("string", circulant, 2, {"kind": "circulant"}),
]


def make(name, axes=1, heads=2, **options):
    dims = Dims(heads * HEAD, heads, axes, (4,) * axes)
    return move_parameters(zoo.encoding(name, dims, turn_values=True, **options), 0.3)


def attend_heads(encoding, call, pos=None, **more):
    """Attend by `zoo.functional` at positions [M, P]."""
    pos = call.pos[:, None] if pos is None else pos
    return zoo.functional.attend(encoding, call.q, call.k, call.v, pos, x=call.x, **more)


def test_each_encoding_with_the_option_has_a_reference():
    names = {
        name
        for name in zoo.encoding_names()
        if "turn_values" in read_option_names("encodings", name)
    }
    assert names == {*BY_MATRIX, *BY_PAIR}


@pytest.mark.parametrize(("name", "turn", "axes", "options"), MATRICES)
@pytest.mark.parametrize("case", ["last queries", "tokens without a position"])
def test_formula_by_the_matrix_of_each_token(name, turn, axes, options, case):
    encoding = make(name, axes, **options)
    call = make_call(2, HEAD, queries=3 if case == "last queries" else 7, causal=True)
    pos = torch.randn(7, axes, dtype=torch.float64)
    placed = None if case == "last queries" else PLACED

    def score(call: Call) -> torch.Tensor:
        found = score_rotations(turn, encoding, call.q, call.k, pos, placed)
        return found.masked_fill(~call.visible, -torch.inf)

    expected = attend_turned(score, call)
    assert_close(attend_heads(encoding, call, pos, causal=True, has_position=placed), expected)


@pytest.mark.parametrize("name", BY_PAIR)
@pytest.mark.parametrize("queries", [pytest.param(7, marks=pytest.mark.nightly), 3])
def test_formula_by_the_score_of_each_pair(name, queries):
    encoding, call = make(name), make_call(2, HEAD, queries=queries)
    expected = attend_turned(partial(BY_PAIR[name], encoding), call)
    assert_close(attend_heads(encoding, call, causal=True), expected)


def test_formula_of_planes_that_do_not_commute():
    encoding, call = make("grape_m", planes=2), make_call(2, HEAD)
    expected = attend_turned(partial(grape_m_mixture, encoding), call)
    assert_close(attend_heads(encoding, call, causal=True), expected)


@pytest.mark.parametrize(("name", "axes"), [("rope", 1), ("rope_axial", 2), ("rope_mixed", 2)])
def test_the_factor_of_yarn_sharpens_scores_only(name, axes):
    scaling = {"rule": "yarn", "factor": 2.0, "attention_factor": 3.0}
    encoding, call = make(name, axes, scaling=scaling), make_call(2, HEAD)
    plain = make(name, axes, scaling={**scaling, "attention_factor": 1.0})
    plain.load_state_dict(encoding.state_dict())
    pos = call.pos[:, None].expand(-1, axes)

    def score(encoding, call):
        return zoo.functional.scores(encoding, call.q, call.k, pos, causal=True)

    expected = attend_turned(partial(score, encoding), call, partial(score, plain))
    assert_close(attend_heads(encoding, call, pos, causal=True), expected)
    with pytest.raises(OptionError, match="cos and sin that attention_factor 0 makes 0"):
        make("rope", scaling={**scaling, "attention_factor": 0.0})


def test_a_token_that_sees_itself_alone_has_its_value():
    call = make_call(2, HEAD, causal=False)
    document = torch.arange(7)
    assert_close(attend_heads(make("string"), call, document=document), call.v)


@pytest.mark.parametrize(
    "names", [["rope", "fox"], ["rope", "key_offset"], ["rope_mixed", "ssmax"]]
)
def test_caches_in_parts_and_windows_give_what_one_pass_gives(names):
    first, second = names
    entries = [{"name": first, "turn_values": True}, second]
    layer = zoo.Attention(Dims(24, 2, length=16, kv_heads=1), entries, causal=True).double()
    layer.layer.window = 4
    x, cache = torch.randn(2, 9, 24).double(), KeyValueCache()
    parts = [layer(part, context=cache) for part in x.split((5, 1, 3), dim=1)]
    assert_close(torch.cat(parts, dim=1), layer(x))
    assert cache.measure()[0].tokens < 9


@pytest.mark.parametrize("name", ["rope", "carope", "grape_m"])
def test_backends_are_chosen_as_without_it(name):
    x, pos = torch.randn(1, 5, 24), torch.arange(5.0)[:, None]
    turned, plain = (
        SelfAttention(Dims(24, 2), causal=True).describe(
            Tokens.at(x, pos), Chain.of(zoo.encoding(name, Dims(24, 2), turn_values=one)), Context()
        )[1]
        for one in (True, False)
    )
    assert plain.transform_output is None
    for device in ("cpu", "cuda"):
        assert choose_backend(turned, device) == choose_backend(plain, device)
    outputs = [attend(turned, backend)[0] for backend in ("reference", "chunked", "sdpa")]
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[0], outputs[2])


def test_scores_and_weights_do_not_depend_on_it():
    encoding, call = make("rope"), make_call(2, HEAD)
    plain = zoo.encoding("rope", encoding.dims)
    for compute in (zoo.functional.scores, zoo.functional.weights):
        found = [compute(one, call.q, call.k, call.pos[:, None]) for one in (encoding, plain)]
        assert torch.equal(*found)


# refused


@pytest.mark.parametrize("name", ["tape", "path", "pope", "fope", "xpos"])
def test_what_is_no_rotation_refuses_it_and_says_why(name):
    with pytest.raises(OptionError, match=f"{name}: turn_values: .*; choose rope"):
        zoo.encoding(name, Dims(24, 2), turn_values=True)


@pytest.mark.parametrize("other", ["stickbreaking", "shaw"])
@pytest.mark.parametrize("name", ["rope", "carope"])
def test_chains_that_add_to_the_output_refuse_it(name, other):
    entries = [{"name": name, "turn_values": True}, other]
    layer = zoo.Attention(Dims(24, 2), entries, causal=True)
    with pytest.raises(OptionError, match=f"turned outputs of {name}.*writes extra_output"):
        layer(torch.randn(1, 3, 24))


def test_the_keys_of_shaw_without_its_values_are_taken():
    entries = [{"name": "rope", "turn_values": True}, {"name": "shaw", "values": False}]
    layer = zoo.Attention(Dims(24, 2), entries, causal=True)
    assert layer(torch.randn(1, 3, 24)).isfinite().all()


@pytest.mark.parametrize("name", ["rope", "repo", "carope"])
def test_values_of_another_width_are_refused(name):
    encoding, call = make(name), make_call(2, HEAD)
    wide = replace(call, v=torch.cat([call.v, call.v], -1))
    with pytest.raises(OptionError, match="values of 24 channels cannot turn as keys of 12 do"):
        attend_heads(encoding, wide, causal=True)


def test_linear_attention_refuses_it():
    encoding = zoo.encoding("rope", Dims(24, 2), turn_values=True)
    layer = LinearAttention(encoding.dims)
    tokens = Tokens.at(torch.randn(1, 3, 24), torch.arange(3.0)[:, None])
    with pytest.raises(OptionError, match="rope changes values of an attention call"):
        layer(tokens, Chain.of(encoding), Context())
