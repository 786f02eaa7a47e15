"""Small random attention calls in float64, by which an encoding is compared with a reference."""

from __future__ import annotations

import pytest
import torch
from literal.call import Call
from literal.functions import softmax
from torch.nn import functional as F

import zoo
from zoo.attention.encoding import Dims
from zoo.attention.kv_cache import KeyValueCache

REFERENCE = 1e-9  # largest error of the same numbers computed in another order
TOKENS, BATCH, LENGTH = 7, 2, 16
MASKS = pytest.mark.parametrize("causal", [True, False])
QUERIES = pytest.mark.parametrize("queries", [TOKENS, 3, 1])  # the last so many tokens


def make_dims(heads=4, head=8, layer=0, depth=None):
    return Dims(heads * head, heads, length=LENGTH, layer=layer, depth=depth)


def move_parameters(encoding, step=0.5):
    """Convert to float64, without gradients, and move every parameter from where it starts."""
    encoding = encoding.double().requires_grad_(False)
    for parameter in encoding.parameters():
        parameter += step * torch.randn_like(parameter)
    return encoding


def make_encoding(name, heads=4, head=8, **options):
    """Make an encoding, or a list of them, with moved parameters."""
    return move_parameters(zoo.encoding(name, make_dims(heads, head), **options))


def draw_positions(real=False, tokens=TOKENS):
    """Draw increasing positions [tokens], whole unless `real`."""
    steps = torch.randint(1, 4, (tokens,)).double()
    return (steps * torch.rand(tokens).double() if real else steps).cumsum(0) - 1


def make_call(heads=4, head=8, queries=TOKENS, causal=True, pos=None):
    q, k, v = torch.randn(3, BATCH, heads, TOKENS, head, dtype=torch.float64)
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    visible = (visible.tril() if causal else visible)[-queries:]
    x = torch.randn(BATCH, TOKENS, heads * head, dtype=torch.float64)
    return Call(q[:, :, -queries:], k, v, draw_positions() if pos is None else pos, visible, x)


def assert_close(actual, expected, tolerance=REFERENCE):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def compute_scores(encoding, call, causal=True, **more):
    return zoo.functional.scores(
        encoding, call.q, call.k, call.pos[:, None], x=call.x, causal=causal, **more
    )


def compute_weights(encoding, call, causal=True):
    return zoo.functional.weights(
        encoding, call.q, call.k, call.pos[:, None], x=call.x, causal=causal
    )


def attend(encoding, call, causal=True):
    return zoo.functional.attend(
        encoding, call.q, call.k, call.v, call.pos[:, None], x=call.x, causal=causal
    )


def check_attention(encoding, call, expected, causal=True):
    """Compare scores with those of a reference, and weights and output with what follows."""
    assert_close(compute_scores(encoding, call, causal), expected)
    assert_close(compute_weights(encoding, call, causal), softmax(expected))
    assert_close(attend(encoding, call, causal), softmax(expected) @ call.v)


def check_reference_catches(fault, reference, causal=True, heads=4, head=8, options=None):
    """Assert that a class departs from the scores of a reference, and the class that it spoils does not.

    Args:
        fault: A class with a planted fault, whose first base is the class without.
        reference: Function of the encoding and the call.
        causal: Whether keys ahead are hidden.
        heads: Number of heads.
        head: Channels of a head.
        options: Options of both classes.
    """
    for cls in (fault.__base__, fault):
        torch.manual_seed(1)
        encoding = move_parameters(cls(make_dims(heads, head), **(options or {})))
        call = make_call(heads, head, causal=causal)
        expected = reference(encoding, call)
        if cls is fault:
            with pytest.raises(AssertionError, match="not close"):
                assert_close(compute_scores(encoding, call, causal), expected)
        else:
            check_attention(encoding, call, expected, causal)


# layers


DOCUMENTS = torch.tensor([-1, 0, 0, 0, 1, 1, 1])


def attend_packed(names, heads=4, head=8):
    """Run a causal layer over packed documents.

    Returns:
        Its output, its encoding, its call, and a function that projects attended values [B, H, N, K].
    """
    attention = zoo.Attention(make_dims(heads, head), names, causal=True)
    move_parameters(attention)
    layer = attention.layer
    x = torch.randn(BATCH, TOKENS, heads * head, dtype=torch.float64)
    pos = torch.tensor([0.0, 0, 1, 2, 0, 1, 2]).double()
    q, k, v = (
        project(x).unflatten(-1, (heads, head)).transpose(1, 2)
        for project in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    same = (DOCUMENTS[:, None] == DOCUMENTS) & (DOCUMENTS >= 0)
    call = Call(q, k, v, pos, same.tril(), x)

    def project_output(values):
        merged = values.transpose(1, 2).flatten(2)
        return F.linear(merged, layer.o_proj.weight, layer.o_proj.bias)

    out = attention(x, pos[:, None], document=DOCUMENTS)
    return out, attention.encoding, call, project_output


def check_documents(names, reference):
    """Compare a layer over packed documents with a reference, a function of encoding and call."""
    out, encoding, call, project_output = attend_packed(names)
    assert_close(out, project_output(softmax(reference(encoding, call)) @ call.v))


def check_cached_decoding(name, tokens=9, **options):
    """Assert that tokens decoded one by one from a cache give what one pass gives."""
    encoding = move_parameters(zoo.encoding(name, Dims(16, 2, length=64, depth=2), **options))
    layer = zoo.Attention(encoding.dims, encoding, causal=True).double()
    x, pos = torch.randn(1, tokens, 16).double(), torch.arange(tokens).double()[:, None]
    cache = KeyValueCache()
    steps = [layer(x[:, i : i + 1], pos[i : i + 1], context=cache) for i in range(tokens)]
    assert_close(torch.cat(steps, dim=1), layer(x, pos))


def check_future_changes_nothing(name, tokens=9, **options):
    """Assert that the output of a token does not depend on keys, values and states of later ones."""
    encoding = move_parameters(zoo.encoding(name, Dims(16, 2, length=64, depth=2), **options))
    q, k, v = torch.randn(3, 1, 2, tokens, 8, dtype=torch.float64).unbind()
    x, pos = torch.randn(1, tokens, 16).double(), torch.arange(tokens).double()[:, None]
    whole = zoo.functional.attend(encoding, q, k, v, pos, x=x, causal=True)
    k[:, :, 5:], v[:, :, 5:], x[:, 5:] = 3.0, -2.0, 7.0
    changed = zoo.functional.attend(encoding, q, k, v, pos, x=x, causal=True)
    assert_close(changed[:, :, :5], whole[:, :, :5])
