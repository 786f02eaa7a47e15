"""What Python users call: encodings by name, and attention under them for heads and coordinates that they bring."""

from __future__ import annotations

import copy

import pytest
import torch

import zoo
from zoo.attention.coordinates import CONVENTIONS
from zoo.encodings.common.chains import build_shortest_chain
from zoo.errors import OptionError
from zoo.laws.attention_stack import perturb

EXACT = 1e-10
DIMS = zoo.Dims(48, 2, 2, (3, 4))
POS = torch.cartesian_prod(torch.arange(3.0), torch.arange(4.0)).double()


def heads(n=12, m=12, batch=2, dtype=torch.float64):
    return (torch.randn(batch, 2, count, 24).to(dtype) for count in (n, m, m))


def near(actual, expected):
    torch.testing.assert_close(actual, expected, atol=EXACT, rtol=EXACT)


# names


def test_names_are_sorted_and_look_up_their_class():
    names = zoo.encoding_names()
    assert list(names) == sorted(names)
    assert {"none", "rope", "learned", "comrope_ld"} <= set(names)
    assert all(zoo.encoding_class(name).name == name for name in names)


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(
        OptionError, match="no encodings named 'comrope_dl'; did you mean comrope_ld"
    ):
        zoo.encoding("comrope_dl", DIMS)
    with pytest.raises(ValueError, match="'xyzzy'; known are"):
        zoo.encoding_class("xyzzy")


def test_an_unknown_option_is_told_the_nearest():
    with pytest.raises(
        OptionError, match=r"liere: blok: unknown key; did you mean block\?"
    ) as caught:
        zoo.encoding("liere", DIMS, blok=4)
    assert caught.value.key == "blok"


def test_an_unknown_convention_is_told_the_nearest():
    with pytest.raises(OptionError, match=r"got 'fractions'; did you mean fraction\?"):
        zoo.encoding("liere", DIMS, coordinates="fractions")


def test_options_may_be_given_in_three_ways():
    made = [
        zoo.encoding("liere", DIMS, block=4),
        zoo.encoding({"name": "liere", "block": 4}, DIMS),
        zoo.encoding({"name": "liere", "options": {"block": 4}}, DIMS),
    ]
    assert {tuple(one.generators.shape) for one in made} == {(2, 2, 6, 6)}


def test_every_encoding_takes_sharing_and_a_convention():
    made = zoo.encoding("liere", DIMS, shared=True, coordinates="index")
    assert (made.shared, made.coordinates) == (True, "index")
    assert (type(made).shared, type(made).coordinates) == (False, "growing")


def test_a_list_makes_a_chain():
    made = zoo.encoding(["learned", {"name": "liere", "block": 4}], DIMS)
    assert isinstance(made, zoo.Chain)
    assert [link.name for link in made] == ["learned", "liere"]


def test_a_list_takes_no_options_beside_it():
    with pytest.raises(OptionError, match="in its entries"):
        zoo.encoding(["learned", "liere"], DIMS, block=4)


