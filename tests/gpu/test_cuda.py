"""What only a GPU can show: FlexAttention's gradients, and half precision in the fused kernels."""

import math

import pytest
import torch

import zoo
from zoo.attention.backends.reference import apply_weights
from zoo.diagnostics.callback import draw_attention, summarize_layer
from zoo.diagnostics.capture import capture_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Window(zoo.Encoding):
    """A learned bias of distance, so that there is a captured parameter to differentiate."""

    def __init__(self, dims):
        super().__init__(dims)
        self.gain = torch.nn.Parameter(torch.linspace(0.1, 0.4, dims.heads))

    def modify(self, call):
        return call.add_bias(lambda b, h, i, j: -self.gain[h] * call.offset(b, i, j)[..., 0].abs())


def test_flex_and_dense_agree_in_value_and_gradient():
    encoding = Window(zoo.Dims(64, 4)).cuda()
    heads = [torch.randn(2, 4, 128, 16, device="cuda", requires_grad=True) for _ in range(3)]
    pos = torch.arange(128.0, device="cuda")[:, None]
    found = {}
    for backend in ("reference", "flex"):
        out = zoo.functional.attend(encoding, *heads, pos, causal=True, backend=backend)
        found[backend] = (out, *torch.autograd.grad(out.square().sum(), [*heads, encoding.gain]))
    for dense, flex in zip(found["reference"], found["flex"], strict=True):
        torch.testing.assert_close(flex, dense, atol=2e-3, rtol=2e-3)


GRIDS = [name for name in zoo.encoding_names() if 2 in zoo.encoding_class(name).axes]


@pytest.mark.parametrize("name", GRIDS)
def test_a_layer_on_a_gpu_equals_one_on_a_cpu(name):
    layer = zoo.Attention(zoo.Dims(192, 4, axes=2, length=(6, 6)), name).eval()
    x = torch.randn(2, 36, 192)
    torch.testing.assert_close(layer.cuda()(x.cuda()).cpu(), layer.cpu()(x), atol=1e-4, rtol=1e-3)


TEXT = [name for name in zoo.encoding_names() if 1 in zoo.encoding_class(name).axes]


@pytest.mark.parametrize("name", TEXT)
def test_what_auto_chooses_for_text_agrees_with_dense_in_value_and_gradient(name):
    chain = ["alibi", name] if zoo.encoding_class(name).consumes_biases else [name]
    listed = [{"name": one, "coordinates": "index"} for one in chain]
    layer = zoo.Attention(zoo.Dims(64, 4, length=128, depth=2), listed, causal=True).eval().cuda()
    x, found = torch.randn(2, 128, 64, device="cuda"), {}
    for backend in ("reference", "auto"):
        layer.layer.backend = backend
        layer.zero_grad()
        out = layer(x)
        out.square().sum().backward()
        gradients = {key: p.grad for key, p in layer.named_parameters() if p.grad is not None}
        found[backend] = {"out": out.detach(), **gradients}
    for key, value in found["auto"].items():  # what a fused kernel drops has no gradient
        torch.testing.assert_close(value, found["reference"][key], atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("name", TEXT)
def test_what_is_seen_of_a_layer_on_a_gpu_is_what_it_computes(name):
    chain = ["alibi", name] if zoo.encoding_class(name).consumes_biases else [name]
    listed = [{"name": one, "coordinates": "index"} for one in chain]
    layer = zoo.Attention(zoo.Dims(64, 4, length=128, depth=2), listed, causal=True).eval().cuda()
    x = torch.randn(2, 128, 64, device="cuda")
    (seen,) = capture_model(layer, (x,), queries=9)
    assert all(math.isfinite(value) for value in summarize_layer(seen).values())
    assert draw_attention(seen).dtype == torch.uint8
    with torch.no_grad():
        out = apply_weights(seen.call, seen.weights)[..., : seen.call.v.shape[-1]]
        rebuilt = layer.layer.merge_heads(out, seen.call.queries.x)
        torch.testing.assert_close(rebuilt, layer(x)[:, seen.query_index], atol=2e-3, rtol=2e-3)
