"""The interpreters compute one description alike, each as far as it can, and say so where they cannot."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from zoo.attention.backends import fused
from zoo.attention.backends.dispatch import attend, choose
from zoo.attention.backends.reference import scores, weights
from zoo.attention.call import Lookup, Terms
from zoo.attention.tokens import Tokens
from zoo.errors import Invalid

EXACT = 1e-12
FLOAT32, BFLOAT16 = (
    2e-3,
    2e-2,
)  # at positions of eight thousand, where one channel of bfloat16 errs by 16
B, H, M, K, V = 2, 3, 10, 16, 16


def call(n=M, m=M, dtype=torch.float64, v=V, causal=False, document=None, first=0):
    """A bare attention call of m keys, of which the last n are queries, at positions from `first` on."""
    q, k, values = (torch.randn(B, H, *size).to(dtype) for size in ((n, K), (m, K), (m, v)))
    pos = torch.arange(first, first + m, dtype=torch.promote_types(dtype, torch.float32))[:, None]
    keys = Tokens.at(torch.zeros(B, m, 0, dtype=dtype), pos, document=document)
    return Terms(q, k, values, q, keys.last(n), keys, causal, K**-0.5)


def slope(terms):
    """-(i - j) / 2^h as a bias."""
    return terms.add_bias(lambda b, h, i, j: -terms.offset(b, i, j)[..., 0] * 0.5**h)


def sides(terms):
    """The two sides of the same, [1, H, N, 1] and [1, H, M, 1]."""
    steep = 0.5 ** torch.arange(H)[:, None, None]
    return -terms.queries.pos[:, None] * steep, terms.keys.pos[:, None] * steep


def slope_as_one_factor(terms):
    rows, columns = sides(terms)
    ones = [torch.ones_like(side) for side in (rows, columns)]
    return terms.add_factor(torch.cat([rows, ones[0]], -1), torch.cat([ones[1], columns], -1))


def slope_as_two_factors(terms):
    rows, columns = sides(terms)
    one = rows.new_ones(1, 1, 1, 1)
    return terms.add_factor(rows, one).add_factor(one, columns)


def wide_factor(terms, rank=2 * K + 1):
    return terms.add_factor(
        torch.randn(1, H, terms.q.shape[2], rank).double(),
        torch.randn(B, 1, terms.k.shape[2], rank).double(),
    )


def looked_up(terms):
    """A table per query, read by clipped distance."""
    table = torch.randn(B, 1, terms.q.shape[2], 5).double()
    return terms.add_bias(
        Lookup(table, lambda b, h, i, j: terms.offset(b, i, j)[..., 0].long().clamp(-2, 2) + 2)
    )


def ridden(terms):
    return terms.replace(riders=torch.randn(B, H, terms.k.shape[2], 5).to(terms.q.dtype))


def plain(terms):
    return terms


ANY = (plain, slope, slope_as_one_factor, slope_as_two_factors, wide_factor, looked_up, ridden)
DOCUMENT = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, -1, -1], [-1, -1, 0, 0, 0, 0, 0, 0, 0, 0]])


@torch.no_grad()
def same(terms, backend):
    """Whether an interpreter computes what the definition says."""
    for one, other in zip(attend(terms, backend), attend(terms, "dense"), strict=True):
        torch.testing.assert_close(one, other, atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("v", [V, 6, 40])
@pytest.mark.parametrize("document", [None, DOCUMENT], ids=["", "documents"])
@pytest.mark.parametrize("n", [M, 4, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rewrite", ANY)
def test_sdpa_agrees(rewrite, causal, n, document, v):
    same(rewrite(call(n, v=v, causal=causal, document=document)), "sdpa")
    same(ridden(slope(rewrite(call(n, v=v, causal=causal, document=document)))), "sdpa")


@pytest.mark.parametrize("document", [None, DOCUMENT], ids=["", "documents"])
@pytest.mark.parametrize("n", [M, 4])
@pytest.mark.parametrize("rewrite", ANY)
def test_flex_agrees(rewrite, n, document):
    same(rewrite(call(n, v=6, causal=True, document=document)), "flex")


def test_flex_adds_up_all_that_it_is_given():
    same(ridden(slope(slope_as_two_factors(wide_factor(call(4))))), "flex")


@pytest.mark.parametrize("rewrite", ANY)
def test_dense_is_the_definition(rewrite):
    terms = rewrite(call(4, causal=True, document=DOCUMENT))
    out, riders = attend(terms, "dense")
    bias = terms.bias()
    for b, h, i in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(4)).tolist():
        seen = [j for j in range(i + 7) if DOCUMENT[b, i + 6] == DOCUMENT[b, j] >= 0]
        expected = torch.zeros(V + 5).double()
        if seen:
            added = [0.0 if bias is None else bias(*map(torch.tensor, (b, h, i, j))) for j in seen]
            shares = torch.stack(
                [
                    terms.q[b, h, i] @ terms.k[b, h, j] / 4 + a
                    for j, a in zip(seen, added, strict=True)
                ]
            ).softmax(0)
            values = terms.v if riders is None else torch.cat([terms.v, terms.riders], -1)
            expected[: values.shape[-1]] = shares @ values[b, h, seen]
        torch.testing.assert_close(out[b, h, i], expected[:V], atol=EXACT, rtol=EXACT)
        if riders is not None:
            torch.testing.assert_close(riders[b, h, i], expected[V:], atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("rewrite", ANY)
def test_gradients_agree(rewrite):
    base = call(causal=True, document=DOCUMENT)
    leaves = [one.requires_grad_() for one in (base.q, base.k, base.v)]
    terms = rewrite(base)
    results = [
        torch.autograd.grad(attend(terms, backend)[0].square().sum(), leaves)
        for backend in ("dense", "sdpa")
    ]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=EXACT, rtol=EXACT)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["dense", "sdpa", "flex"])
def test_padding_gets_nothing(backend):
    out, _ = attend(call(document=DOCUMENT, causal=True), backend)
    assert (out.transpose(1, 2)[DOCUMENT < 0] == 0).all()
    assert (out.transpose(1, 2)[DOCUMENT >= 0] != 0).any(-1).all()


# factors


def far(rewrite, dtype):
    """How far sdpa is from the exact answer for the same numbers, at positions of eight thousand."""
    torch.manual_seed(0)
    terms = call(64, 64, dtype, causal=True, first=8129)
    exact = terms.replace(q=terms.q.double(), k=terms.k.double(), v=terms.v.double())
    expected, _ = attend(slope(exact), "dense")
    return (attend(rewrite(terms), "sdpa")[0].double() - expected).abs().max()


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, FLOAT32), (torch.bfloat16, BFLOAT16)]
)
@pytest.mark.parametrize("rewrite", [slope_as_one_factor, slope_as_two_factors])
def test_factors_keep_their_precision_far_out(rewrite, dtype, tolerance):
    assert far(rewrite, dtype) < tolerance


def test_factors_in_one_channel_would_lose_it(monkeypatch):
    monkeypatch.setattr(
        fused, "_split", lambda left, right, dtype: [(left.to(dtype), right.to(dtype))]
    )
    assert far(slope_as_two_factors, torch.bfloat16) > 10 * BFLOAT16


def test_splits_add_up():
    left, right = 8192 * torch.rand(1, 1, 64, 2), torch.rand(1, 1, 64, 2)
    pairs = fused._split(left, right, torch.bfloat16)
    assert all(a.dtype == b.dtype == torch.bfloat16 for a, b in pairs)
    total = sum(a.double() @ b.double().mT for a, b in pairs)
    torch.testing.assert_close(total, left.double() @ right.double().mT, atol=0, rtol=1e-6)


def test_a_factor_constant_along_rows_takes_no_channel():
    terms = call(4)
    huge = torch.full((1, 1, 4, 1), 1e30).double()
    with_it = terms.add_factor(huge, huge[:, :, :1])
    assert fused._channels(with_it) == ([], [])
    assert torch.equal(attend(with_it, "sdpa")[0], attend(terms, "sdpa")[0])
    assert (scores(with_it) > 1e29).all()


def test_a_factor_constant_along_columns_keeps_its_channel():
    terms = call(4)
    _, columns = sides(terms)
    with_it = terms.add_factor(columns.new_ones(1, 1, 1, 1), columns)
    assert [one.shape for one in fused._channels(with_it)[1]] == [(B, H, M, 1)]
    assert not torch.allclose(attend(with_it, "sdpa")[0], attend(terms, "sdpa")[0])


def test_float16_takes_factors_as_a_mask():
    terms = call(8, 8, torch.float16, causal=True, first=70000)  # beyond what float16 can hold
    exact = terms.replace(q=terms.q.double(), k=terms.k.double(), v=terms.v.double())
    out, expected = attend(slope_as_two_factors(terms), "sdpa")[0], attend(slope(exact), "dense")[0]
    torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=1e-2)


# what needs whole rows


def test_rescored_scores_enter_the_softmax():
    terms = call(causal=True)
    plain_scores = scores(terms)
    squared = terms.replace(
        rescore=lambda values, visible, span: values * values.sum(-1, keepdim=True)
    )
    whole = terms.q @ terms.k.mT * terms.scale
    expected = (whole * whole.sum(-1, keepdim=True)).masked_fill(
        plain_scores.isinf(), float("-inf")
    )
    torch.testing.assert_close(scores(squared), expected, atol=EXACT, rtol=EXACT)
    torch.testing.assert_close(
        attend(squared)[0], expected.softmax(-1) @ terms.v, atol=EXACT, rtol=EXACT
    )


def test_rescoring_sees_biases_and_what_is_visible():
    seen = []
    terms = slope(slope_as_one_factor(call(causal=True)))
    scores(
        terms.replace(
            rescore=lambda values, visible, span: seen.append((values, visible)) or values
        )
    )
    bias = terms.grid(terms.bias())
    torch.testing.assert_close(
        seen[0][0], terms.q @ terms.k.mT * terms.scale + bias, atol=EXACT, rtol=EXACT
    )
    assert torch.equal(seen[0][1], torch.ones(1, 1, M, M, dtype=torch.bool).tril())


def test_own_weights_replace_the_softmax():
    terms = call(4, causal=True).replace(weigh=lambda values, visible, span: values.sigmoid())
    torch.testing.assert_close(weights(terms), scores(terms).sigmoid(), atol=EXACT, rtol=EXACT)
    torch.testing.assert_close(
        attend(terms)[0], scores(terms).sigmoid() @ terms.v, atol=EXACT, rtol=EXACT
    )


def test_what_is_read_out_is_added():
    vectors = torch.randn(M, V).double()
    terms = call(4)
    read = terms.replace(readout=lambda shares, span: shares @ vectors)
    expected = attend(terms)[0] + weights(terms) @ vectors
    torch.testing.assert_close(attend(read)[0], expected, atol=EXACT, rtol=EXACT)


def test_riders_do_not_see_the_readout():
    terms = ridden(call(4)).replace(readout=lambda shares, span: shares.new_ones(B, H, 4, V))
    torch.testing.assert_close(
        attend(terms)[1], weights(terms) @ terms.riders, atol=EXACT, rtol=EXACT
    )


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
@pytest.mark.parametrize("field", ["rescore", "weigh", "readout"])
def test_a_fused_interpreter_refuses_whole_rows(field, backend):
    terms = call().replace(**{field: lambda *args: args[0]})
    with pytest.raises(
        Invalid, match=f"{backend} cannot compute this attention: {field} needs whole rows"
    ):
        attend(terms, backend)


def test_an_unknown_interpreter_is_refused():
    with pytest.raises(
        Invalid, match="no backend 'flash'; known are auto, dense, chunked, sdpa, flex"
    ):
        attend(call(), "flash")


# the choice


@pytest.mark.parametrize(
    ("rewrite", "device", "name", "reason"),
    [
        (plain, "cpu", "sdpa", "nothing but q, k and v"),
        (plain, "cuda", "sdpa", "nothing but q, k and v"),
        (slope, "cpu", "chunked", "a bias for each pair"),
        (slope, "cuda", "flex", "index function"),
        (slope_as_one_factor, "cpu", "sdpa", "no mask"),
        (slope_as_one_factor, "cuda", "sdpa", "no mask"),
        (wide_factor, "cpu", "chunked", "large rank"),
        (ridden, "cuda", "sdpa", "nothing but"),
        (lambda terms: terms.replace(rescore=max), "cuda", "chunked", "rescore needs whole rows"),
        (
            lambda terms: terms.replace(weigh=max, readout=max),
            "cpu",
            "chunked",
            "weigh and readout needs whole rows",
        ),
    ],
)
def test_the_choice_is_read_off_the_fields(rewrite, device, name, reason):
    chosen, why = choose(rewrite(call()), device)
    assert chosen == name
    assert reason in why


def test_a_slim_factor_needs_no_mask(monkeypatch):
    masks = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watched(q, k, v, blocked, **options):
        masks.append((blocked, options["is_causal"]))
        return kernel(q, k, v, blocked, **options)

    monkeypatch.setattr(fused.F, "scaled_dot_product_attention", watched)
    attend(slope_as_two_factors(call(causal=True)))
    attend(slope(call(causal=True)), "sdpa")
    attend(call(4, causal=True))
    assert masks[0] == (None, True)
    assert [blocked is not None and not causal for blocked, causal in masks[1:]] == [True, True]


def test_scores_are_never_rounded_by_autocast():
    terms = call(dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        values = scores(terms)
    assert values.dtype == torch.float32
    exact = terms.q.float() @ terms.k.float().mT * terms.scale
    torch.testing.assert_close(values, exact)


def test_flex_is_compiled_once_for_a_shape(monkeypatch):
    counter = CompileCounterWithBackend("eager")
    for name in ("flex_attention", "create_block_mask"):
        monkeypatch.setattr(fused, name, torch.compile(getattr(fused, name), backend=counter))
    outs = [attend(slope(call(128, 128, torch.float32, causal=True)), "flex")[0] for _ in range(3)]
    assert counter.frame_count == 2
    assert not torch.equal(outs[0], outs[1])
    torch._dynamo.reset()


def test_documents_that_differ_have_masks_of_their_own():
    for document in (
        torch.tensor([[0] * 5 + [1] * 5, [0] * 3 + [1] * 7]),
        torch.tensor([[0] * 5 + [1] * 5]),
    ):
        terms = call(causal=True, document=document)
        torch.testing.assert_close(
            attend(terms, "flex")[0], attend(terms, "dense")[0], atol=EXACT, rtol=EXACT
        )
