"""Linear attention: sums over keys are the definition, in whatever order and in however many passes they are made."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import zoo
from zoo.attention import linear_sums
from zoo.attention.call import repeat_kv_heads
from zoo.attention.chain import Chain
from zoo.attention.encoding import Encoding
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import Context, LayerOptions
from zoo.attention.tokens import Tokens, disable_autocast, upcast
from zoo.errors import OptionError
from zoo.mixers.linear import LinearAttention

N = 23
DIMS, SHARED = zoo.Dims(32, 4, length=64, depth=2), zoo.Dims(32, 4, length=64, depth=2, kv_heads=2)
DOCUMENTS = {
    "one": None,
    "packed": torch.tensor([0] * 5 + [1] * 9 + [2] * 9),
    "padded": torch.tensor([[-1] * 3 + [0] * 20, [0] * 4 + [3] * 14 + [-1] * 5]),
    "interrupted": torch.tensor([0] * 4 + [-1] * 3 + [0] * 16),
}
documents = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
FULL = LayerOptions(qk_norm=True, output_norm=True, output_gate=True, token_shift=True)
APART = torch.tensor(
    [[2] + [0] * 8 + [1] * 6 + [2] * 5 + [-1] * 3]
)  # a class token, before the first document


def attend_quadratic(call):
    """Compute the output [B, H, N, V] by the definition."""
    shares, v = linear_sums.weights(call), call.call.v
    with disable_autocast(shares.device):
        return (shares @ upcast(repeat_kv_heads(v, shares.shape[1]))).to(v.dtype)


def layer(name="rope", dims=DIMS, causal=True, options=LayerOptions()):
    made = LinearAttention(dims, options).double()
    made.causal = causal
    return made.eval(), Chain.of(zoo.encoding(name, dims)).double().eval()


def tokens(x, start=0, document=None, shift=0.0):
    return Tokens.at(
        x,
        torch.arange(start, start + x.shape[1])[:, None].double() + shift,
        document=document,
        ordered=True,
    )


def states(batch=2, count=N):
    return torch.randn(batch, count, 32, dtype=torch.float64)


def describe(parts, at, context=None):
    return parts[0].describe(parts[1].embed(at), parts[1], context or Context())[1]


def run(parts, at, context=None):
    return parts[0](parts[1].embed(at), parts[1], context or Context()).x


def near(actual, expected, tolerance=1e-9):
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def literal(q, k, v, pos, seen):
    """The formula for one head, pair by pair: q, k, v [N, K]."""

    def turn(x, at):
        waves = 10000.0 ** (-torch.arange(0, len(x), 2) / len(x))
        z = torch.view_as_complex(x.view(-1, 2)) * torch.polar(
            torch.ones(len(waves)).double(), at * waves.double()
        )
        return torch.view_as_real(z).flatten()

    out = torch.zeros_like(v)
    for i in range(len(q)):
        phi, sums, norm = F.elu(q[i]) + 1, torch.zeros_like(v[0]), torch.zeros(()).double()
        for n in filter(lambda n: seen[i, n], range(len(k))):
            key = F.elu(k[n]) + 1
            sums = sums + (turn(phi, pos[i]) @ turn(key, pos[n])) * v[n]
            norm = norm + phi @ key
        out[i] = sums / norm if seen[i].any() else sums
    return out


# the definition


@pytest.mark.parametrize("causal", [True, False])
def test_the_definition_is_the_formula(causal):
    parts, at = (
        layer(causal=causal),
        tokens(states(1, 9), document=torch.tensor([0, 0, 0, 1, 1, 1, 1, -1, -1])),
    )
    call, (attention, _) = describe(parts, at), parts
    number = at.document[0]
    seen = (
        (number[:, None] == number)
        & (number >= 0)
        & torch.ones(9, 9).bool().tril(0 if causal else 9)
    )
    for head in range(4):
        own = (
            project(at.x)[0, :, 8 * head : 8 * head + 8]
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        near(attend_quadratic(call)[0, head], literal(*own, at.pos[0, :, 0], seen))


def test_features_are_positive_where_their_formula_rounds_to_nothing():
    x = torch.tensor([-30.0, -1.0, 0.0, 2.0], requires_grad=True)
    near(
        linear_sums.feature_map(x).double(),
        torch.tensor([math.exp(-30), math.exp(-1), 1, 3]).double(),
        1e-6,
    )
    assert linear_sums.feature_map(x)[0] > 0
    linear_sums.feature_map(x).sum().backward()
    near(x.grad, torch.tensor([math.exp(-30), math.exp(-1), 1, 1]), 1e-6)
    assert linear_sums.feature_map(x.bfloat16()).dtype == torch.float32


def test_turned_weights_may_be_negative_and_plain_ones_are_shares():
    turn, plain = (
        linear_sums.weights(describe(layer(name), tokens(states() * 3)))
        for name in ("rope", "none")
    )
    assert turn.min() < 0
    assert plain.min() >= 0
    near(plain.sum(-1), torch.ones(2, 4, N).double())


# sums


def results(call, leaves, compute):
    out = compute(call)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [
        out,
        *torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True, retain_graph=True),
    ]


@documents
@pytest.mark.parametrize("dims", [DIMS, SHARED], ids=["alone", "shared"])
@pytest.mark.parametrize("causal", [True, False])
def test_sums_are_the_definition(document, dims, causal):
    parts, x = layer(dims=dims, causal=causal), states().requires_grad_()
    call = describe(parts, tokens(x, document=document))
    leaves = [x, *(getattr(parts[0], name).weight for name in ("q_proj", "k_proj", "v_proj"))]
    right = results(call, leaves, attend_quadratic)
    for size in (1, 4, 7, N, 64):
        compute = (
            (lambda call, n=size: linear_sums.attend_causal(call, size=n)[0])
            if causal
            else (lambda call, n=size: linear_sums.attend_bidirectional(call, n))
        )
        for one, other in zip(results(call, leaves, compute), right, strict=True):
            near(one, other)


def test_without_a_mask_a_document_may_stand_apart():
    call = describe(layer(causal=False), tokens(states(), document=APART))
    near(linear_sums.attend_bidirectional(call, 4), attend_quadratic(call))


@pytest.mark.parametrize("causal", [True, False])
@documents
def test_queries_may_be_the_last_of_the_keys(causal, document):
    linear_call = describe(layer(causal=causal), tokens(states(), document=document))
    call = linear_call.call
    few = call.replace(
        q=call.q[:, :, -5:], raw_query=call.raw_query[:, :, -5:], queries=call.queries.last(5)
    )
    call = linear_sums.LinearCall(few, linear_call.features)
    near(
        linear_sums.attend_causal(call, size=4)[0]
        if causal
        else linear_sums.attend_bidirectional(call, 4),
        attend_quadratic(call),
    )


@pytest.mark.parametrize("causal", [True, False])
def test_a_row_that_sees_nothing_is_zero(causal):
    parts, x = layer(causal=causal), states().requires_grad_()
    call = describe(parts, tokens(x, document=DOCUMENTS["padded"]))
    for out in (
        attend_quadratic(call),
        linear_sums.attend_causal(call)[0] if causal else linear_sums.attend_bidirectional(call),
    ):
        padding = (DOCUMENTS["padded"] < 0)[:, None].expand(-1, 4, -1)
        assert not out[padding].any()
        (gradient,) = torch.autograd.grad(out.square().sum(), x, retain_graph=True)
        assert gradient.isfinite().all()


# what is remembered


@documents
@pytest.mark.parametrize("dims", [DIMS, SHARED], ids=["alone", "shared"])
def test_decoding_is_one_pass(document, dims):
    parts, x = layer("rope_mixed", dims, options=FULL), states()
    whole = run(parts, tokens(x, document=document))
    for counts in ([1] * N, [5, 1, 10, 7]):
        cache, begin, out = KeyValueCache(), 0, []
        for count in counts:
            own = None if document is None else document[..., begin : begin + count]
            out.append(run(parts, tokens(x[:, begin : begin + count], begin, own), cache))
            begin += count
        near(torch.cat(out, 1), whole)
        assert cache.seen == N


def test_a_state_does_not_grow():
    parts, cache = layer("rope", SHARED), KeyValueCache()
    run(parts, tokens(states()), cache)
    run(parts, tokens(states(), N), cache)
    state = cache.state(0)
    assert not cache._layers
    assert (state.values["products"].numel(), state.values["sums"].numel()) == (
        2 * 2 * 8 * 8,
        2 * 2 * 8,
    )


def test_a_copied_context_leaves_the_first_as_it_is():
    parts, cache, x = layer(), KeyValueCache(), states()
    run(parts, tokens(x[:, :9]), cache)
    copied, later = cache.copy(), tokens(x[:, 9:], 9)
    once = run(parts, later, copied)
    near(run(parts, later, cache), once)
    cache.restore(copied)
    assert cache.seen == N


def test_segments_with_memory_are_one_pass():
    parts, x, memory = layer(), states(), SegmentMemory(N)
    out = [
        run(parts, tokens(part, start), memory)
        for part, start in zip(x.split(8, 1), (0, 8, 16), strict=True)
    ]
    near(torch.cat(out, 1), run(parts, tokens(x)))


# positions


def test_only_differences_of_places_count():
    parts, x = layer(), states()
    near(run(parts, tokens(x, shift=7.5)), run(parts, tokens(x)))
    spread = tokens(x).replace(index=2 * tokens(x).index, pos=2 * tokens(x).pos)
    assert (run(parts, spread) - run(parts, tokens(x))).abs().max() > 1e-6


def test_turned_before_their_features_places_themselves_count():
    (attention, chain), at = layer(), tokens(3 * states())
    q, k = (
        project(at.x).unflatten(-1, (4, 8)).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj)
    )

    def products(shift, turned_first):
        moved = chain.embed(tokens(at.x, shift=shift))
        turn, first = (lambda x: chain.transform_key(x, moved)), turned_first
        one, other = (
            linear_sums.feature_map(turn(x)) if first else turn(linear_sums.feature_map(x))
            for x in (q, k)
        )
        return one @ other.mT

    near(products(7.5, turned_first=False), products(0.0, turned_first=False))
    assert (products(7.5, turned_first=True) - products(0.0, turned_first=True)).abs().max() > 1e-3


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_an_encoding_applies_or_is_refused_by_name(name):
    if 1 not in zoo.encoding_class(name).axes or zoo.encoding_class(name).consumes_biases:
        return
    try:
        chain = Chain.of(zoo.encoding({"name": name, "coordinates": "index"}, DIMS)).double().eval()
    except OptionError:
        pytest.skip("wants other sizes")
    x, attention = states(), layer()[0]
    if (
        all(type(link).modify is Encoding.modify for link in chain) and name != "pope"
    ):  # whose heads are wider
        changed = torch.cat([x[:, :9], torch.randn_like(x[:, 9:])], 1)
        near(
            run((attention, chain), tokens(x))[:, :9],
            run((attention, chain), tokens(changed))[:, :9],
        )
    else:
        with pytest.raises(
            OptionError,
            match=rf"{name} changes .* use encodings that add to the input or rotate heads",
        ):
            run((attention, chain), tokens(x))


class Wider(Encoding):
    """Heads twice as wide."""

    name = "wider"

    def transform_query(self, q, tokens):
        return torch.cat([q, q], -1)

    def transform_key(self, k, tokens):
        return self.transform_query(k, tokens)


def test_an_encoding_that_widens_heads_is_refused():
    chain = Chain(DIMS, {"sinusoidal": zoo.encoding("sinusoidal", DIMS), "wider": Wider(DIMS)})
    with pytest.raises(OptionError, match="wider changes the width of heads"):
        run((layer()[0], chain), tokens(states()))


# options, precision, compilers


@pytest.mark.parametrize("causal", [True, False])
def test_bfloat16_stays_close(causal):
    attention, chain = layer(causal=causal)
    parts, x = (attention.float(), chain.float()), states().float().requires_grad_()
    at = tokens(x, shift=5000, document=DOCUMENTS["padded"])
    exact = run(parts, at)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, call = run(parts, at), describe(parts, at)
    assert call.call.q.dtype == torch.float32
    near(rounded.float(), exact, 0.03)
    rounded.float().square().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "causal"), [("rope", True), pytest.param("none", False, marks=pytest.mark.nightly)]
)
def test_a_compiler_captures_it(name, causal):
    parts, x, document = (
        layer(name, causal=causal),
        states(2, 5),
        torch.tensor([[0, 0, 1, 1, -1], [-1, 0, 0, 0, 0]]),
    )
    at = tokens(x, document=document)
    captured = torch.compile(
        lambda x: run(parts, at.replace(x=x)), fullgraph=True, backend="aot_eager"
    )
    near(captured(x), run(parts, at))
