"""PaTH: scores k_j^T H_{j+1} .. H_i q_i / sqrt(K), H_t = I - beta_t w_t w_t^T."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import product

import pytest
import torch
from calls import (
    QUERIES,
    assert_close,
    check_attention,
    check_reference_catches,
    compute_scores,
    make_call,
    make_encoding,
    move_parameters,
)
from faults import check_fault_is_caught
from largest import Largest
from literal.path import make_matrices, make_matrix, pass_key
from literal.path import path as score_literally
from parameters import list_facts, list_shapes
from torch.nn import functional as F

import zoo
from zoo.attention.backends.chunked import CHUNK_BYTES
from zoo.attention.call import Span
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.tokens import Tokens
from zoo.encodings import path
from zoo.encodings.path import PaTH, PathBias, compute_path_bias, update_keys
from zoo.laws import causality, equivariance

OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"convolution": 1, "rank": 3}, {"convolution": 9}], ids=str
)


@QUERIES
@OPTIONS
def test_formula(options, queries):
    encoding, call = make_encoding("path", 2, **options), make_call(2, queries=queries)
    check_attention(encoding, call, score_literally(encoding, call))


def test_formula_of_query_heads_that_share_a_key_head():
    encoding, call = move_parameters(zoo.encoding("path", Dims(32, 4, kv_heads=2))), make_call()
    shared = replace(call, k=call.k[:, :2])  # heads 0 and 1 read the first, 2 and 3 the second
    repeated = replace(call, k=call.k[:, [0, 0, 1, 1]])
    expected = score_literally(encoding, repeated, sharing=2)
    assert_close(compute_scores(encoding, shared), expected)


def test_formula_with_forget_gates_is_that_of_path_fox():
    chain, call = move_parameters(zoo.encoding(["path", "fox"], Dims(16, 2))), make_call(2)
    gates = F.logsigmoid(call.x @ chain.fox.gate.weight.mT + chain.fox.gate.bias)
    sums = gates.cumsum(1).mT  # [B, H, M]
    expected = score_literally(chain.path, call) + sums[..., :, None] - sums[..., None, :]
    assert_close(compute_scores(chain, call), expected)


def test_facts():
    assert list_facts("path") == {
        "shared": False,
        "shift_invariant": True,
        "causal_only": True,
        "handles_special_tokens": True,
        "reads_states": True,
    }


# parameters


WIDTH, HEADS, RANK = 64, 4, 32


def make_initial(kv_heads=None, **options):
    return zoo.encoding("path", Dims(WIDTH, HEADS, kv_heads=kv_heads), **options)


@pytest.mark.parametrize(("kv_heads", "own"), [(None, 4), (2, 2), (1, 1)])
def test_parameters_are_one_path_per_key_head(kv_heads, own):
    assert list_shapes(make_initial(kv_heads)) == {
        "direction.0.weight": (RANK, WIDTH),
        "direction.1.weight": (own * 16, RANK),
        "strength.weight": (own, WIDTH),
        "strength.bias": (own,),
        "filter": (3, own * 16),
    }


def test_parameters_of_a_convolution_of_one_token_are_none():
    assert "filter" not in list_shapes(make_initial(convolution=1))
    assert list_shapes(make_initial(rank=5, convolution=4))["filter"] == (4, WIDTH)
    assert list_shapes(make_initial(rank=5))["direction.0.weight"] == (5, WIDTH)


def test_initial_values_are_strengths_of_about_one():
    encoding = make_initial()
    tokens = Tokens.at(torch.randn(1, 50, WIDTH), torch.zeros(50, 1))
    first, second = encoding.direction
    assert (encoding.strength.bias == 0).all()
    for weight in (encoding.strength.weight, first.weight, second.weight):
        assert abs(weight.std().item() / 0.02 - 1) < 0.25
    assert (encoding.prepare(tokens).per_token["path_strength"] - 1).abs().max() < 0.5


def test_initial_values_of_the_filter_are_those_of_pytorch():
    torch.manual_seed(0)
    values = make_initial(convolution=4).filter.detach()
    assert 0.45 < values.abs().max() <= 0.5
    assert values.mean().abs() < 5 * 0.5 / (3 * values.numel()) ** 0.5


# blocks


M, K = 13, 4


def draw_run(strength=None):
    """Draw q, k, w [2, M, K] and beta [2, M]."""
    q, k, w = torch.randn(3, 2, M, K, dtype=torch.float64).unbind()
    if strength is None:
        beta = 2 * torch.rand(2, M, dtype=torch.float64)
    else:
        beta = torch.full((2, M), strength).double()
    return q, k, F.normalize(w, dim=-1), beta


def pass_keys(k, w, beta):
    """Return k_j^T H_{j+1} .. H_i [2, i, j, K], 0 for later keys."""
    keys = torch.zeros(2, M, M, K, dtype=torch.float64)
    for b, i in product(range(2), range(M)):
        matrices = [make_matrix(*one) for one in zip(w[b], beta[b], strict=True)]
        for j in range(i + 1):
            keys[b, i, j] = pass_key(k[b, j], matrices, j, i)
    return keys


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 13, 64])
@pytest.mark.parametrize("queries", [M, 9, 1])
def test_blocks_of_any_size_agree(queries, size):
    q, k, w, beta = draw_run()
    products = torch.einsum("bijk,bik->bij", pass_keys(k, w, beta), q)
    expected = (products - (q @ k.mT).tril())[:, -queries:]
    assert_close(compute_path_bias(q[:, -queries:], k, w, beta, size), expected)


@pytest.mark.parametrize("size", [1, 4, 64])
@pytest.mark.parametrize("first", [0, 1, 7, M])
def test_keys_are_updated_in_parts(first, size):
    _, k, w, beta = draw_run()
    once = update_keys(k, w, beta, size)
    before = update_keys(k[:, :first], w[:, :first], beta[:, :first], size)
    keys = torch.cat([before, k[:, first:]], 1)
    assert_close(update_keys(keys, w[:, first:], beta[:, first:], size), once)
    assert_close(once, pass_keys(k, w, beta)[:, -1])


@pytest.mark.parametrize("size", [2, 64])
def test_without_strength_nothing_is_added(size):
    q, k, w, beta = draw_run(0.0)
    bias = compute_path_bias(q, k, w, beta, size)
    assert_close(bias, torch.zeros(2, M, M, dtype=torch.float64))
    assert_close(update_keys(k, w, beta, size), k)


@pytest.mark.parametrize("size", [2, 64])
def test_reflections_keep_norms(size):
    _, k, w, beta = draw_run(2.0)
    assert_close(update_keys(k, w, beta, size).norm(dim=-1), k.norm(dim=-1))


def test_swaps_are_followed():
    swaps, one = [(0, 1), (1, 3), (0, 2), (0, 1), (2, 3)], torch.eye(4, dtype=torch.float64)
    w = torch.stack([(one[a] - one[b]) / 2**0.5 for a, b in swaps])
    order = list(range(4))
    for a, b in swaps:
        order = [{a: b, b: a}.get(place, place) for place in order]
    keys, beta = torch.cat([one, one[:1].repeat(5, 1)]), torch.full((5,), 2.0).double()
    assert_close(update_keys(keys, w, beta, 2)[:4], one[order])


def test_gradients_pass_through_blocks():
    q, k, w, beta = (one[:1, :5].requires_grad_() for one in draw_run())
    assert torch.autograd.gradcheck(
        lambda *args: compute_path_bias(*args, 2), (q[:, 2:], k, w, beta)
    )


@pytest.mark.parametrize("queries", [M, 9])
@pytest.mark.parametrize("size", [1, 2, 64])
def test_spans_of_queries_equal_the_table_of_all_pairs(queries, size):
    q, k, w, beta = (one[:, None] for one in draw_run())
    rows = slice(-queries - 2 if queries < M else 0, None)  # tokens before the queries too
    args = (q[:, :, -queries:], k, w[:, :, rows], beta[:, :, rows])
    given = [one.clone().requires_grad_() for one in args]
    whole = compute_path_bias(*given, size)  # [2, 1, N, M]
    bias, past = PathBias.build(*given, size), M - queries
    spans = [
        Span(first, end, past + end, 2, 1, whole.device)
        for first, end in itertools.pairwise([0, 1, 4, 6, queries])
    ]
    parts = [bias(span) for span in spans]
    parts = torch.cat([F.pad(part, (0, M - part.shape[-1])) for part in parts], dim=2)
    assert_close(parts, whole)
    weight = torch.randn_like(whole)
    expected = torch.autograd.grad((whole * weight).sum(), given)
    for mine, one in zip(torch.autograd.grad((parts * weight).sum(), given), expected, strict=True):
        assert_close(mine, one)


def test_a_pass_in_chunks_makes_no_tensor_of_all_pairs(monkeypatch):
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 2**14)
    layer, x = make_layer(), torch.randn(1, 1024, 16, dtype=torch.float64, requires_grad=True)
    with Largest() as found:
        layer.requires_grad_()(x).sum().backward()
    assert found.most < 1024 * 1024 / 4


def test_several_blocks_are_captured():
    compiled = torch.compile(compute_path_bias, fullgraph=True, backend="eager")
    args = draw_run()
    assert_close(compiled(*args, 4), compute_path_bias(*args, 4))


# in a cache


def make_layer(**options):
    """Make a layer under PaTH, in float64."""
    layer = zoo.Attention(Dims(16, 2), {"name": "path", **options}, causal=True)
    return layer.double().requires_grad_(False)


def decode(attention, x, counts, document=None):
    """Return what comes out of parts of `counts` tokens, and the cache after them."""
    cache, begins = KeyValueCache(), [sum(counts[:n]) for n in range(len(counts))]
    parts = [slice(begin, begin + count) for begin, count in zip(begins, counts, strict=True)]
    documents = [None if document is None else document[:, part] for part in parts]
    pos = torch.arange(x.shape[1]).double()[:, None]
    outs = [
        attention(x[:, p], pos[p], document=d, context=cache)
        for p, d in zip(parts, documents, strict=True)
    ]
    return torch.cat(outs, 1), cache


@OPTIONS
def test_cached_keys_have_passed_all_tokens_after_them(options):
    attention, x = make_layer(**options), torch.randn(1, 7, 16, dtype=torch.float64)
    cached = decode(attention, x, [3, 1, 1, 2])[1]._layers[0]
    raw = attention.layer.k_proj(x).unflatten(-1, (2, 8))  # [1, M, H, K]
    for head in range(2):
        matrices = make_matrices(attention.encoding, x[0], head, 8)
        for j in range(7):
            assert_close(cached.k.rows[0, head, j], pass_key(raw[0, j, head], matrices, j, 6))
    rows = {name: entry.shape[1] for name, entry in cached.tokens.per_token.items()}
    kept = min(options.get("convolution", 3) - 1, 7)
    # the convolution needs the last directions and the documents that they are of
    assert rows == {"path_direction": kept, "path_document": kept, "path_strength": 0}


def test_a_step_makes_no_tensor_of_all_pairs():
    attention, x = make_layer(), torch.randn(1, 200, 16, dtype=torch.float64)
    _, cache = decode(attention, x, [200])
    with Largest() as found:
        attention(x[:, :1], torch.tensor([[200.0]]).double(), context=cache)
    assert found.most == 201 * 16  # all keys, once


def test_documents_may_end_between_chunks():
    attention, x = make_layer(), torch.randn(2, 8, 16, dtype=torch.float64)
    document = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2], [-1, -1, 0, 0, 0, 0, 0, 0]])
    whole = attention(x, document=document)
    for counts in ([3, 3, 2], [1] * 8, [2, 5, 1], [4, 4]):
        assert_close(decode(attention, x, counts, document)[0], whole)
    assert_close(whole[:1, 3:6], attention(x[:1, 3:6]))
    assert_close(whole[1:, 2:], attention(x[1:, 2:]))


def test_two_continuations_of_one_cache_do_not_meet():
    attention, x = make_layer(), torch.randn(1, 6, 16, dtype=torch.float64)
    _, cache = decode(attention, x[:, :5], [5])
    last = torch.tensor([[5.0]]).double()
    for token in (3 * x[:, :1], x[:, 5:]):
        out = attention(token, last, context=cache.copy())
    assert_close(out, attention(x)[:, 5:])


def test_cached_keys_do_not_wear_in_half_precision():
    encoding, cache = zoo.encoding("path", Dims(16, 2)), KeyValueCache()
    tokens = encoding.prepare(Tokens.at(torch.randn(1, 100, 16), torch.arange(100.0)[:, None]))
    once = encoding.update_cached_keys(k := torch.randn(1, 2, 100, 8).bfloat16(), tokens)[0]
    for t in range(100):
        step = encoding.prepare(Tokens.at(tokens.x[:, t : t + 1], torch.tensor([[float(t)]])))
        key = k[:, :, t : t + 1]
        read, _, _ = cache.extend(0, key, key, step, encoding.update_cached_keys)
    assert read.dtype == torch.bfloat16
    assert_close(cache._layers[0].k.rows, once, 1e-5)


# planted faults


class OneLate(PaTH):
    """A token transforms the keys before the one before it: H_j .. H_{i-1}."""

    def _reflections(self, tokens, batch):
        w, beta = super()._reflections(tokens, batch)
        return w.roll(1, dims=2), beta.roll(1, dims=2)


def test_planted_fault():
    check_reference_catches(OneLate, score_literally, heads=2)


class KeysLeftBehind(PaTH):
    """Per-token data is cut, and keys are not updated."""

    def update_cached_keys(self, k, tokens):
        return k, super().update_cached_keys(k, tokens)[1]


class LookbackForgotten(PaTH):
    """What the convolution needs of the tokens before is cut too."""

    def update_cached_keys(self, k, tokens):
        k, tokens = super().update_cached_keys(k, tokens)
        return k, tokens.with_per_token(path_direction=tokens.per_token["path_direction"][:, :0])


@pytest.mark.parametrize("fault", [KeysLeftBehind, LookbackForgotten])
def test_planted_fault_of_decoding(fault):
    check_fault_is_caught(causality.decoding_equals_one_pass, fault)


def test_planted_fault_of_a_convolution_across_documents(monkeypatch):
    plain = path.convolve
    monkeypatch.setattr(path, "convolve", lambda x, weights, document: plain(x, weights, None))
    check_fault_is_caught(equivariance.packed_documents_are_apart, PaTH)
