"""What is seen of a model is what it computes, and it is left as it was."""

import pytest
import torch
from torch import nn

import zoo
from zoo.attention.backends.reference import apply_weights
from zoo.attention.encoding import Dims
from zoo.attention.layer import HeadLayer
from zoo.config.command_line import parse_overrides
from zoo.diagnostics.capture import (
    LayerAttention,
    capture_model,
    choose_evenly,
    evaluation_mode,
    number_layers,
)
from zoo.errors import OptionError

SAME = 1e-5
VIT = [
    "model.dim=32",
    "model.heads=2",
    "model.depth=2",
    "model.patch_size=2",
    "model.pool=class",
    "model.registers=1",
]
LM = [
    "model.dim=32",
    "model.heads=2",
    "model.depth=2",
    "data.name=flipflop",
    "data.length=16",
    "evaluate={}",
]
ENCODINGS = ["rope", "[rope,fox]", "cope", "path", "stickbreaking", "shaw", "tape", "[alibi,dape]"]


def model(name, *overrides):
    return zoo.build_model(zoo.load_recipe(name, parse_overrides(overrides))).train()


def outputs(model, *inputs):
    """What each attention layer gave, [B, N, D]."""
    found = []
    hooks = [
        one.register_forward_hook(
            # attention returns extra values, too
            lambda layer, given, out: found.append((out[0] if isinstance(out, tuple) else out).x)
        )
        for one in model.modules()
        if isinstance(one, HeadLayer)
    ]
    with evaluation_mode(model):
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return found


def rebuilt(model, seen: LayerAttention):
    """The layer's output from the weights that were seen, for the chosen queries."""
    layers = [one for one in model.modules() if isinstance(one, HeadLayer)]
    with torch.no_grad():
        out = apply_weights(seen.call, seen.weights)[..., : seen.call.v.shape[-1]]
        return layers[seen.layer].merge_heads(out, seen.call.queries.x)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_outputs_rebuilt_from_what_a_decoder_shows_are_its_outputs(encoding):
    decoder, text = (
        model("lm_rope", *LM, f"model.encoding={encoding}"),
        torch.randint(0, 4, (2, 16)),
    )
    seen = capture_model(decoder, (text,), queries=5)
    for one, out in zip(seen, outputs(decoder, text), strict=True):
        torch.testing.assert_close(
            rebuilt(decoder, one), out[:, one.query_index], atol=SAME, rtol=SAME
        )


@pytest.mark.parametrize("encoding", ["comrope_ld", "liere", "t5", "sinusoidal"])
def test_outputs_rebuilt_from_what_a_vit_shows_are_its_outputs(encoding):
    vit, images = model("vit_comrope", *VIT, f"model.encoding={encoding}"), torch.randn(2, 1, 8, 8)
    for one, out in zip(capture_model(vit, (images,)), outputs(vit, images), strict=True):
        assert one.weights.shape == (2, 2, 18, 18)  # a class token, a register and 16 patches
        torch.testing.assert_close(rebuilt(vit, one), out, atol=SAME, rtol=SAME)


@pytest.mark.parametrize("encoding", ["rope", "fox"])
def test_a_layer_shows_documents_apart(encoding):
    layer = zoo.Attention(Dims(32, 2), encoding, causal=True)
    document = torch.tensor([0, 0, 0, 1, 1, -1])
    (seen,) = capture_model(_Documents(layer, document), (torch.randn(2, 6, 32),))
    assert not seen.weights[:, :, 3:5, :3].any()
    assert not seen.weights[:, :, 5].any()
    torch.testing.assert_close(seen.weights[:, :, :5].sum(-1), torch.ones(2, 2, 5))


class _Documents(nn.Module):
    def __init__(self, layer, document):
        super().__init__()
        self.layer, self.document = layer, document

    def forward(self, x):
        return self.layer(x, document=self.document)


def test_linear_attention_shows_what_it_reads():
    decoder = model("lm_linear_rope", *LM)
    text = torch.randint(0, 4, (1, 16))
    for one, out in zip(
        capture_model(decoder, (text,), queries=4), outputs(decoder, text), strict=True
    ):
        assert one.scores is None
        torch.testing.assert_close(
            rebuilt(decoder, one), out[:, one.query_index], atol=SAME, rtol=SAME
        )


def test_a_model_is_left_as_it_was():
    vit, images = model("vit_comrope", *VIT, "model.block.dropout=0.5"), torch.randn(2, 1, 8, 8)
    vit.head.eval()  # as of a part that is frozen
    state = torch.get_rng_state()
    capture_model(vit, (images,))
    assert torch.equal(state, torch.get_rng_state())
    assert vit.training
    assert vit.training
    assert not vit.head.training
    assert not any(one._forward_pre_hooks for one in vit.modules())
    assert torch.is_grad_enabled()


def test_a_model_that_fails_is_left_as_it_was():
    vit = model("vit_comrope", *VIT)
    with pytest.raises(OptionError, match="does not divide"):
        capture_model(vit, (torch.randn(1, 1, 7, 7),))
    assert vit.training
    assert not any(one._forward_pre_hooks for one in vit.modules())


def test_a_compiled_model_is_looked_at_uncompiled():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    layer, x = zoo.Attention(Dims(32, 2), "none"), torch.randn(1, 4, 32)
    layer.compile(backend=backend)
    assert len(capture_model(layer, (x,))) == 1
    assert not compiled
    layer(x)
    assert compiled


def test_layers_can_be_chosen():
    vit, images = model("vit_comrope", *VIT), torch.randn(1, 1, 8, 8)
    assert [one.layer for one in capture_model(vit, (images,), layers=[1])] == [1]


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(OptionError, match=r"no layer 2, 7; the model has layers 0 to 1") as message:
        number_layers(model("vit_comrope", *VIT), [0, 7, 2])
    assert message.value.key == "layers"


def test_a_model_without_attention_is_refused():
    with pytest.raises(OptionError, match="no attention layer"):
        capture_model(nn.Linear(2, 2), (torch.zeros(1, 2),))


@pytest.mark.parametrize(
    ("count", "most", "slots"),
    [
        (5, None, [0, 1, 2, 3, 4]),
        (5, 9, [0, 1, 2, 3, 4]),
        (9, 3, [0, 4, 8]),
        (9, 1, [4]),
        (10, 4, [0, 3, 6, 9]),
    ],
)
def test_queries_are_spread_evenly(count, most, slots):
    assert choose_evenly(count, most) == slots
