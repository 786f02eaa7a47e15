"""Soft caps, sinks and temperatures of layers and models, and those of published models."""

from __future__ import annotations

import pytest
import torch
from language import decoder, encoder, text
from torch import nn

import zoo
from zoo.attention.kv_cache import KeyValueCache, SegmentMemory
from zoo.attention.layer import LayerOptions, SelfAttention
from zoo.attention.temperature import Temperature
from zoo.config.command_line import parse_overrides
from zoo.data.spec import ImageSpec
from zoo.errors import OptionError, RecipeError
from zoo.models.vit import ViT

DIMS = zoo.Dims(32, 4, kv_heads=2)
N = 9
OPTIONS = {"softcap": 1.5, "sinks": True, "temperature": Temperature(floor=3, scale=0.4)}
each = pytest.mark.parametrize("key", OPTIONS)
whole = pytest.mark.parametrize("name", ["none", "rope", "alibi", "fox", "ssmax"])


def move(model):
    """Move sinks from 0, where they would hide faults."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("attn.sinks"):
                parameter.normal_()
    return model


def test_sinks_are_a_parameter_of_attention_that_starts_at_zero():
    model = decoder("rope", sinks=True, heads=4)
    for block in model.blocks:
        assert torch.equal(block.attn.sinks, torch.zeros(4))
    assert "blocks.0.attn.sinks" in dict(model.named_parameters())
    assert not any("sinks" in name for name, _ in decoder("rope").named_parameters())


@each
def test_each_option_changes_the_output(key):
    torch.manual_seed(0)
    plain = decoder("rope").eval()
    torch.manual_seed(0)
    other = decoder("rope", **{key: OPTIONS[key]}).eval()
    assert (other(text()) - plain(text())).abs().max() > 1e-5


@whole
def test_decoding_and_memory_are_one_pass(name):
    model, inputs = move(decoder(name, **OPTIONS)).eval(), text()
    expected = model(inputs)
    for context in (KeyValueCache(), SegmentMemory(12)):
        parts = [model(part, context=context) for part in inputs.split([3, 1, 1, 4, 3], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        cache = KeyValueCache()
        parts = [model(part, context=cache) for part in inputs.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-5, rtol=1e-4)


@whole
def test_a_window_with_a_cache_is_one_pass(name):
    model, inputs = move(decoder(name, window=4, **OPTIONS)).eval(), text()
    cache = KeyValueCache()
    parts = [model(part, context=cache) for part in inputs.split([5, 1, 1, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(inputs), atol=1e-5, rtol=1e-4)


@whole
def test_packed_and_padded_documents_are_the_documents_alone(name):
    model, inputs = move(decoder(name, **OPTIONS)).eval(), text(1)
    alone = torch.cat([model(inputs[:, 1:5]), model(inputs[:, [6, 7, 9, 10, 11]])], dim=1)
    # padding on the left, between the documents, and inside the second
    document = torch.tensor([[-1, 0, 0, 0, 0, -1, 1, 1, -1, 1, 1, 1]])
    for noise in (inputs, (inputs + (document < 0) * 3) % 11):
        packed = model(noise, document)[:, document[0] >= 0]
        torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["none", "alibi", "ssmax"])
def test_an_encoder_has_them_and_padding_changes_nothing(name):
    model, inputs = move(encoder(name, **OPTIONS)).eval(), text(1, 8)
    padded = torch.cat([text(1, 2), inputs, text(1, 2)], dim=1)
    document = torch.tensor([[-1] * 2 + [0] * 8 + [-1] * 2])
    found = model(padded, document)[:, 2:10]
    torch.testing.assert_close(found, model(inputs), atol=1e-5, rtol=1e-4)


def test_a_vision_transformer_has_a_cap_and_sinks():
    links = {"rope_axial": lambda dims: zoo.encoding("rope_axial", dims)}
    spec = ImageSpec(channels=1, height=8, width=8, classes=3)
    sizes = {"dim": 32, "depth": 2, "heads": 2, "patch_size": 2, "encoding": links}
    model = move(ViT(spec, pool="class", softcap=2.0, sinks=True, **sizes))
    nn.init.normal_(model.head.weight)
    x = torch.randn(2, 1, 8, 8)
    out = model(x)
    for block in model.blocks:
        block.attn.backend = "reference"
    torch.testing.assert_close(model(x), out, atol=1e-5, rtol=1e-4)
    out.square().sum().backward()
    assert all(block.attn.sinks.grad.any() for block in model.blocks)


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), True, "3"])
def test_a_wrong_cap_is_refused(value):
    with pytest.raises(OptionError, match="softcap") as error:
        zoo.Attention(DIMS, "none", softcap=value)
    assert error.value.key == "softcap"


def test_what_replaces_the_softmax_refuses_sinks():
    model = decoder("stickbreaking", sinks=True)
    with pytest.raises(OptionError, match="stickbreaking has no softmax") as error:
        model(text())
    assert error.value.key == "sinks"


def test_what_changes_products_refuses_a_cap():
    with pytest.raises(OptionError, match="path changes products") as error:
        decoder("path", softcap=2.0)(text())
    assert error.value.key == "softcap"


def load(*overrides):
    return zoo.load_recipe("lm_rope", parse_overrides(list(overrides)))


def test_recipes_have_the_keys():
    plain = load().model.options
    assert [plain[key] for key in ("softcap", "sinks", "temperature")] == [None, False, None]
    given = load("model.softcap=50", "model.sinks=true", "model.temperature.floor=64").model.options
    assert given["softcap"] == 50.0
    assert given["sinks"] is True
    assert given["temperature"] == Temperature(floor=64, scale=0.1)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.softcap=0", "model.softcap: must be positive"),
        ("model.sinks=2", "model.sinks: expected a boolean"),
        ("model.temperature.floor=0", "model.temperature.floor: must be at least 1"),
        ("model.temperature.flor=9", "did you mean model.temperature.floor"),
    ],
)
def test_a_wrong_key_is_named(override, message):
    with pytest.raises(RecipeError, match=message):
        load(override)


# against transformers


def copy_projections(layer, module):
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        getattr(layer, name).load_state_dict(getattr(module, name).state_dict())
    return layer


def compare(module, layer, tables, **more):
    """Compare a layer without positions with an attention of transformers."""
    attention = zoo.Attention(DIMS, "none", causal=True)
    attention.layer = copy_projections(layer, module)
    x = torch.randn(2, N, 32)
    hidden = torch.full((N, N), float("-inf")).triu(1)[None, None]
    expected, _ = module(x, position_embeddings=tables, attention_mask=hidden, **more)
    for backend in ("reference", "auto"):
        attention.layer.backend = backend
        torch.testing.assert_close(attention(x), expected, atol=1e-5, rtol=1e-5)


SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "attn_implementation": "eager",
}
BARE = LayerOptions(proj_bias=False)
STILL = (torch.ones(1, N, 8), torch.zeros(1, N, 8))  # cosines and sines that rotate nothing


def test_softcap_is_that_of_gemma_2():
    gemma2 = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    config = gemma2.Gemma2Config(**SIZES, query_pre_attn_scalar=8, attn_logit_softcapping=0.5)
    module = gemma2.Gemma2Attention(config, 1).eval()
    with torch.no_grad():
        module.q_proj.weight *= 5  # so that the cap matters
    compare(module, SelfAttention(DIMS, BARE, causal=True, softcap=0.5), STILL)


def test_sinks_are_those_of_gpt_oss():
    oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    config = oss.GptOssConfig(**SIZES, attention_bias=False)
    module = oss.GptOssAttention(config, 1).eval()
    layer = SelfAttention(DIMS, BARE, causal=True, sinks=True)
    with torch.no_grad():
        module.sinks.normal_()
        layer.sinks.copy_(module.sinks)
    half = tuple(table[..., :4] for table in STILL)
    compare(module, layer, half)


def test_temperature_is_that_of_llama_4():
    llama4 = pytest.importorskip("transformers.models.llama4.modeling_llama4")
    config = llama4.Llama4TextConfig(
        **SIZES, attn_scale=0.4, floor_scale=3, no_rope_layers=[0, 0], attention_bias=False
    )
    module = llama4.Llama4TextAttention(config, 1).eval()
    with torch.no_grad():
        module.q_proj.weight *= 5
    # It counts positions from 1.
    temperature = Temperature(floor=3, scale=0.4, offset=1)
    layer = SelfAttention(DIMS, BARE, causal=True, temperature=temperature)
    compare(module, layer, None)
