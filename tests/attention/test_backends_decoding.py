"""A query alone, as decoding has it: what computes it, and that it copies no key."""

import pytest
import torch
from largest import Largest

import zoo
from zoo.attention.backends.chunked import attend_chunked
from zoo.attention.backends.dispatch import choose_backend
from zoo.attention.backends.fused import attend_sdpa
from zoo.attention.call import AttentionCall
from zoo.attention.kv_cache import KeyValueCache
from zoo.attention.tokens import Tokens


def make_call(n=1, m=9, value=8, dtype=torch.float32):
    q, k, v = (torch.randn(1, 2, *size).to(dtype) for size in ((n, 8), (m, 8), (m, value)))
    keys = Tokens.at(torch.zeros(1, m, 0, dtype=dtype), torch.arange(float(m))[:, None])
    return AttentionCall(q, k, v, q, keys.last(n), keys, True, 8**-0.5)


def add_slope(call):
    return call.add_low_rank_bias(call.q.new_ones(1, 1, 1, 1), call.k[..., :1])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_keys_are_made_wider_for_many_queries_alone(device):
    assert choose_backend(add_slope(make_call(n=9)), device)[0] == "sdpa"
    assert (
        choose_backend(add_slope(make_call()), device)[0]
        == choose_backend(make_call(value=16), device)[0]
        == "chunked"
    )
    assert choose_backend(make_call(), device)[0] == "sdpa"
    assert (
        choose_backend(add_slope(make_call(dtype=torch.bfloat16)), device)[0] == "sdpa"
    )  # they would be copied all the same


def test_a_query_alone_is_computed_as_any_other():
    call = make_call()
    torch.testing.assert_close(attend_chunked(call), attend_sdpa(call))


@torch.no_grad()
@pytest.mark.parametrize("name", ["none", "rope", "alibi", "fox", "pope", "t5"])
def test_a_step_makes_nothing_as_large_as_the_keys(name):
    layer, cache, largest = (
        zoo.Attention(zoo.Dims(64, 2), name, causal=True),
        KeyValueCache(),
        Largest(),
    )
    layer(torch.randn(1, 500, 64), context=cache)
    layer(torch.randn(1, 1, 64), context=cache)  # which makes room
    with largest:
        layer(torch.randn(1, 1, 64), context=cache)
    assert largest.most < 502 * 64 / 2
