"""Encodings as functions for FlexAttention, against the attention that they describe."""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import zoo
from zoo.errors import OptionError

BIASES = {
    "alibi",
    "fire",
    "fox",
    "grape_a",
    "grape_ap",
    "kerple",
    "none",
    "pape",
    "path",
    "relative_projection",
    "sandwich",
    "t5",
    "transformer_xl",
    "tupe",
}
UNSHARED = ("repo", "tape")  # which refuse heads that share a key
NAMES = [name for name in zoo.encoding_names() if 1 in zoo.encoding_class(name).axes]
N, M = 20, 24


def draw_heads(heads=4, keys=M):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, heads, N, 8, generator=generator)
    k, v = torch.randn(2, 2, 2, keys, 8, generator=generator)
    return q, k, v, torch.randn(2, keys, 32, generator=generator)


def make(name):
    entry = ["alibi", name] if zoo.encoding_class(name).consumes_biases else name
    kv_heads = 4 if name in UNSHARED else 2
    made = zoo.encoding(entry, zoo.Dims(32, 4, length=M, depth=2, kv_heads=kv_heads))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return made.eval()


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_an_encoding_is_a_score_mod_or_says_what_it_needs(name):
    encoding, (q, k, v, x) = make(name), draw_heads()
    if name in UNSHARED:
        k, v = (one.repeat_interleave(2, 1) for one in (k, v))
    pos = torch.arange(float(M))[:, None]
    if name not in BIASES:
        with pytest.raises(OptionError, match=r"zoo\.functional\.(attend|embed)"):
            zoo.functional.score_mod(encoding, q, k, pos, x=x, causal=True)
        return
    change = zoo.functional.score_mod(encoding, q, k, pos, x=x, causal=True)
    blocks = zoo.functional.block_mask(M, queries=N, causal=True)
    out = flex_attention(q, k, v, score_mod=change, block_mask=blocks, enable_gqa=True)
    expected = zoo.functional.attend(encoding, q, k, v, pos, x=x, causal=True)
    # squares of positions, which cancel for near ones
    close = 1e-4 if name == "pape" else 1e-5
    torch.testing.assert_close(out, expected, atol=close, rtol=close)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize(
    # inductor takes half a minute of a C++ compiler
    "backend",
    ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)],
)
def test_a_compiled_score_mod_reads_positions_as_it_does_uncompiled(backend):
    # Not 24 keys: torch 2.13 compiles flex_attention for a CPU to a kernel that then reads past
    # the last key, with or without a score_mod.
    keys = 32
    encoding, (q, k, v, _) = make("kerple"), draw_heads(keys=keys)
    pos = 3 * torch.arange(float(keys))[:, None]
    change = zoo.functional.score_mod(encoding, q, k, pos, causal=True)
    expected = zoo.functional.attend(encoding, q, k, v, pos, causal=True)
    blocks = zoo.functional.block_mask(keys, queries=N, causal=True)
    k, v = (one.repeat_interleave(2, 1) for one in (k, v))
    compiled = torch.compile(flex_attention, backend=backend)
    out = compiled(q, k, v, score_mod=change, block_mask=blocks)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_what_is_added_to_the_input_of_each_layer_is_not_lost():
    learned = zoo.encoding("learned", zoo.Dims(32, 4, length=M), shared=False)
    q, k, _, _ = draw_heads(heads=4)
    k = k.repeat_interleave(2, 1)
    with pytest.raises(OptionError, match="learned adds to the input of each layer"):
        zoo.functional.score_mod(learned, q, k, torch.arange(float(M))[:, None])


@torch.no_grad()
def test_a_score_mod_of_images():
    encoding = zoo.encoding("t5", zoo.Dims(32, 4, 2, length=(4, 6)))
    torch.nn.init.normal_(next(encoding.parameters()))
    q, k, v = torch.randn(3, 2, 4, 24, 8)
    pos = torch.cartesian_prod(torch.arange(4.0), torch.arange(6.0))
    out = flex_attention(q, k, v, score_mod=zoo.functional.score_mod(encoding, q, k, pos))
    expected = zoo.functional.attend(encoding, q, k, v, pos)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_block_mask_hides_what_attention_hides():
    document = torch.tensor([[0] * 10 + [1] * 14, [0] * 20 + [-1] * 4])
    mask = zoo.functional.block_mask(M, queries=N, causal=True, window=6, document=document)
    assert mask.shape == (2, 1, N, M)
    i, j = torch.arange(N)[:, None] + M - N, torch.arange(M)
    for sample, numbers in enumerate(document):
        same = (numbers[M - N :, None] == numbers) & (numbers >= 0)
        expected = same & (j <= i) & (i - j < 6)
        index = torch.tensor(sample), torch.tensor(0), torch.arange(N)[:, None], j
        assert torch.equal(mask.mask_mod(*index), expected)
    with pytest.raises(OptionError, match="25 queries are not among 24 keys"):
        zoo.functional.block_mask(M, queries=25)
    assert zoo.functional.block_mask(M).shape == (1, 1, M, M)
