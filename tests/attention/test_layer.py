"""The layer projects, lets the chain describe, computes, and projects back."""

from __future__ import annotations

import pytest
import torch

import zoo
from zoo.attention.backends.dispatch import attend
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context, LayerOptions, SelfAttention
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

DIMS = Dims(16, 2)
POS = torch.arange(1.0, 6.0)[:, None].double()


def describe(encoding="rope", backend="auto", **options):
    layer = SelfAttention(DIMS, LayerOptions(**options), backend=backend).double()
    at = Tokens.at(torch.randn(2, 5, 16).double(), POS)
    made = encoding if isinstance(encoding, Encoding) else zoo.encoding(encoding, DIMS)
    return layer, at, layer.describe(at, Chain.of(made), Context())[1]


def heads(x):
    return x.unflatten(-1, (2, 8)).transpose(1, 2)


def test_content_is_the_query_before_it_is_turned():
    layer, at, call = describe()
    assert torch.equal(call.raw_query, heads(layer.q_proj(at.x)))
    assert not torch.allclose(call.q, call.raw_query)
    assert call.scale == 8**-0.5


class Tilted(Encoding):
    """A bias of the content of queries."""

    def modify(self, call):
        return call.add_bias(
            lambda b, h, i, j: call.raw_query[b, h, i, 0] * call.offset(b, i, j)[..., 0]
        )


def test_functions_hand_on_the_content_too():
    chain = Chain(DIMS, {"rope": zoo.encoding("rope", DIMS), "tilted": Tilted(DIMS)})
    q, k = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64).unbind()
    tilt = zoo.functional.scores(chain, q, k, POS) - zoo.functional.scores(
        zoo.encoding("rope", DIMS), q, k, POS
    )
    torch.testing.assert_close(tilt, q[..., :1] * (POS - POS.T))


def test_keys_have_no_bias():
    layer, _, _ = describe()
    assert layer.k_proj.bias is None
    assert layer.q_proj.bias is not None


def test_normed_heads_have_unit_size_before_they_turn():
    layer, _, call = describe(qk_norm=True)
    size = call.raw_query.square().mean(-1)
    torch.testing.assert_close(size, torch.ones_like(size), atol=1e-4, rtol=0)
    torch.testing.assert_close(call.k.square().mean(-1), torch.ones_like(size), atol=1e-4, rtol=0)
    assert set(dict(layer.named_parameters())) >= {"q_norm.weight", "k_norm.weight"}


def test_the_output_is_projected_attention():
    layer, at, call = describe()
    out = layer(at, Chain.of(zoo.encoding("rope", DIMS)), Context())[0].x
    torch.testing.assert_close(out, layer.o_proj(attend(call)[0].transpose(1, 2).flatten(2)))


def test_the_interpreter_can_be_chosen():
    class Doubled(Encoding):
        def modify(self, call):
            return call.replace(transform_scores=lambda scores, visible, span: 2 * scores)

    layer, at, _ = describe(backend="sdpa")
    with pytest.raises(OptionError, match="use reference"):
        layer(at, Chain.of(Doubled(DIMS)), Context())


def ran(layer, x, context, start=0, document=None):
    pos = torch.arange(start, start + x.shape[1]).double()[:, None]
    at = Tokens.at(x, pos, document=document)
    return layer(at, Chain.of(zoo.encoding("rope", DIMS)), context)[0].x


def full(causal=True):
    """A layer with everything that FoX (Pro) has."""
    options = LayerOptions(qk_norm=True, output_norm=True, output_gate=True, token_shift=True)
    return SelfAttention(DIMS, options, causal=causal).double()


def test_a_layer_with_everything_decodes_as_in_one_pass():
    layer, x = full(), torch.randn(2, 7, 16).double()
    for context, counts in (
        (KeyValueCache(), [1] * 7),
        (KeyValueCache(), [3, 1, 3]),
        (SegmentMemory(7), [4, 3]),
    ):
        starts = [sum(counts[:n]) for n in range(len(counts))]
        parts = [
            ran(layer, x[:, s : s + n], context, s) for s, n in zip(starts, counts, strict=True)
        ]
        torch.testing.assert_close(torch.cat(parts, 1), ran(layer, x, Context()))
        assert context.seen == 7


def test_nothing_is_shifted_across_documents():
    layer, x = full(), torch.randn(1, 6, 16).double()
    packed = ran(layer, x, Context(), document=torch.tensor([-1, -1, 0, 0, 1, 1]))
    for own in (slice(2, 4), slice(4, 6)):
        torch.testing.assert_close(packed[:, own], ran(layer, x[:, own], Context(), own.start))


