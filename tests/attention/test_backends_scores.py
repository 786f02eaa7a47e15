"""Soft caps and sinks: what they are, pair by pair, and that every backend computes it."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.attention.backends import chunked
from zoo.attention.backends.biased_softmax import is_softmax_of_sums
from zoo.attention.backends.dispatch import attend, choose_backend
from zoo.attention.backends.reference import weights
from zoo.attention.call import AttentionCall
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

EXACT = 1e-12
B, H, M, K = 2, 3, 9, 8
DOCUMENT = torch.tensor([[0, 0, 0, 1, 1, 1, 2, -1, -1], [-1, 0, 0, -1, 0, 0, 0, 0, 0]])
CAP = 0.7
SINKS = torch.tensor([-1.0, 0.5, 2.0]).double()


def make_call(n=M, causal=True, document=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, H, M, K, generator=generator).to(dtype) for _ in range(3))
    keys = Tokens.at(torch.zeros(B, M, 0, dtype=dtype), torch.arange(float(M))[:, None])
    keys = keys.replace(document=document)
    q = q[:, :, M - n :]
    return AttentionCall(q, k, v, q, keys.last(n), keys, causal, K**-0.5)


def slope(call):
    return call.add_bias(lambda b, h, i, j: -call.offset(b, i, j)[..., 0] * 0.5**h)


def slope_as_two_factors(call):
    """A constant of each row, which matters beside a sink, and one of each column."""
    steep = 0.5 ** torch.arange(H)[:, None, None]
    one = call.q.new_ones(1, 1, 1, 1)
    call = call.add_low_rank_bias(-call.queries.pos[:, None] * steep, one)
    return call.add_low_rank_bias(one, call.keys.pos[:, None] * steep)


def plain(call):
    return call


REWRITES = (plain, slope, slope_as_two_factors)


def average_literally(call, cap, sinks, slopes):
    """Average the values of visible keys pair by pair, [B, H, N, V]."""
    n = call.q.shape[2]
    document = torch.zeros(B, M) if call.keys.document is None else call.keys.document
    out = torch.zeros(B, H, n, K, dtype=torch.float64)
    for b, h, row in torch.cartesian_prod(*map(torch.arange, (B, H, n))).tolist():
        i = row + M - n
        keys = range(i + 1) if call.causal else range(M)
        seen = [j for j in keys if document[b, i] == document[b, j] >= 0]
        parts = []
        for j in seen:
            score = float(call.q[b, h, row] @ call.k[b, h, j]) / math.sqrt(K)
            if cap is not None:
                score = cap * math.tanh(score / cap)
            parts.append(math.exp(score - (i - j) * 0.5**h * slopes))
        total = sum(parts) + (0 if sinks is None else math.exp(sinks[h]))
        for j, part in zip(seen, parts, strict=True):
            out[b, h, row] += part / total * call.v[b, h, j]
    return out


@torch.no_grad()
@pytest.mark.parametrize("document", [None, DOCUMENT], ids=["", "documents"])
@pytest.mark.parametrize(("n", "causal"), [(M, True), (M, False), (4, True), (1, True)])
@pytest.mark.parametrize("rewrite", REWRITES)
def test_backends_compute_the_definition(rewrite, n, causal, document):
    base = make_call(n, causal, document)
    for cap, sinks in ((CAP, None), (None, SINKS), (CAP, SINKS)):
        call = rewrite(base.replace(softcap=cap, sinks=sinks))
        expected = average_literally(base, cap, sinks, slopes=0 if rewrite is plain else 1)
        for backend in ("auto", "reference", "chunked", "flex", *(["sdpa"] if not cap else ())):
            if backend == "flex" and n == 1:
                continue
            found, _ = attend(call, backend)
            torch.testing.assert_close(found, expected, atol=EXACT, rtol=EXACT)


def list_gradients(call, leaves, backend):
    out, _ = attend(call, backend)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return torch.autograd.grad((out * weight).sum(), leaves)


@pytest.mark.parametrize("document", [None, DOCUMENT], ids=["", "documents"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rewrite", REWRITES)
def test_gradients_agree(rewrite, causal, document):
    base = make_call(causal=causal, document=document)
    sinks = SINKS.clone().requires_grad_()
    leaves = [base.q.requires_grad_(), base.k.requires_grad_(), base.v.requires_grad_(), sinks]
    for cap in (None, CAP):
        call = rewrite(base.replace(softcap=cap, sinks=sinks))
        expected = list_gradients(call, leaves, "reference")
        assert all(one.any() for one in expected)
        for backend in ("auto", "chunked", *(["sdpa"] if not cap else ())):
            for one, other in zip(list_gradients(call, leaves, backend), expected, strict=True):
                torch.testing.assert_close(one, other, atol=EXACT, rtol=EXACT)


def test_gradients_of_biases_in_a_mask_agree():
    """A kernel computes no gradient of its mask, so another one is called."""
    table = torch.randn(1, H, M, M).double().requires_grad_()
    call = make_call().replace(sinks=SINKS).add_bias(zoo.attention.bias_from_table(table))
    expected, found = (list_gradients(call, [table], one)[0] for one in ("reference", "sdpa"))
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=EXACT)


def test_gradients_of_an_expanded_output_are_right():
    call = make_call().replace(sinks=SINKS)
    call.v.requires_grad_()
    found, expected = (
        torch.autograd.grad(attend(call, one)[0].sum(), call.v)[0] for one in ("sdpa", "reference")
    )
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_precisions_stay_close(dtype):
    exact = make_call().replace(sinks=SINKS)
    call = make_call(dtype=dtype).replace(sinks=SINKS.to(dtype))
    expected, _ = attend(exact, "reference")
    bound = 2e-2 if dtype == torch.bfloat16 else 2e-6
    for backend in ("reference", "sdpa"):
        found, _ = attend(call, backend)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, atol=bound, rtol=bound)


@torch.no_grad()
def test_extra_values_have_sinks_too():
    call = make_call().replace(sinks=SINKS, extra_values=torch.randn(B, H, M, 5).double())
    for one, other in zip(attend(call, "sdpa"), attend(call, "reference"), strict=True):
        torch.testing.assert_close(one, other, atol=EXACT, rtol=EXACT)


@torch.no_grad()
def test_a_kernel_reads_rows_whatever_their_strides():
    call = make_call(causal=False).replace(sinks=SINKS)
    q, k, v = (one.mT.contiguous().mT for one in (call.q, call.k, call.v))
    rows = torch.randn(M, 1).double()
    call = call.replace(q=q, k=k, v=v).add_bias(lambda b, h, i, j: rows[i, 0])
    for one in (call, call.replace(biases=())):
        found, expected = (attend(one, backend)[0] for backend in ("sdpa", "reference"))
        torch.testing.assert_close(found, expected, atol=EXACT, rtol=EXACT)


def test_autocast_casts_heads():
    call = make_call(dtype=torch.float32).replace(sinks=SINKS.float())
    exact, _ = attend(call, "reference")
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = attend(call, "sdpa")
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa"])
def test_dropout_drops_no_sink(backend):
    call = make_call().replace(sinks=SINKS, dropout=0.3)
    call = call.replace(v=torch.eye(M).double().expand(B, H, M, M).clone())
    kept = weights(call) / (1 - 0.3)
    out, _ = attend(call, backend)
    is_clear = (out == 0) & (kept > 0)
    assert is_clear.any()
    torch.testing.assert_close(out[~is_clear], kept[~is_clear], atol=EXACT, rtol=EXACT)


def test_each_backend_is_chosen_for_what_it_can_fuse():
    capped, sunk = make_call().replace(softcap=CAP), make_call().replace(sinks=SINKS)
    assert choose_backend(capped, "cpu") == ("chunked", "a soft cap of scores")
    assert choose_backend(capped, "cuda")[0] == "flex"
    assert choose_backend(sunk, "cpu") == ("sdpa", "sinks through the log-sum-exp")
    assert choose_backend(sunk, "cuda") == ("flex", "sinks")
    dropped = sunk.replace(dropout=0.1)
    assert choose_backend(dropped, "cpu")[0] == choose_backend(dropped, "cuda")[0] == "chunked"


def test_sdpa_refuses_a_cap():
    with pytest.raises(OptionError, match="a soft cap of scores; use reference or chunked"):
        attend(make_call().replace(softcap=CAP), "sdpa")


def test_a_second_derivative_is_refused_by_name():
    sinks = SINKS.clone().requires_grad_()
    call = make_call().replace(sinks=sinks)
    for leaf in (call.q.requires_grad_(), sinks):
        out, _ = attend(call, "sdpa")
        (first,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        with pytest.raises(OptionError, match="no second derivative"):
            first.square().sum().backward()


@pytest.mark.parametrize("name", ["none", "alibi", "fox"])
def test_sinks_of_minus_infinity_are_none(name):
    encoding = zoo.encoding(name, zoo.Dims(H * K, H)).double()
    q, k, v = torch.randn(3, B, H, M, K, dtype=torch.float64).unbind()
    x, pos = torch.randn(B, M, H * K).double(), torch.arange(M).double()[:, None]
    far = torch.full((H,), -1e30).double()
    plain, other = (
        zoo.functional.attend(encoding, q, k, v, pos, x=x, causal=True, sinks=sinks)
        for sinks in (None, far)
    )
    torch.testing.assert_close(other, plain, atol=EXACT, rtol=EXACT)


def use_chunks(monkeypatch):
    """Divide queries into several chunks, also of a short text."""
    monkeypatch.setattr(chunked, "MIN_ROWS", 4)
    monkeypatch.setattr(chunked, "CHUNK_BYTES", {"cpu": 0})


FACTS = {
    "causal": {},
    "all": {"causal": False},
    "documents": {"document": DOCUMENT},
    "few": {"n": 5},
    "window": {"window": 3},
    "mask": {"mask": torch.rand(B, 1, M, M) > 0.5},
    "chosen": {"query_index": torch.tensor([7, 0, 3, 4, 1])},
}


def make_call_with(facts, cap):
    facts = dict(facts)
    changes = {key: facts.pop(key) for key in ("window", "mask", "query_index") if key in facts}
    call = make_call(**facts).replace(softcap=cap, **changes)
    chosen = call.query_index
    if chosen is None:
        return call
    return call.replace(q=call.q[:, :, chosen], queries=call.queries.select(chosen))


@pytest.mark.parametrize("sinks", [None, SINKS], ids=["", "sinks"])
@pytest.mark.parametrize("cap", [None, CAP], ids=["", "cap"])
@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS)
def test_chunks_are_the_whole(facts, cap, sinks, monkeypatch):
    use_chunks(monkeypatch)
    call = make_call_with(facts, cap)
    assert is_softmax_of_sums(call) == (cap is None)
    leaves = [call.q.requires_grad_(), call.k.requires_grad_(), call.v.requires_grad_()]
    if sinks is not None:
        leaves.append(sinks.clone().requires_grad_())
        call = call.replace(sinks=leaves[-1])
    expected, found = attend(call, "reference")[0], attend(call, "chunked")[0]
    torch.testing.assert_close(found, expected, atol=EXACT, rtol=EXACT)
    for one, other in zip(
        list_gradients(call, leaves, "chunked"),
        list_gradients(call, leaves, "reference"),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=EXACT, rtol=EXACT)


def test_a_cap_is_exact_near_zero_and_far_away(monkeypatch):
    """In float32 tanh(x) would lose digits near 0 as 1 - 2 / (exp(2 x) + 1), and be NaN far away."""
    use_chunks(monkeypatch)
    for size in (1e-4, 1.0, 1e4):
        call = make_call(dtype=torch.float32).replace(softcap=50.0)
        call = call.replace(q=call.q * size)
        exact = call.replace(q=call.q.double(), k=call.k.double(), v=call.v.double())
        found, expected = attend(call, "chunked")[0], attend(exact, "reference")[0]
        torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)


def test_autocast_leaves_capped_scores_in_float32(monkeypatch):
    use_chunks(monkeypatch)
    call = make_call(dtype=torch.float32).replace(softcap=CAP)
    call.q.requires_grad_()
    exact = torch.autograd.grad(attend(call, "chunked")[0].square().sum(), call.q)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss = attend(call, "chunked")[0].square().sum()
    found = torch.autograd.grad(loss, call.q)[0]
    assert torch.equal(found, exact)