def test_a_name_stands_once_in_a_list():
    with pytest.raises(OptionError, match="learned is in the list twice"):
        zoo.encoding(["learned", "rope_axial", "learned"], DIMS)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"dim": 48, "heads": 5}, "48 is not divisible by heads 5"),
        ({"dim": 0, "heads": 1}, "dim 0 is not positive"),
        ({"dim": 48, "heads": 0}, "heads 0"),
        ({"dim": 48, "heads": 2, "axes": 2, "length": (3,)}, "each of 2 axes"),
        ({"dim": 48, "heads": 2, "axes": 2, "length": (3, 0)}, "positive size"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(OptionError, match=message):
        zoo.Dims(**sizes)


@pytest.mark.parametrize(
    ("name", "dims", "options", "message"),
    [
        ("rope", zoo.Dims(6, 2), {}, "head dim"),
        ("rope_axial", zoo.Dims(12, 2, 2), {}, "divisible by 4"),
        ("rope_mixed", zoo.Dims(8, 2, 3), {}, "at least 6"),
        ("comrope_ap", zoo.Dims(48, 2, 2), {}, "24"),
        ("comrope_ld", zoo.Dims(48, 2), {"block": 5}, "block 5"),
        ("liere", zoo.Dims(48, 2), {"block": 25}, "between 2 and the head dim 24"),
        ("sinusoidal", zoo.Dims(50, 2, 2), {}, "divisible by 4"),
        ("learned", zoo.Dims(48, 2), {}, "training size"),
    ],
)
def test_what_does_not_fit_an_encoding_is_refused(name, dims, options, message):
    with pytest.raises(OptionError, match=message):
        zoo.encoding(name, dims, **options)


def test_what_does_not_fit_names_the_encoding_once():
    with pytest.raises(OptionError, match=r"^learned: [^:]*training size"):
        zoo.encoding("learned", zoo.Dims(48, 2))
    with pytest.raises(OptionError, match=r"^liere: block 25"):
        zoo.encoding(["none", {"name": "liere", "block": 25}], zoo.Dims(48, 2))


def test_one_length_stands_for_every_axis():
    assert zoo.Dims(48, 2, 2, 7).sizes == (7, 7)
    assert zoo.Dims(48, 2, 2, 7).tokens == 49
    assert zoo.Dims(48, 2).head_dim == 24


def test_a_list_of_lengths_is_a_tuple_of_them():
    dims = zoo.Dims(48, 2, 2, length=[3, 4])
    assert (dims.length, dims.sizes, dims.tokens) == ((3, 4), (3, 4), 12)
    assert hash(dims) == hash(zoo.Dims(48, 2, 2, length=(3, 4)))
    learned = zoo.encoding("learned", dims)
    assert learned.table.shape == (12, 48)
    with pytest.raises(OptionError, match="for each of 2 axes"):
        zoo.Dims(48, 2, 2, length=[3])


# attention


@pytest.mark.parametrize("name", ["none", "rope_axial", "liere", "comrope_ld"])
def test_weights_are_the_softmax_of_scores_and_attend_mixes_by_them(name):
    encoding, (q, k, v) = zoo.encoding(name, DIMS).double(), heads()
    for causal in (False, True):
        scores = zoo.functional.scores(encoding, q, k, POS, causal=causal)
        weights = zoo.functional.weights(encoding, q, k, POS, causal=causal)
        near(weights, scores.softmax(-1))
        near(zoo.functional.attend(encoding, q, k, v, POS, causal=causal), weights @ v)


def test_a_causal_mask_hides_later_pairs():
    q, k, _ = heads(4)
    scores = zoo.functional.scores(zoo.encoding("none", DIMS), q, k, POS, causal=True)
    hidden = torch.arange(12) > torch.arange(8, 12)[:, None]
    assert torch.equal(scores.isinf(), hidden.expand(2, 2, 4, 12))


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "flex"])
def test_every_interpreter_can_be_asked_for(backend):
    encoding, (q, k, v) = zoo.encoding("rope_axial", DIMS), heads()
    near(
        zoo.functional.attend(encoding, q, k, v, POS, causal=True, backend=backend),
        zoo.functional.weights(encoding, q, k, POS, causal=True) @ v,
    )


def test_the_last_queries_give_the_last_rows():
    encoding, (q, k, v) = zoo.encoding("liere", DIMS).double(), heads()
    for function, arguments in (
        (zoo.functional.scores, (k,)),
        (zoo.functional.weights, (k,)),
        (zoo.functional.attend, (k, v)),
    ):
        for causal in (False, True):
            whole = function(encoding, q, *arguments, POS, causal=causal)
            near(function(encoding, q[:, :, 7:], *arguments, POS, causal=causal), whole[:, :, 7:])


def test_positions_may_belong_to_samples():
    encoding, (q, k, _) = zoo.encoding("liere", DIMS).double(), heads()
    own = torch.stack([POS, POS.flip(0) * 0.5])
    each = [zoo.functional.scores(encoding, q[b, None], k[b, None], own[b]) for b in range(2)]
    near(zoo.functional.scores(encoding, q, k, own), torch.cat(each))


