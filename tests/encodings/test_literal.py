"""Encodings of sequences against literal transcriptions of their formulas."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from calls import (
    BATCH,
    QUERIES,
    SEEN,
    TOKENS,
    agree,
    attended,
    called,
    dims,
    made,
    moved,
    near,
    scores,
    spots,
    weights,
)
from literal import biases as literal
from literal import rope_tape as rotations
from literal.biases import Call
from torch import nn

import zoo
from zoo.attention.encoding import Dims
from zoo.errors import OptionError

# biases of distance

BIASES = {
    "alibi": ("alibi", {}, literal.alibi),
    "kerple_log": ("kerple", {}, literal.kerple_log),
    "kerple_power": ("kerple", {"kind": "power"}, literal.kerple_power),
    "fire": ("fire", {"threshold": 6.0}, partial(literal.fire, threshold=6.0)),
    "fire_512": ("fire", {}, literal.fire),
}


@SEEN
@QUERIES
@pytest.mark.parametrize("case", BIASES)
def test_biases_of_distance(case, queries, causal):
    name, options, bias = BIASES[case]
    encoding, call = made(name, **options), called(queries=queries, causal=causal)
    agree(encoding, call, literal.biased(call, bias(encoding)), causal)


@SEEN
@pytest.mark.parametrize("case", BIASES)
def test_biases_of_real_distances(case, causal):
    name, options, bias = BIASES[case]
    encoding, call = made(name, **options), called(causal=causal, pos=spots(real=True))
    agree(encoding, call, literal.biased(call, bias(encoding)), causal)


@SEEN
@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12])
def test_alibi_has_slopes_for_any_number_of_heads(heads, causal):
    encoding, call = made("alibi", heads), called(heads, causal=causal)
    agree(encoding, call, literal.biased(call, literal.alibi(encoding)), causal)


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_has_the_published_slopes(heads, exponents):
    zero = torch.zeros(1, heads, 2, 4, dtype=torch.float64)
    bias = zoo.scores(made("alibi", heads, 4), zero, zero, torch.tensor([[3.0], [4.0]]))
    near(bias[0, :, 1, 0], -(2 ** -torch.tensor(exponents, dtype=torch.float64)))


@SEEN
@QUERIES
@pytest.mark.parametrize("options", [{}, {"num_buckets": 8, "max_distance": 10}])
def test_t5(options, queries, causal):
    encoding, call = made("t5", **options), called(queries=queries, causal=causal)
    agree(encoding, call, literal.biased(call, literal.t5(encoding, causal, **options)), causal)


def found(causal, tokens=201):
    """Buckets of distances 0 .. 200 to earlier keys, and to later ones, read off a table that holds their numbers."""
    encoding = zoo.encoding("t5", Dims(8, 2)).double().requires_grad_(False)
    encoding.table.copy_(torch.arange(32.0)[:, None].expand(32, 2))
    zero = torch.zeros(1, 2, tokens, 4, dtype=torch.float64)
    seen = zoo.scores(encoding, zero, zero, torch.arange(float(tokens))[:, None], causal=causal)[
        0, 1
    ]
    return seen[-1].flip(0), seen[0]


def counted(starts):
    """The bucket of each distance up to 200, where each begins at one of `starts`."""
    return torch.tensor(
        [sum(start <= d for start in starts) - 1 for d in range(201)], dtype=torch.float64
    )


ONE_SIDED = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
TWO_SIDED = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]


def test_t5_has_thirty_two_buckets_of_earlier_keys():
    earlier, later = found(causal=True)
    near(earlier, counted(ONE_SIDED))
    assert later[1:].isneginf().all()


def test_t5_has_sixteen_buckets_on_either_side():
    earlier, later = found(causal=False)
    near(earlier, counted(TWO_SIDED))
    near(later[1:], 16 + counted(TWO_SIDED)[1:])


@pytest.mark.parametrize(
    ("buckets", "reach", "causal"),
    [(6, 20, True), (10, 40, False), (32, 16, False), (32, 17, True)],
)
def test_any_even_number_of_buckets_will_do(buckets, reach, causal):
    encoding, call = made("t5", num_buckets=buckets, max_distance=reach), called(causal=causal)
    agree(
        encoding, call, literal.biased(call, literal.t5(encoding, causal, buckets, reach)), causal
    )


@pytest.mark.parametrize(("reach", "causal", "own"), [(16, True, 16), (8, False, 8)])
def test_buckets_that_reach_no_further_than_those_of_one_distance_are_refused(reach, causal, own):
    with pytest.raises(OptionError, match=f"max_distance {reach} must be more than {own}"):
        agree(made("t5", max_distance=reach), called(causal=causal), 0, causal)


@SEEN
@pytest.mark.parametrize("distance", [0, 1, 7, 8, 15, 16, 32, 64, 113, 127, 128, 129, 5000])
def test_the_references_buckets_are_those_of_the_table(distance, causal):
    table = counted(ONE_SIDED if causal else TWO_SIDED)
    assert literal.bucket(distance, causal) == table[min(distance, 200)]
    assert literal.bucket(-distance, causal) == (
        0 if causal or not distance else 16 + table[min(distance, 200)]
    )


# relative vectors


@SEEN
@QUERIES
@pytest.mark.parametrize("reach", [3, 16])
def test_shaw(reach, queries, causal):
    encoding, call = made("shaw", max_distance=reach), called(queries=queries, causal=causal)
    expected = literal.shaw(encoding, call, reach)
    shares = literal.softmax(expected)
    near(scores(encoding, call, causal), expected)
    near(weights(encoding, call, causal), shares)
    near(
        attended(encoding, call, causal),
        shares @ call.v + literal.shaw_readout(encoding, call, shares, reach),
    )


@SEEN
def test_shaw_without_values_changes_scores_only(causal):
    encoding, call = made("shaw", max_distance=3, values=False), called(causal=causal)
    assert {name for name, _ in encoding.named_parameters()} == {"key"}
    agree(encoding, call, literal.shaw(encoding, call, 3), causal)


def test_a_query_that_is_turned_meets_shaws_vectors_as_it_was():
    encoding, call = made(["rope", {"name": "shaw", "max_distance": 3, "values": False}]), called()
    waves = rotations.plain(8)
    q, k = (rotations.each_turned(one, call.pos, waves) for one in (call.q, call.k))
    turned, still = replace(call, q=q, k=k), replace(call, k=0 * call.k)
    both = literal.all_pairs(turned, literal.product_of(turned)) + literal.shaw(
        encoding.shaw, still, 3
    )
    near(scores(encoding, call), both)


@QUERIES
@pytest.mark.parametrize("real", [False, True])
def test_transformer_xl(real, queries):
    encoding, call = made("transformer_xl"), called(queries=queries, pos=spots(real))
    agree(encoding, call, literal.transformer_xl(encoding, call))


def test_transformer_xl_is_as_exact_far_off_as_near():
    encoding, pos = made("transformer_xl"), torch.tensor([0.0, 1, 2, 5, 6, 9])[:, None]
    q, k = torch.randn(2, 1, encoding.dims.heads, 6, encoding.dims.head_dim)
    near = zoo.scores(encoding.float(), q, k, pos, causal=True)
    torch.testing.assert_close(zoo.scores(encoding, q, k, pos + 2**20, causal=True), near)


def test_the_base_of_transformer_xl_is_an_option():
    encoding, call = made("transformer_xl", base=50.0), called()
    agree(encoding, call, literal.transformer_xl(encoding, call, 50.0))


@SEEN
@QUERIES
def test_tupe(queries, causal):
    encoding, call = (
        made("tupe"),
        called(queries=queries, causal=causal, pos=torch.arange(TOKENS).double() + 4),
    )
    agree(encoding, call, literal.tupe(encoding, call), causal)


PLACED = torch.tensor([False, True, True, True, False, True, True])


@SEEN
@QUERIES
def test_tupe_resets_tokens_without_a_place(queries, causal):
    pos = torch.tensor([0.0, 0, 1, 2, 3, 3, 4])
    encoding, call = made("tupe"), called(queries=queries, causal=causal, pos=pos)
    near(scores(encoding, call, causal, has_position=PLACED), literal.tupe(encoding, call, PLACED))


@SEEN
def test_tupe_with_relative_biases(causal):
    encoding, call = made(["tupe", "t5"]), called(causal=causal, pos=torch.arange(TOKENS).double())
    bias = literal.biased(replace(call, q=0 * call.q), literal.t5(encoding.t5, causal))
    agree(encoding, call, literal.tupe(encoding.tupe, call) + bias, causal)


# rows of scores


@QUERIES
@pytest.mark.parametrize("case", BIASES)
def test_dape_over_biases(case, queries):
    name, options, bias = BIASES[case]
    encoding, call = (
        made([{"name": name, **options}, {"name": "dape", "hidden": 5}]),
        called(queries=queries),
    )
    agree(encoding, call, literal.dape(encoding.dape, call, bias(getattr(encoding, name))))


def test_dape_takes_all_biases_before_it_together():
    encoding, call = made(["alibi", "kerple", "dape"]), called()
    one, other = literal.alibi(encoding.alibi), literal.kerple_log(encoding.kerple)
    agree(
        encoding,
        call,
        literal.dape(encoding.dape, call, lambda h, i, j: one(h, i, j) + other(h, i, j)),
    )


@QUERIES
@pytest.mark.parametrize("positions", [2, 3, 64])  # the first two are less than the gates' sums
def test_cope(positions, queries):
    encoding, call = made("cope", max_positions=positions), called(queries=queries)
    agree(encoding, call, literal.cope(encoding, call, literal.product_of(call), positions))


def test_the_clamp_of_cope_acts():
    encoding, call = made("cope", max_positions=3), called()
    free = made("cope", max_positions=64)
    free.table[:3] = encoding.table
    assert not torch.allclose(scores(encoding, call), scores(free, call))


def test_cope_counts_by_scores_that_are_turned_and_biased():
    encoding, call = made(["rope", "alibi", {"name": "cope", "max_positions": 4}]), called()
    q, k = (rotations.each_turned(one, call.pos, rotations.plain(8)) for one in (call.q, call.k))
    product, bias = literal.product_of(replace(call, q=q, k=k)), literal.alibi(encoding.alibi)

    def reaching(b, h, i, j):
        return product(b, h, i, j) + bias(h, call.pos[i], call.pos[j])

    agree(encoding, call, literal.cope(encoding.cope, call, reaching, 4))


# forgetting, and breaking a stick


@QUERIES
def test_fox(queries):
    encoding, call = made("fox"), called(queries=queries)
    agree(encoding, call, literal.fox(encoding, call))


@QUERIES
@pytest.mark.parametrize("inclusive", [False, True])
def test_stickbreaking(inclusive, queries):
    encoding, call = made("stickbreaking", inclusive=inclusive), called(queries=queries)
    shares, left = literal.stickbreaking(call, inclusive)
    near(weights(encoding, call), shares)
    near(attended(encoding, call), shares @ call.v + left[..., None] * encoding.remainder[:, None])


# documents

DOCUMENTS = torch.tensor([-1, 0, 0, 0, 1, 1, 1])


def packed(names, heads=4, head=8):
    """A causal layer over packed documents: what it makes of them, its encoding, and the call that it makes."""
    layer = zoo.Attention(dims(heads, head), names, causal=True)
    moved(layer)
    x, pos = (
        torch.randn(BATCH, TOKENS, heads * head, dtype=torch.float64),
        torch.tensor([0.0, 0, 1, 2, 0, 1, 2]).double(),
    )
    q, k, v = (
        one(x).unflatten(-1, (heads, head)).transpose(1, 2)
        for one in (layer.layer.q_proj, layer.layer.k_proj, layer.layer.v_proj)
    )
    same = (DOCUMENTS[:, None] == DOCUMENTS) & (DOCUMENTS >= 0)
    call = Call(q, k, v, pos, same.tril(), x)
    return layer(x, pos[:, None], document=DOCUMENTS), layer, call


def merged(layer, heads):
    return nn.functional.linear(
        heads.transpose(1, 2).flatten(2), layer.layer.o_proj.weight, layer.layer.o_proj.bias
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("alibi", lambda e, call: literal.biased(call, literal.alibi(e))),
        ("t5", lambda e, call: literal.biased(call, literal.t5(e, True))),
        ("kerple", lambda e, call: literal.biased(call, literal.kerple_log(e))),
        ("fire", lambda e, call: literal.biased(call, literal.fire(e))),
        ("transformer_xl", literal.transformer_xl),
        ("tupe", literal.tupe),
        (["alibi", "dape"], lambda e, call: literal.dape(e.dape, call, literal.alibi(e.alibi))),
        ("cope", lambda e, call: literal.cope(e, call, literal.product_of(call))),
        ("fox", literal.fox),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_documents_are_attended_to_apart(names, expected):
    out, layer, call = packed(names)
    near(out, merged(layer, literal.softmax(expected(layer.encoding, call)) @ call.v))


def test_shaws_values_are_read_within_documents():
    out, layer, call = packed("shaw")
    shares = literal.softmax(literal.shaw(layer.encoding, call))
    near(out, merged(layer, shares @ call.v + literal.shaw_readout(layer.encoding, call, shares)))


def test_each_document_breaks_a_stick_of_its_own():
    out, layer, call = packed("stickbreaking")
    shares, left = literal.stickbreaking(call)
    near(out, merged(layer, shares @ call.v + left[..., None] * layer.encoding.remainder[:, None]))
