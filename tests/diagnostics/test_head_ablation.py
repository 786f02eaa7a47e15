"""A model whose heads are ablated computes what one without their output projection computes."""

import pytest
import torch

import zoo
from tests.planted_heads import build_induction
from zoo.diagnostics.capture import evaluation_mode
from zoo.diagnostics.head_ablation import ablate_heads, clear_heads
from zoo.integrations.equip import observe_attention


def test_only_the_chosen_heads_are_cleared():
    outputs = torch.ones(2, 3, 4, 5)
    outputs[:, 1] = torch.inf
    found = clear_heads(outputs, [1], 1)
    assert found[:, 1].eq(0).all()
    assert found[:, [0, 2]].eq(1).all()


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rope", "fox", "alibi"])
def test_a_decoder_of_zoo_loses_the_channels_of_its_heads(encoding):
    recipe = zoo.load_recipe("lm_rope", {"model.encoding": encoding, "model.depth": 2})
    torch.manual_seed(0)
    model = zoo.build_model(recipe).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(std=0.1)
    tokens = torch.randint(50, (2, 12))
    before = model(tokens)
    with ablate_heads(model, {1: [0, 2]}):
        ablated = model(tokens)
    assert torch.equal(model(tokens), before)

    layer = model.blocks[1].attn
    width = layer.head_dim
    for head in (0, 2):
        layer.o_proj.weight[:, head * width : (head + 1) * width] = 0
    torch.testing.assert_close(ablated, model(tokens))
    assert not torch.allclose(ablated, before)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["GPT2", "Llama"])
def test_a_plain_model_of_transformers_loses_them_too(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
        "Llama": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    }[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=50, **sizes)
    model = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(
        config
    ).eval()
    tokens = torch.randint(50, (2, 12))
    before = model(tokens).logits
    with observe_attention(model), ablate_heads(model, {1: [3]}), evaluation_mode(model):
        ablated = model(tokens).logits
    torch.testing.assert_close(model(tokens).logits, before)
    if kind == "GPT2":
        model.transformer.h[1].attn.c_proj.weight[24:32] = 0  # a transposed weight
    else:
        model.model.layers[1].self_attn.o_proj.weight[:, 24:32] = 0
    torch.testing.assert_close(ablated, model(tokens).logits, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(ablated, before, atol=1e-4)


def test_a_layer_that_is_not_named_keeps_its_heads():
    model = build_induction()
    tokens = torch.randint(16, (1, 8))
    with torch.no_grad(), ablate_heads(model, {}):
        assert torch.isfinite(model(tokens)).all()