def test_an_unplaced_mask_may_belong_to_samples():
    encoding, (q, k, _) = zoo.encoding("rope_axial", DIMS), heads()
    placed = torch.rand(2, 12) > 0.3
    each = [
        zoo.functional.scores(encoding, q[b, None], k[b, None], POS, has_position=placed[b])
        for b in range(2)
    ]
    near(zoo.functional.scores(encoding, q, k, POS, has_position=placed), torch.cat(each))


def test_integer_positions_are_positions():
    encoding, (q, k, _) = zoo.encoding("rope_axial", DIMS), heads()
    near(
        zoo.functional.scores(encoding, q, k, POS.long()),
        zoo.functional.scores(encoding, q, k, POS),
    )


def test_encodings_that_read_states_ask_for_them():
    encoding = zoo.encoding(["fox", "alibi", "path"], zoo.Dims(48, 2))
    q, k, v = heads()
    pos = torch.arange(12.0)[:, None].double()
    message = "fox and path read the states of tokens, not only their heads; pass x"
    for call in (
        lambda **given: zoo.functional.scores(encoding, q, k, pos, **given),
        lambda **given: zoo.functional.weights(encoding, q, k, pos, **given),
        lambda **given: zoo.functional.attend(encoding, q, k, v, pos, **given),
        lambda **given: zoo.functional.score_mod(encoding, q, k, pos, **given),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            call(causal=True)
        assert caught.value.key == "x"


def test_states_that_nobody_reads_change_nothing():
    encoding, (q, k, _) = zoo.encoding("rope_axial", DIMS), heads()
    near(
        zoo.functional.scores(encoding, q, k, POS, x=torch.randn(2, 12, 48).double()),
        zoo.functional.scores(encoding, q, k, POS),
    )


def test_float64_is_kept_throughout():
    encoding, (q, k, v) = zoo.encoding("comrope_ld", DIMS).double(), heads()
    assert zoo.functional.scores(encoding, q, k, POS.float()).dtype == torch.float64
    assert zoo.functional.attend(encoding, q, k, v, POS.float()).dtype == torch.float64
    assert (
        zoo.functional.embed(
            zoo.encoding("learned", DIMS).double(), torch.zeros(1, 12, 48).double(), POS
        ).dtype
        == torch.float64
    )


def test_half_precision_comes_back_as_it_was_given():
    encoding, (q, k, v) = zoo.encoding("rope_axial", DIMS), heads(dtype=torch.bfloat16)
    assert zoo.functional.attend(encoding, q, k, v, POS.float()).dtype == torch.bfloat16
    assert zoo.functional.scores(encoding, q, k, POS.float()).dtype == torch.float32


def test_a_chain_embeds_and_turns():
    made = zoo.encoding(["learned", "rope_axial"], DIMS).double()
    learned, axial = made
    x, (q, k, _) = torch.randn(2, 12, 48).double(), heads()
    near(zoo.functional.embed(made, x, POS), zoo.functional.embed(learned, x, POS))
    near(zoo.functional.scores(made, q, k, POS), zoo.functional.scores(axial, q, k, POS))


def test_embedding_leaves_the_mode_and_the_gradients_alone():
    made = zoo.encoding("learned", DIMS)
    assert not zoo.functional.embed(made, torch.zeros(1, 12, 48), POS.float()).requires_grad
    assert made.training
    assert zoo.functional.embed(made.eval(), torch.zeros(1, 12, 48), POS.float()) is not None
    assert not made.training


# the layer


def test_a_layer_takes_a_name_a_list_or_an_encoding():
    x = torch.randn(2, 12, 48)
    for one in (
        "rope_axial",
        {"name": "liere", "block": 4},
        ["learned", "rope_axial"],
        zoo.encoding("learned", DIMS),
    ):
        assert zoo.Attention(DIMS, one)(x).shape == x.shape


def test_a_layer_without_positions_takes_its_grid_and_convention():
    layer, x = zoo.Attention(DIMS, "comrope_ld").double(), torch.randn(2, 12, 48).double()
    fractions = (POS + 0.5) / torch.tensor([3.0, 4.0])
    near(layer(x), layer(x, fractions))
    assert not torch.allclose(layer(x), layer(x, POS))


def test_a_text_may_have_any_length_and_an_image_may_not():
    text = zoo.Attention(zoo.Dims(48, 2), "rope")
    assert text(torch.randn(1, 5, 48)).shape == (1, 5, 48)
    with pytest.raises(OptionError, match=r"11 tokens are not the grid \(3, 4\)"):
        zoo.Attention(DIMS, "rope_axial")(torch.randn(1, 11, 48))


def test_a_layer_keeps_documents_apart():
    layer, x = zoo.Attention(DIMS, "rope_axial").double(), torch.randn(1, 12, 48).double()
    out = layer(x, POS, document=torch.tensor([0] * 5 + [1] * 7))
    near(out[:, :5], layer(x[:, :5], POS[:5]))


def test_a_layer_is_copied_with_its_encoding():
    layer = zoo.Attention(DIMS, "learned")
    copied, x = copy.deepcopy(layer), torch.randn(1, 12, 48)
    with torch.no_grad():
        copied.encoding.table.add_(1)
        assert not torch.allclose(copied(x), layer(x))


def test_what_needs_a_causal_mask_says_so():
    made = zoo.encoding("rope_axial", DIMS)
    made.causal_only = True
    with pytest.raises(OptionError, match="needs a causal mask"):
        zoo.Attention(DIMS, made)
    zoo.Attention(DIMS, made, causal=True)


def test_the_example_of_the_layer_runs():
    layer = zoo.Attention(zoo.Dims(64, heads=4, axes=2, length=(14, 14)), "comrope_ld")
    assert layer(torch.randn(2, 196, 64)).shape == (2, 196, 64)


def test_a_layer_goes_on_where_its_context_ended():
    layer, x = (
        zoo.Attention(zoo.Dims(16, 2, length=9), ["learned", "rope", "fox"], causal=True),
        torch.randn(1, 9, 16),
    )
    cache = zoo.KeyValueCache()
    parts = [layer(part, context=cache) for part in x.split((5, 1, 3), dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x))


TEXT = [name for name in zoo.encoding_names() if 1 in zoo.encoding_class(name).axes]


@torch.no_grad()
@pytest.mark.parametrize("name", TEXT)
def test_a_causal_layer_does_not_see_how_long_its_text_will_be(name):
    chain = build_shortest_chain(zoo.encoding_class(name))

    def make(**options):
        entries = [{"name": one.name, **options} for one in chain]
        return zoo.Attention(zoo.Dims(32, 2, length=9, depth=2), entries, causal=True)

    for convention in CONVENTIONS[1:]:
        with pytest.raises(OptionError, match=f"has {convention} coordinates, which depend on"):
            make(coordinates=convention)
    if zoo.encoding_class(name).coordinates != "index":
        with pytest.raises(OptionError, match=f"{name} has .* add coordinates: index"):
            make()

    layer, x = make(coordinates="index").double().eval(), torch.randn(1, 9, 32).double()
    perturb(layer.encoding)
    cache = zoo.KeyValueCache()
    parts = [layer(part, context=cache) for part in x.split((1, 1, 5, 2), dim=1)]
    near(torch.cat(parts, 1), layer(x))
    near(layer(x[:, :4]), layer(x)[:, :4])


def test_a_layer_sees_documents_from_their_beginning():
    layer, x = (
        zoo.Attention(zoo.Dims(16, 2, length=9), ["learned", "alibi"], causal=True),
        torch.randn(1, 9, 16),
    )
    packed = layer(x, document=torch.tensor([0] * 4 + [1] * 5))
    torch.testing.assert_close(packed, torch.cat([layer(x[:, :4]), layer(x[:, 4:])], 1))


@pytest.mark.parametrize("name", ["alibi", "grape_a", "kerple", "rope", "fire"])
def test_a_layer_remembers_tokens_that_lie_ahead(name):
    layer = zoo.Attention(zoo.Dims(16, 2, length=16), name, causal=True).double()
    x, pos = torch.randn(1, 7, 16).double(), torch.tensor([0.0, 1, 2, 3, 9, 5, 6])[:, None].double()
    cache = zoo.KeyValueCache()
    parts = [
        layer(x[:, part], pos[part], context=cache) for part in (slice(5), slice(5, 6), slice(6, 7))
    ]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x, pos))


