"""The interpreters compute one description alike, each as far as it can, and say so where they cannot."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from zoo.attention.backends import fused
from zoo.attention.backends.dispatch import attend, choose_backend
from zoo.attention.backends.reference import scores, weights
from zoo.attention.call import AttentionCall, Lookup
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

EXACT = 1e-12
FLOAT32, BFLOAT16 = (
    2e-3,
    2e-2,
)  # at positions of eight thousand, where one channel of bfloat16 errs by 16
B, H, M, K, V = 2, 3, 10, 16, 16


def make_call(n=M, m=M, dtype=torch.float64, v=V, causal=False, document=None, first=0):
    """A bare attention call of m keys, of which the last n are queries, at positions from `first` on."""
    q, k, values = (torch.randn(B, H, *size).to(dtype) for size in ((n, K), (m, K), (m, v)))
    pos = torch.arange(first, first + m, dtype=torch.promote_types(dtype, torch.float32))[:, None]
    keys = Tokens.at(torch.zeros(B, m, 0, dtype=dtype), pos, document=document)
    return AttentionCall(q, k, values, q, keys.last(n), keys, causal, K**-0.5)


def slope(call):
    """-(i - j) / 2^h as a bias."""
    return call.add_bias(lambda b, h, i, j: -call.offset(b, i, j)[..., 0] * 0.5**h)


def sides(call):
    """The two sides of the same, [1, H, N, 1] and [1, H, M, 1]."""
    steep = 0.5 ** torch.arange(H)[:, None, None]
    return -call.queries.pos[:, None] * steep, call.keys.pos[:, None] * steep


def slope_as_one_factor(call):
    rows, columns = sides(call)
    ones = [torch.ones_like(side) for side in (rows, columns)]
    return call.add_low_rank_bias(torch.cat([rows, ones[0]], -1), torch.cat([ones[1], columns], -1))


def slope_as_two_factors(call):
    rows, columns = sides(call)
    one = rows.new_ones(1, 1, 1, 1)
    return call.add_low_rank_bias(rows, one).add_low_rank_bias(one, columns)


def wide_factor(call, rank=2 * K + 1):
    return call.add_low_rank_bias(
        torch.randn(1, H, call.q.shape[2], rank).double(),
        torch.randn(B, 1, call.k.shape[2], rank).double(),
    )


def add_lookup(call):
    """A table per query, read by clipped distance."""
    table = torch.randn(B, 1, call.q.shape[2], 5).double()
    return call.add_bias(
        Lookup(table, lambda b, h, i, j: call.offset(b, i, j)[..., 0].long().clamp(-2, 2) + 2)
    )


def ridden(call):
    return call.replace(extra_values=torch.randn(B, H, call.k.shape[2], 5).to(call.q.dtype))


def plain(call):
    return call


ANY = (plain, slope, slope_as_one_factor, slope_as_two_factors, wide_factor, add_lookup, ridden)
DOCUMENT = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, -1, -1], [-1, -1, 0, 0, 0, 0, 0, 0, 0, 0]])


@torch.no_grad()
def same(call, backend):
    """Whether an interpreter computes what the definition says."""
    for one, other in zip(attend(call, backend), attend(call, "reference"), strict=True):
        torch.testing.assert_close(one, other, atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("v", [V, 6, 40])
@pytest.mark.parametrize("document", [None, DOCUMENT], ids=["", "documents"])
@pytest.mark.parametrize("n", [M, 4, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rewrite", ANY)
def test_sdpa_agrees(rewrite, causal, n, document, v):
    same(rewrite(make_call(n, v=v, causal=causal, document=document)), "sdpa")
    same(ridden(slope(rewrite(make_call(n, v=v, causal=causal, document=document)))), "sdpa")


@pytest.mark.parametrize("document", [None, DOCUMENT], ids=["", "documents"])
@pytest.mark.parametrize("n", [M, 4])
@pytest.mark.parametrize("rewrite", ANY)
def test_flex_agrees(rewrite, n, document):
    same(rewrite(make_call(n, v=6, causal=True, document=document)), "flex")


def test_flex_adds_up_all_that_it_is_given():
    same(ridden(slope(slope_as_two_factors(wide_factor(make_call(4))))), "flex")


@pytest.mark.parametrize("rewrite", ANY)
def test_dense_is_the_definition(rewrite):
    call = rewrite(make_call(4, causal=True, document=DOCUMENT))
    out, extra = attend(call, "reference")
    bias = call.bias_function()
    for b, h, i in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(4)).tolist():
        seen = [j for j in range(i + 7) if DOCUMENT[b, i + 6] == DOCUMENT[b, j] >= 0]
        expected = torch.zeros(V + 5).double()
        if seen:
            added = [0.0 if bias is None else bias(*map(torch.tensor, (b, h, i, j))) for j in seen]
            shares = torch.stack(
                [
                    call.q[b, h, i] @ call.k[b, h, j] / 4 + a
                    for j, a in zip(seen, added, strict=True)
                ]
            ).softmax(0)
            values = call.v if extra is None else torch.cat([call.v, call.extra_values], -1)
            expected[: values.shape[-1]] = shares @ values[b, h, seen]
        torch.testing.assert_close(out[b, h, i], expected[:V], atol=EXACT, rtol=EXACT)
        if extra is not None:
            torch.testing.assert_close(extra[b, h, i], expected[V:], atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("rewrite", ANY)
def test_gradients_agree(rewrite):
    base = make_call(causal=True, document=DOCUMENT)
    leaves = [one.requires_grad_() for one in (base.q, base.k, base.v)]
    call = rewrite(base)
    results = [
        torch.autograd.grad(attend(call, backend)[0].square().sum(), leaves)
        for backend in ("reference", "sdpa")
    ]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=EXACT, rtol=EXACT)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["reference", "sdpa", "flex"])
def test_padding_gets_nothing(backend):
    out, _ = attend(make_call(document=DOCUMENT, causal=True), backend)
    assert (out.transpose(1, 2)[DOCUMENT < 0] == 0).all()
    assert (out.transpose(1, 2)[DOCUMENT >= 0] != 0).any(-1).all()


# further masks and dropout


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa", "flex"])
@pytest.mark.parametrize("rewrite", [plain, slope, slope_as_one_factor])
def test_a_mask_hides_what_documents_hide(rewrite, backend):
    call = rewrite(make_call(causal=True))
    documents = call.replace(keys=make_call(document=DOCUMENT).keys)
    documents = documents.replace(queries=documents.keys)
    mask = (DOCUMENT[:, :, None] == DOCUMENT[:, None]) & (DOCUMENT >= 0)[:, :, None]
    with torch.no_grad():
        out, _ = attend(call.replace(mask=mask[:, None]), backend)
        expected, _ = attend(documents, "reference")
    torch.testing.assert_close(out, expected, atol=EXACT, rtol=EXACT)


def with_dropout(rewrite):
    """A call with dropout 0.3 whose values are rows of the identity: its output is its weights."""
    call = rewrite(make_call(causal=True))
    return call.replace(v=torch.eye(M).double().expand(B, H, M, M).clone(), dropout=0.3)


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
@pytest.mark.parametrize("rewrite", [plain, slope])
def test_dropout_clears_weights_and_scales_the_others(rewrite, backend):
    call = with_dropout(rewrite)
    kept = weights(call) / (1 - 0.3)
    out, _ = attend(call, backend)
    is_clear = (out == 0) & (kept > 0)
    torch.testing.assert_close(
        out[~is_clear], kept.broadcast_to(out.shape)[~is_clear], atol=EXACT, rtol=EXACT
    )
    share = is_clear.sum() / (B * H * M * (M + 1) / 2)
    assert 0.15 < share < 0.45  # of 330 weights, so 0.3 to five standard deviations


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
def test_gradients_are_those_of_the_weights_that_dropout_left(backend):
    call = with_dropout(slope)
    call.v.requires_grad_()
    out, _ = attend(call, backend)
    (grad,) = torch.autograd.grad(out.sum(), call.v)
    expected = out.sum(-2)[..., None].expand_as(grad)
    torch.testing.assert_close(grad, expected, atol=EXACT, rtol=EXACT)


def test_flex_refuses_dropout_and_is_not_chosen_for_it():
    call = with_dropout(slope)
    with pytest.raises(OptionError, match="flex has no dropout"):
        attend(call, "flex")
    assert choose_backend(call, "cuda")[0] == "chunked"


# factors


def far(rewrite, dtype):
    """How far sdpa is from the exact answer for the same numbers, at positions of eight thousand."""
    torch.manual_seed(0)
    call = make_call(64, 64, dtype, causal=True, first=8129)
    exact = call.replace(q=call.q.double(), k=call.k.double(), v=call.v.double())
    expected, _ = attend(slope(exact), "reference")
    return (attend(rewrite(call), "sdpa")[0].double() - expected).abs().max()


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, FLOAT32), (torch.bfloat16, BFLOAT16), (torch.float16, BFLOAT16 / 8)],
)
@pytest.mark.parametrize("rewrite", [slope_as_one_factor, slope_as_two_factors])
def test_factors_keep_their_precision_far_out(rewrite, dtype, tolerance):
    assert far(rewrite, dtype) < tolerance


def test_factors_in_one_channel_would_lose_it(monkeypatch):
    monkeypatch.setattr(
        fused, "_split_product", lambda left, right, dtype: [(left.to(dtype), right.to(dtype))]
    )
    assert far(slope_as_two_factors, torch.bfloat16) > 10 * BFLOAT16


def test_splits_add_up():
    left, right = 8192 * torch.rand(1, 1, 64, 2), torch.rand(1, 1, 64, 2)
    pairs = fused._split_product(left, right, torch.bfloat16)
    assert all(a.dtype == b.dtype == torch.bfloat16 for a, b in pairs)
    total = sum(a.double() @ b.double().mT for a, b in pairs)
    torch.testing.assert_close(total, left.double() @ right.double().mT, atol=0, rtol=1e-6)


def test_a_factor_constant_along_rows_takes_no_channel():
    call = make_call(4)
    huge = torch.full((1, 1, 4, 1), 1e30).double()
    with_it = call.add_low_rank_bias(huge, huge[:, :, :1])
    assert fused._make_channels(with_it) == ([], [])
    assert torch.equal(attend(with_it, "sdpa")[0], attend(call, "sdpa")[0])
    assert (scores(with_it) > 1e29).all()


def test_a_factor_constant_along_columns_keeps_its_channel():
    call = make_call(4)
    _, columns = sides(call)
    with_it = call.add_low_rank_bias(columns.new_ones(1, 1, 1, 1), columns)
    assert [one.shape for one in fused._make_channels(with_it)[1]] == [(B, H, M, 1)]
    assert not torch.allclose(attend(with_it, "sdpa")[0], attend(call, "sdpa")[0])


def test_float16_takes_factors_as_channels_of_one_size():
    call = make_call(8, 8, torch.float16, causal=True, first=70000)  # beyond what float16 can hold
    exact = call.replace(q=call.q.double(), k=call.k.double(), v=call.v.double())
    out, expected = (
        attend(slope_as_two_factors(call), "sdpa")[0],
        attend(slope(exact), "reference")[0],
    )
    torch.testing.assert_close(out.double(), expected, atol=1e-2, rtol=1e-2)
    factors = slope_as_two_factors(call)
    assert choose_backend(factors)[0] == choose_backend(factors, "cuda")[0] == "sdpa"
    assert max(one.abs().max() for part in fused._make_channels(factors) for one in part) < 1e3


def test_a_factor_of_zeros_has_its_gradient_in_float16():
    call = make_call(8, 8, torch.float16)
    zeros = torch.zeros(1, H, 8, 1, requires_grad=True)
    found = []
    for one, backend in ((call, "sdpa"), (call.replace(q=call.q.float()), "reference")):
        one = one.replace(k=call.k.to(one.q.dtype), v=call.v.to(one.q.dtype))
        out, _ = attend(one.add_low_rank_bias(zeros, call.keys.pos[:, None] * 1e4), backend)
        found += torch.autograd.grad(out.float().square().sum(), zeros)
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2 * found[1].abs().max().item())


# what needs whole rows


def test_rescored_scores_enter_the_softmax():
    call = make_call(causal=True)
    plain_scores = scores(call)
    squared = call.replace(
        transform_scores=lambda values, visible, span: values * values.sum(-1, keepdim=True)
    )
    whole = call.q @ call.k.mT * call.scale
    expected = (whole * whole.sum(-1, keepdim=True)).masked_fill(
        plain_scores.isinf(), float("-inf")
    )
    torch.testing.assert_close(scores(squared), expected, atol=EXACT, rtol=EXACT)
    torch.testing.assert_close(
        attend(squared)[0], expected.softmax(-1) @ call.v, atol=EXACT, rtol=EXACT
    )


def test_rescoring_sees_biases_and_what_is_visible():
    seen = []
    call = slope(slope_as_one_factor(make_call(causal=True)))
    scores(
        call.replace(
            transform_scores=lambda values, visible, span: seen.append((values, visible)) or values
        )
    )
    bias = call.evaluate(call.bias_function())
    torch.testing.assert_close(
        seen[0][0], call.q @ call.k.mT * call.scale + bias, atol=EXACT, rtol=EXACT
    )
    assert torch.equal(seen[0][1], torch.ones(1, 1, M, M, dtype=torch.bool).tril())


def test_own_weights_replace_the_softmax():
    call = make_call(4, causal=True).replace(
        normalize=lambda values, visible, span: values.sigmoid()
    )
    torch.testing.assert_close(weights(call), scores(call).sigmoid(), atol=EXACT, rtol=EXACT)
    torch.testing.assert_close(
        attend(call)[0], scores(call).sigmoid() @ call.v, atol=EXACT, rtol=EXACT
    )


def test_what_is_read_out_is_added():
    vectors = torch.randn(M, V).double()
    call = make_call(4)
    read = call.replace(extra_output=lambda shares, span: shares @ vectors)
    expected = attend(call)[0] + weights(call) @ vectors
    torch.testing.assert_close(attend(read)[0], expected, atol=EXACT, rtol=EXACT)


def test_riders_do_not_see_the_readout():
    call = ridden(make_call(4)).replace(
        extra_output=lambda shares, span: shares.new_ones(B, H, 4, V)
    )
    torch.testing.assert_close(
        attend(call)[1], weights(call) @ call.extra_values, atol=EXACT, rtol=EXACT
    )


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
@pytest.mark.parametrize("field", ["transform_scores", "normalize", "extra_output"])
def test_a_fused_interpreter_refuses_whole_rows(field, backend):
    call = make_call().replace(**{field: lambda *args: args[0]})
    with pytest.raises(
        OptionError, match=f"{backend} cannot compute this attention: {field} needs whole rows"
    ):
        attend(call, backend)


def test_an_unknown_interpreter_is_refused():
    with pytest.raises(OptionError, match="no backend 'flash'; did you mean sdpa"):
        attend(make_call(), "flash")


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
        (
            lambda call: call.replace(transform_scores=max),
            "cuda",
            "chunked",
            "transform_scores needs whole rows",
        ),
        (
            lambda call: call.replace(normalize=max, extra_output=max),
            "cpu",
            "chunked",
            "normalize and extra_output needs whole rows",
        ),
    ],
)
def test_the_choice_is_read_off_the_fields(rewrite, device, name, reason):
    chosen, why = choose_backend(rewrite(make_call()), device)
    assert chosen == name
    assert reason in why


def test_a_slim_factor_needs_no_mask(monkeypatch):
    masks = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watch(q, k, v, blocked, **options):
        masks.append((blocked, options["is_causal"]))
        return kernel(q, k, v, blocked, **options)

    monkeypatch.setattr(fused.F, "scaled_dot_product_attention", watch)
    attend(slope_as_two_factors(make_call(causal=True)))
    attend(slope(make_call(causal=True)), "sdpa")
    attend(make_call(4, causal=True))
    assert masks[0] == (None, True)
    assert [blocked is not None and not causal for blocked, causal in masks[1:]] == [True, True]


def test_scores_are_never_rounded_by_autocast():
    call = make_call(dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        values = scores(call)
    assert values.dtype == torch.float32
    exact = call.q.float() @ call.k.float().mT * call.scale
    torch.testing.assert_close(values, exact)


def test_flex_is_compiled_once_for_a_shape(monkeypatch):
    counter = CompileCounterWithBackend("eager")
    for name in ("flex_attention", "create_block_mask"):
        monkeypatch.setattr(fused, name, torch.compile(getattr(fused, name), backend=counter))
    outs = [
        attend(slope(make_call(128, 128, torch.float32, causal=True)), "flex")[0] for _ in range(3)
    ]
    assert counter.frame_count == 2
    assert not torch.equal(outs[0], outs[1])
    torch._dynamo.reset()


def test_documents_that_differ_have_masks_of_their_own():
    for document in (
        torch.tensor([[0] * 5 + [1] * 5, [0] * 3 + [1] * 7]),
        torch.tensor([[0] * 5 + [1] * 5]),
    ):
        call = make_call(causal=True, document=document)
        torch.testing.assert_close(
            attend(call, "flex")[0], attend(call, "reference")[0], atol=EXACT, rtol=EXACT
        )