def test_shifted_keys_are_mixed_with_those_before_them_before_their_norm():
    layer, at, call = describe("none", token_shift=True, qk_norm=True)
    rates = layer.token_shift(at.x).sigmoid()[..., :2]  # [B, N, H]
    raw = layer.k_proj(at.x).unflatten(-1, (2, 8))
    before = torch.cat([torch.zeros_like(raw[:, :1]), raw[:, :-1]], 1)
    mixed = rates[..., None] * before + (1 - rates[..., None]) * raw
    torch.testing.assert_close(call.k, layer.k_norm(mixed).transpose(1, 2))


def test_outputs_are_normed_and_then_gated():
    layer, at, call = describe(output_norm=True, output_gate=True)
    normalize = layer.output_norm(attend(call)[0]).transpose(1, 2).flatten(2)
    out = layer(at, Chain.of(zoo.encoding("rope", DIMS)), Context())[0].x
    torch.testing.assert_close(
        normalize.unflatten(-1, (2, 8)).square().mean(-1),
        torch.ones(2, 5, 2).double(),
        atol=1e-3,
        rtol=0,
    )
    torch.testing.assert_close(out, layer.o_proj(normalize * layer.output_gate(at.x).sigmoid()))


def test_per_head_norms_are_root_mean_squares_with_a_weight_for_each_head_and_channel():
    layer, at, call = describe(
        "none", qk_norm=True, qk_norm_eps=1e-5, output_norm=True, per_head_norms=True
    )
    norms = (layer.q_norm, layer.k_norm, layer.output_norm)
    for norm in norms:
        norm.weight.data = torch.randn(16).double()

    def normalize(x, weight, eps):  # [B, N, H K], literally
        out = torch.empty_like(x)
        for h in range(2):
            part = x[..., 8 * h : 8 * h + 8]
            size = (part.pow(2).sum(-1, keepdim=True) / 8 + eps).sqrt()
            out[..., 8 * h : 8 * h + 8] = part / size * weight[8 * h : 8 * h + 8]
        return out

    chain = Chain.of(zoo.encoding("none", DIMS))
    call = layer.describe(at, chain, Context())[1]
    for proj, norm, heads in zip(
        (layer.q_proj, layer.k_proj), norms, (call.q, call.k), strict=False
    ):
        expected = normalize(proj(at.x), norm.weight, 1e-5)
        torch.testing.assert_close(heads.transpose(1, 2).flatten(2), expected, rtol=1e-10, atol=0)
    out = normalize(attend(call)[0].transpose(1, 2).flatten(2), layer.output_norm.weight, 1e-6)
    actual = layer(at, chain, Context())[0].x
    torch.testing.assert_close(actual, layer.o_proj(out), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "key"),
    [({"per_head_norms": True}, "per_head_norms"), ({"qk_norm_eps": 1e-5}, "qk_norm_eps")],
)
def test_options_of_a_norm_that_is_not_there_are_refused(options, key):
    with pytest.raises(OptionError, match="there is no") as refused:
        LayerOptions(**options)
    assert refused.value.key == key


def test_projections_can_go_without_biases():
    layer, _, _ = describe(proj_bias=False)
    assert not [name for name, _ in layer.named_parameters() if name.endswith("bias")]


def test_vectors_can_be_turned_as_the_queries_were():
    _, _, call = describe()
    torch.testing.assert_close(call.transform_query(call.raw_query), call.q)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["auto", "reference", "chunked", "sdpa"])
@pytest.mark.parametrize("encoding", ["rope", "t5"])
def test_attention_dropout_drops_weights_in_training_alone(encoding, backend):
    made = zoo.encoding(encoding, DIMS)
    options = LayerOptions(attention_dropout=0.5)
    layer = SelfAttention(DIMS, options, backend=backend).double()
    batch = torch.randn(1, 5, 16).double().expand(2000, -1, -1)
    tokens, chain = Tokens.at(batch, POS), Chain.of(made)
    dropped = layer.train()(tokens, chain, Context())[0].x
    kept = layer.eval()(tokens, chain, Context())[0].x
    assert torch.equal(kept[0], kept[1])
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.mean(0), kept[0], atol=0.05, rtol=0)


def test_attention_dropout_is_refused_where_nothing_can_be_dropped():
    options = LayerOptions(attention_dropout=0.1)
    with pytest.raises(OptionError, match="flex has no dropout"):
        SelfAttention(DIMS, options, backend="flex")


@pytest.mark.parametrize("context", [torch.ones(1, 3, 16), torch.zeros(1), "cache", 0, False])
def test_what_is_no_context_is_refused_by_name(context):
    layer = zoo.Attention(zoo.Dims(16, 2), "rope")
    with pytest.raises(OptionError, match="context: expected a KeyValueCache or a SegmentMemory"):
        layer(torch.randn(1, 3, 16), context=context)