def test_an_unknown_word_for_an_option_is_told_the_nearest():
    with pytest.raises(
        OptionError, match=r"kind: expected one of .*, got 'pow'; did you mean power\?"
    ):
        zoo.encoding("kerple", zoo.Dims(16, 2), kind="pow")


@pytest.mark.parametrize(
    ("name", "options", "printed"),
    [
        ("cape", {"scale": 0.5}, "cape: scale: must be at least 1, got 0.5"),
        ("cape", {"local_shift": float("nan")}, "local_shift: expected a finite number, got nan"),
        ("grape_m", {"planes": 0}, "planes: must be at least 1, got 0"),
        ("rope", {"base": -2.0}, "base: must be at least 1"),
        (
            "rope",
            {"scaling": {"rule": "linear", "factor": 0.5}},
            r"scaling\.factor: must be at least 1, got 0.5",
        ),
        (
            "rope",
            {"scaling": {"rule": "linear", "factr": 2.0}},
            r"scaling\.factr: unknown key; did you mean scaling\.factor\?",
        ),
        (
            "rope",
            {"scaling": {"rule": "linear"}},
            r"scaling\.factor: missing; expected a finite number",
        ),
        (
            "rope",
            {"scaling": {"rule": "yarm", "factor": 2.0}},
            r"scaling\.rule: expected one of .*; did you mean yarn\?",
        ),
    ],
)
def test_an_option_out_of_its_bounds_is_refused(name, options, printed):
    with pytest.raises(OptionError, match=printed):
        zoo.encoding(name, zoo.Dims(16, 2), **options)


