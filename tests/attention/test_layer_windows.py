"""A window: who sees whom, who computes it, and what a cache forgets."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.attention.backends.dispatch import attend, choose_backend
from zoo.attention.backends.reference import attention_mask
from zoo.attention.call import AttentionCall
from zoo.attention.chain import Chain
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

DIMS = zoo.Dims(16, 2)
N = 10


def make_call(window, n=N, m=N, causal=True, **facts):
    q, k, v = (torch.randn(2, 2, size, 8, dtype=torch.float64) for size in (n, m, m))
    keys = Tokens.at(torch.zeros(2, m, 0).double(), torch.arange(float(m))[:, None], **facts)
    return AttentionCall(q, k, v, q, keys.last(n), keys, causal, 8**-0.5, window=window)


def list_seen(call):
    """{query: keys} of the first sample."""
    return {i: row.nonzero()[:, 0].tolist() for i, row in enumerate(attention_mask(call)[0, 0])}


def near(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


def layer(name="rope", window=4, causal=True):
    chain = Chain.of(zoo.encoding(name, DIMS)).double()
    return SelfAttention(DIMS, causal=causal, window=window).double(), chain


def run(parts, x, context, *counts, has_position=None, document=None):
    attention, chain = parts
    out, begin, pos = [], 0, torch.arange(float(x.shape[1]))[:, None]
    for count in counts:
        own = slice(begin, begin + count)
        facts = [None if fact is None else fact[own] for fact in (has_position, document)]
        tokens = Tokens.at(x[:, own], pos[own], *facts, ordered=True)
        out.append(attention(chain.embed(tokens), chain, context)[0].x)
        begin += count
    return torch.cat(out, 1)


def test_a_token_sees_itself_and_those_just_before_it():
    assert list_seen(make_call(3, 4, 4)) == {0: [0], 1: [0, 1], 2: [0, 1, 2], 3: [1, 2, 3]}
    assert list_seen(make_call(3, 2, 6)) == {0: [2, 3, 4], 1: [3, 4, 5]}
    assert list_seen(make_call(3, 1, 6)) == {0: [3, 4, 5]}
    assert list_seen(make_call(1, 3, 3)) == {0: [0], 1: [1], 2: [2]}


def test_without_a_causal_mask_it_sees_as_far_ahead():
    assert list_seen(make_call(2, 4, 4, causal=False)) == {
        0: [0, 1],
        1: [0, 1, 2],
        2: [1, 2, 3],
        3: [2, 3],
    }
    assert list_seen(make_call(2, 1, 4, causal=False)) == {0: [2, 3]}


def test_what_has_no_place_sees_and_is_seen():
    placed = torch.tensor([False, True, True, True, False])
    both = list_seen(make_call(1, 5, 5, causal=False, has_position=placed))
    assert both == {
        0: [0, 1, 2, 3, 4],
        1: [0, 1, 4],
        2: [0, 2, 4],
        3: [0, 3, 4],
        4: [0, 1, 2, 3, 4],
    }
    assert list_seen(make_call(1, 5, 5, has_position=placed)) == {
        0: [0],
        1: [0, 1],
        2: [0, 2],
        3: [0, 3],
        4: [0, 1, 2, 3, 4],
    }


def test_a_window_ends_with_its_document():
    assert list_seen(make_call(3, 4, 4, document=torch.tensor([0, 0, 1, -1]))) == {
        0: [0],
        1: [0, 1],
        2: [2],
        3: [],
    }


def test_a_window_as_wide_as_the_text_leaves_the_fused_mask_on():
    assert not make_call(N).has_window
    assert make_call(N - 1).has_window
    assert (
        choose_backend(make_call(N))
        == choose_backend(make_call(None))
        == ("sdpa", "nothing but q, k and v")
    )


def test_the_interpreter_is_told_by_the_device():
    assert choose_backend(make_call(3), "cpu") == ("sdpa", "a window, as a mask")
    assert choose_backend(make_call(3), "cuda") == ("flex", "a window, as blocks")
    wide = make_call(3).add_low_rank_bias(
        torch.zeros(1, 1, N, 40).double(), torch.zeros(1, 1, N, 40).double()
    )
    assert choose_backend(wide, "cuda")[0] == "chunked"


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [N, 4, 1])
def test_interpreters_agree(causal, n):
    placed, document = torch.arange(N) > 0, torch.tensor([0] * 6 + [1] * 3 + [-1])
    for facts in ({}, {"has_position": placed}, {"has_position": placed, "document": document}):
        call = make_call(3, n, causal=causal, **facts)
        slopes = call.add_bias(lambda b, h, i, j, call=call: -call.distance(b, i, j) / (h + 1))
        for one in (call, slopes):
            for backend in ("sdpa", "flex"):
                near(attend(one, backend)[0], attend(one, "reference")[0])


@pytest.mark.parametrize("name", ["fox", "alibi", "cope", "stickbreaking", "tape"])
def test_a_cache_keeps_what_later_queries_see(name):
    parts, x = layer(name), torch.randn(2, N, 16).double()
    placed, document = torch.arange(N) % 5 > 0, torch.tensor([0] * 2 + [1] * 8)
    for facts in (
        {},
        {"has_position": placed},
        {"document": document},
        {"has_position": placed, "document": document},
    ):
        whole = run(parts, x, Context(), N, **facts)
        near(run(parts, x, KeyValueCache(), 6, 2, 1, 1, **facts), whole)
        with torch.no_grad():  # where a step appends in place
            near(run(parts, x, KeyValueCache(), *[1] * N, **facts), whole)
            near(run(parts, x, KeyValueCache(), 6, 2, 1, 1, **facts), whole)


@pytest.mark.parametrize("name", ["selective_rope", "path", "fox", "key_offset"])
def test_padding_in_a_window_leaves_what_lies_before_it_to_later_tokens(name):
    parts, x = layer(name), torch.randn(2, N, 16).double()
    document = torch.tensor([0, 0, 0, -1, -1, -1, 0, 0, -1, 0])
    whole, real = run(parts, x, Context(), N, document=document), document >= 0
    for sizes in ([7, 1, 1, 1], [3, 3, 3, 1], [1] * N):
        decoded = run(parts, x, KeyValueCache(), *sizes, document=document)
        near(decoded[:, real], whole[:, real])


@pytest.mark.parametrize("window", [1, 4])
def test_a_cache_rolls(window):
    parts, cache = layer(window=window), KeyValueCache()
    run(parts, torch.randn(2, N, 16).double(), cache, 7, 1, 1, 1)
    kept = cache._layers[0]
    assert len(kept.k) == len(kept.v) == len(kept.tokens) == window - 1
    assert kept.tokens.pos[0, :, 0].tolist() == list(range(N - window + 1, N))
    assert cache.seen == N
    copied = cache.copy()
    run(parts, torch.randn(2, 1, 16).double(), copied, 1)
    assert (copied.seen, cache.seen) == (N + 1, N)


def test_a_cache_keeps_all_where_a_token_without_a_place_may_see_it():
    parts, cache, x = layer(window=3), KeyValueCache(), torch.randn(2, N, 16).double()
    run(parts, x, cache, 5, 5, has_position=torch.arange(N) != 1)
    assert len(cache._layers[0].tokens) == N
    rolled = KeyValueCache()
    run(parts, x, rolled, N)
    run(parts, x[:, :1], rolled, 1, has_position=torch.tensor([True]))
    with pytest.raises(
        OptionError, match="attends to all tokens, but those before the window are forgotten"
    ):
        run(parts, x[:, :1], rolled, 1, has_position=torch.tensor([False]))


def write_published_mask(queries, memory, length):
    """bool [N, M]: the mask of Transformer-XL's `same_length`, in its own terms (True: seen)."""
    keys = memory + queries
    ones, beyond = torch.ones(queries, keys), keys - length
    shift = queries - beyond if beyond > 0 else queries
    return (torch.triu(ones, 1 + memory) + torch.tril(ones, -shift)) == 0


@pytest.mark.parametrize(("queries", "memory"), [(4, 0), (4, 4), (6, 4), (3, 5), (8, 5)])
def test_a_window_of_the_memory_is_the_same_length_for_all(queries, memory):
    length = max(memory, 5)
    call = make_call(length, queries, memory + queries)
    assert torch.equal(
        attention_mask(call)[0, 0].expand(queries, -1),
        write_published_mask(queries, memory, length),
    )
    if memory == length:
        assert (attention_mask(call).sum(-1) == memory).all()


def test_segments_whose_memory_is_the_window_are_one_pass():
    parts, x = layer("transformer_xl"), torch.randn(2, N, 16).double()
    near(run(parts, x, SegmentMemory(4), 3, 4, 3), run(parts, x, Context(), N))
