"""PaTH against its formula, pair by pair; its blocks; and its keys in a cache, which are changed as the text goes on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from calls import QUERIES, agree, called, made, moved, near, scores
from literal import path as literal_path
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import zoo
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.tokens import Tokens
from zoo.encodings import path
from zoo.encodings.path import PaTH, compute_path_bias, update_keys
from zoo.laws import Case, LawBroken, equivariance

OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"convolution": 1, "rank": 3}, {"convolution": 9}], ids=str
)
M, K = 13, 4


@QUERIES
@OPTIONS
def test_path(options, queries):
    encoding, call = made("path", 2, **options), called(2, queries=queries)
    agree(encoding, call, literal_path.path(encoding, call))


def test_query_heads_share_what_their_key_head_has():
    encoding, call = moved(zoo.encoding("path", Dims(32, 4, kv_heads=2))), called()
    shared = replace(call, k=call.k[:, :2])  # heads 0 and 1 read the first, 2 and 3 the second
    near(
        scores(encoding, shared),
        literal_path.path(encoding, replace(call, k=call.k[:, [0, 0, 1, 1]]), sharing=2),
    )


def test_with_forget_gates_it_is_path_fox():
    chain, call = moved(zoo.encoding(["path", "fox"], Dims(16, 2))), called(2)
    sums = (
        F.logsigmoid(call.x @ chain.fox.gate.weight.mT + chain.fox.gate.bias).cumsum(1).mT
    )  # [B, H, M]
    near(
        scores(chain, call),
        literal_path.path(chain.path, call) + sums[..., :, None] - sums[..., None, :],
    )


# blocks


def run(strength=None):
    """Random q, k, w [2, M, K] and beta [2, M]."""
    q, k, w = torch.randn(3, 2, M, K, dtype=torch.float64).unbind()
    beta = (
        2 * torch.rand(2, M, dtype=torch.float64)
        if strength is None
        else torch.full((2, M), strength).double()
    )
    return q, k, F.normalize(w, dim=-1), beta


def passed(k, w, beta):
    """k_j^T H_{j+1} .. H_i [2, i, j, K], 0 for later keys."""
    found = torch.zeros(2, M, M, K, dtype=torch.float64)
    for b, i in product(range(2), range(M)):
        matrices = [literal_path.matrix(*one) for one in zip(w[b], beta[b], strict=True)]
        for j in range(i + 1):
            found[b, i, j] = literal_path.passed(k[b, j], matrices, j, i)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 13, 64])
@pytest.mark.parametrize("queries", [M, 9, 1])
def test_blocks_of_any_size_agree(queries, size):
    q, k, w, beta = run()
    expected = (torch.einsum("bijk,bik->bij", passed(k, w, beta), q) - (q @ k.mT).tril())[
        :, -queries:
    ]
    near(compute_path_bias(q[:, -queries:], k, w, beta, size), expected)


@pytest.mark.parametrize("size", [1, 4, 64])
@pytest.mark.parametrize("first", [0, 1, 7, M])
def test_keys_settle_in_parts(first, size):
    _, k, w, beta = run()
    once = update_keys(k, w, beta, size)
    before = update_keys(k[:, :first], w[:, :first], beta[:, :first], size)
    near(
        update_keys(torch.cat([before, k[:, first:]], 1), w[:, first:], beta[:, first:], size), once
    )
    near(once, passed(k, w, beta)[:, -1])


@pytest.mark.parametrize("size", [2, 64])
def test_without_strength_nothing_is_added(size):
    q, k, w, beta = run(0.0)
    near(compute_path_bias(q, k, w, beta, size), torch.zeros(2, M, M, dtype=torch.float64))
    near(update_keys(k, w, beta, size), k)


@pytest.mark.parametrize("size", [2, 64])
def test_reflections_keep_norms(size):
    _, k, w, beta = run(2.0)
    near(update_keys(k, w, beta, size).norm(dim=-1), k.norm(dim=-1))


def test_swaps_are_followed():
    swaps, one = [(0, 1), (1, 3), (0, 2), (0, 1), (2, 3)], torch.eye(4, dtype=torch.float64)
    w = torch.stack([(one[a] - one[b]) / 2**0.5 for a, b in swaps])
    places = list(range(4))
    for a, b in swaps:
        places = [{a: b, b: a}.get(place, place) for place in places]
    near(
        update_keys(torch.cat([one, one[:1].repeat(5, 1)]), w, torch.full((5,), 2.0).double(), 2)[
            :4
        ],
        one[places],
    )


def test_gradients_pass_through_blocks():
    q, k, w, beta = (one[:1, :5].requires_grad_() for one in run())
    assert torch.autograd.gradcheck(
        lambda *args: compute_path_bias(*args, 2), (q[:, 2:], k, w, beta)
    )


def test_several_blocks_are_captured():
    compiled, args = torch.compile(compute_path_bias, fullgraph=True, backend="eager"), run()
    near(compiled(*args, 4), compute_path_bias(*args, 4))


# in a cache


def layer(**options):
    """A layer under PaTH, in float64."""
    return (
        zoo.Attention(Dims(16, 2), {"name": "path", **options}, causal=True)
        .double()
        .requires_grad_(False)
    )


def decoded(attention, x, counts, document=None):
    """What comes out of parts of `counts` tokens, and the cache after them."""
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
def test_kept_keys_have_passed_all_tokens_after_them(options):
    attention, x = layer(**options), torch.randn(1, 7, 16, dtype=torch.float64)
    kept = decoded(attention, x, [3, 1, 1, 2])[1]._layers[0]
    raw = attention.layer.k_proj(x).unflatten(-1, (2, 8))  # [1, M, H, K]
    for head in range(2):
        matrices = literal_path.matrices(attention.encoding, x[0], head, 8)
        for j in range(7):
            near(kept.k.rows[0, head, j], literal_path.passed(raw[0, j, head], matrices, j, 6))
    rows = {name: note.shape[1] for name, note in kept.tokens.per_token.items()}
    assert rows == {"path_direction": min(options.get("convolution", 3) - 1, 7), "path_strength": 0}


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that was made."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, tuple | list) else (out,):
            self.most = max(self.most, one.numel() if isinstance(one, torch.Tensor) else 0)
        return out


def test_a_step_makes_nothing_of_all_pairs():
    attention, x = layer(), torch.randn(1, 200, 16, dtype=torch.float64)
    _, cache = decoded(attention, x, [200])
    with Largest() as found:
        attention(x[:, :1], torch.tensor([[200.0]]).double(), context=cache)
    assert found.most == 201 * 16  # all keys, once


def test_documents_may_end_between_chunks():
    attention, x = layer(), torch.randn(2, 8, 16, dtype=torch.float64)
    document = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2], [-1, -1, 0, 0, 0, 0, 0, 0]])
    whole = attention(x, document=document)
    for counts in ([3, 3, 2], [1] * 8, [2, 5, 1], [4, 4]):
        near(decoded(attention, x, counts, document)[0], whole)
    near(whole[:1, 3:6], attention(x[:1, 3:6]))
    near(whole[1:, 2:], attention(x[1:, 2:]))


def test_two_goings_on_from_one_cache_do_not_meet():
    attention, x = layer(), torch.randn(1, 6, 16, dtype=torch.float64)
    _, cache = decoded(attention, x[:, :5], [5])
    last = torch.tensor([[5.0]]).double()
    for token in (3 * x[:, :1], x[:, 5:]):
        out = attention(token, last, context=cache.copy())
    near(out, attention(x)[:, 5:])


def test_kept_keys_do_not_wear_in_half_precision():
    encoding, cache = zoo.encoding("path", Dims(16, 2)), KeyValueCache()
    tokens = encoding.prepare(Tokens.at(torch.randn(1, 100, 16), torch.arange(100.0)[:, None]))
    once = encoding.update_cached_keys(k := torch.randn(1, 2, 100, 8).bfloat16(), tokens)[0]
    for t in range(100):
        step = encoding.prepare(Tokens.at(tokens.x[:, t : t + 1], torch.tensor([[float(t)]])))
        read, _, _ = cache.extend(
            0, k[:, :, t : t + 1], k[:, :, t : t + 1], step, encoding.update_cached_keys
        )
    assert read.dtype == torch.bfloat16
    near(cache._layers[0].k.rows, once, 1e-5)


# faults


class OneLate(PaTH):
    """A token turns the keys before the one before it: H_j .. H_{i-1}."""

    def _reflections(self, tokens, batch):
        w, beta = super()._reflections(tokens, batch)
        return w.roll(1, dims=2), beta.roll(1, dims=2)


class Unsettled(PaTH):
    """Notes are cut, and keys left as they were."""

    def update_cached_keys(self, k, tokens):
        return k, super().update_cached_keys(k, tokens)[1]


class Forgotten(PaTH):
    """What the convolution needs of the tokens before is cut too."""

    def update_cached_keys(self, k, tokens):
        k, tokens = super().update_cached_keys(k, tokens)
        return k, tokens.with_per_token(path_direction=tokens.per_token["path_direction"][:, :0])


@pytest.mark.parametrize("fault", [Unsettled, Forgotten])
def test_a_fault_of_decoding_is_caught(fault):
    with pytest.raises(LawBroken):
        equivariance.decoding_equals_one_pass(Case(fault.__name__, 1, fault))


def test_a_convolution_across_documents_is_caught(monkeypatch):
    plain = path.convolve
    monkeypatch.setattr(path, "convolve", lambda x, weights, document: plain(x, weights, None))
    with pytest.raises(LawBroken):
        equivariance.packed_documents_are_apart(Case("path", 1, PaTH))


def test_a_path_that_begins_too_early_is_caught():
    encoding, call = moved(OneLate(Dims(16, 2))), called(2)
    with pytest.raises(AssertionError):
        near(scores(encoding, call), literal_path.path(encoding, call))