def test_waves_that_all_turn_alike_are_stretched_too():
    encoding = zoo.encoding(
        "rope", zoo.Dims(16, 2, length=8), base=1, scaling={"rule": "yarn", "factor": 2.0}
    )
    q = torch.randn(1, 2, 8, 8)
    assert zoo.functional.scores(encoding, q, q, torch.arange(8.0)[:, None]).isfinite().all()


@pytest.mark.parametrize("name", ["rope", "alibi", "sandwich"])
def test_whole_positions_are_not_rounded_to_the_type_of_heads(name):
    encoding, q = zoo.encoding(name, zoo.Dims(16, 2)), torch.randn(1, 2, 4, 8).bfloat16()
    pos = torch.arange(997, 1001)[:, None]
    assert torch.equal(
        zoo.functional.scores(encoding, q, q, pos),
        zoo.functional.scores(encoding, q, q, pos.float()),
    )


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_coordinates_of_other_axes_are_refused(shape):
    encoding, pos = zoo.encoding("alibi", zoo.Dims(16, 2)), torch.zeros(shape)
    q, x = torch.randn(1, 2, 4, 8), torch.randn(1, 4, 16)
    for call in (
        lambda: zoo.functional.scores(encoding, q, q, pos),
        lambda: zoo.functional.embed(encoding, x, pos),
        lambda: zoo.Attention(zoo.Dims(16, 2), "alibi")(x, pos),
    ):
        with pytest.raises(OptionError, match="pos has the shape"):
            call()


def test_a_place_that_is_nowhere_is_never_read():
    placed, pos = torch.tensor([False, True, True]), torch.tensor([[float("nan")], [0.0], [1.0]])
    q = torch.randn(2, 1, 2, 3, 8)
    for name in ("alibi", "kerple", "rope", "sandwich", "xpos"):
        encoding = zoo.encoding(name, zoo.Dims(16, 2))
        found = zoo.functional.scores(encoding, *q, pos, has_position=placed)
        assert torch.equal(
            found, zoo.functional.scores(encoding, *q, pos.nan_to_num(), has_position=placed)
        )
