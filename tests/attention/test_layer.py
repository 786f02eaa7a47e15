"""The layer projects, lets the chain describe, computes, and projects back."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.attention.attend import attend
from zoo.attention.chain import Chain
from zoo.attention.context import Context
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.layer import SelfAttention
from zoo.attention.tokens import Tokens
from zoo.errors import Invalid

DIMS = Dims(16, 2)
POS = torch.arange(1.0, 6.0)[:, None].double()


def described(encoding="rope", **options):
    layer, at = SelfAttention(DIMS, **options).double(), Tokens.at(torch.randn(2, 5, 16).double(), POS)
    made = encoding if isinstance(encoding, Encoding) else zoo.encoding(encoding, DIMS)
    return layer, at, layer.describe(at, Chain.of(made), Context())[1]


def heads(x):
    return x.unflatten(-1, (2, 8)).transpose(1, 2)


def test_content_is_the_query_before_it_is_turned():
    layer, at, terms = described()
    assert torch.equal(terms.content, heads(layer.query(at.x)))
    assert not torch.allclose(terms.q, terms.content)
    assert terms.scale == 8**-0.5


class Tilted(Encoding):
    """A bias of the content of queries."""

    def terms(self, terms):
        return terms.add_bias(lambda b, h, i, j: terms.content[b, h, i, 0] * terms.offset(b, i, j)[..., 0])


def test_functions_hand_on_the_content_too():
    chain = Chain(DIMS, {"rope": zoo.encoding("rope", DIMS), "tilted": Tilted(DIMS)})
    q, k = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64).unbind()
    tilt = zoo.scores(chain, q, k, POS) - zoo.scores(zoo.encoding("rope", DIMS), q, k, POS)
    torch.testing.assert_close(tilt, q[..., :1] * (POS - POS.T))


def test_keys_have_no_bias():
    layer, _, _ = described()
    assert layer.key.bias is None
    assert layer.query.bias is not None


def test_normed_heads_have_unit_size_before_they_turn():
    layer, _, terms = described(qk_norm=True)
    size = terms.content.square().mean(-1)
    torch.testing.assert_close(size, torch.ones_like(size), atol=1e-5, rtol=0)
    torch.testing.assert_close(terms.k.square().mean(-1), torch.ones_like(size), atol=1e-5, rtol=0)
    assert set(dict(layer.named_parameters())) >= {"query_norm.weight", "key_norm.weight"}


def test_the_output_is_projected_attention():
    layer, at, terms = described()
    out = layer(at, Chain.of(zoo.encoding("rope", DIMS)), Context())[0].x
    torch.testing.assert_close(out, layer.out(attend(terms)[0].transpose(1, 2).flatten(2)))


def test_the_interpreter_can_be_chosen():
    class Doubled(Encoding):
        def terms(self, terms):
            return terms.replace(rescore=lambda scores, visible: 2 * scores)

    layer, at, _ = described(backend="sdpa")
    with pytest.raises(Invalid, match="use dense"):
        layer(at, Chain.of(Doubled(DIMS)), Context())
