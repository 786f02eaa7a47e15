"""`zoo.equip` of some layers: the others keep their own rotation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import zoo
from zoo.errors import OptionError

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
KINDS = ["sliding_attention", "full_attention"] * 2
FAMILIES = {
    "Qwen2ForCausalLM": {"sliding_window": 6, "use_sliding_window": True, "layer_types": KINDS},
    "Cohere2ForCausalLM": {"sliding_window": 6, "layer_types": KINDS},
}
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers renames arguments
    pytest.mark.usefixtures("equal_models_examined_once"),
]
parametrized = pytest.mark.parametrize("name", FAMILIES)


def make_model(name):
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    config = cls.config_class(**SIZES, **FAMILIES[name], attn_implementation="sdpa")
    model = cls(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.3)
    return model


@torch.no_grad()
def compute(model, tokens):
    return model(tokens).logits


@parametrized
def test_the_other_layers_keep_their_own_rotation(name):
    model, tokens = make_model(name), torch.randint(1, 60, (2, 20))
    before = compute(model, tokens)
    report = zoo.equip(model, {"name": "rope", "base": 10000.0}, layers=[0])
    torch.testing.assert_close(compute(model, tokens), before, atol=1e-5, rtol=1e-5)
    assert report.layers == 1
    assert "layers with their own rotation: " in str(report)
    zoo.unequip(model)
    assert torch.equal(compute(model, tokens), before)


@parametrized
@pytest.mark.parametrize("layers", ["full", "windowed", [1]])
def test_a_cache_equals_one_pass(name, layers):
    model, tokens = make_model(name), torch.randint(1, 60, (2, 16))
    before = compute(model, tokens)
    zoo.equip(model, "fox", layers=layers)
    expected = {"full": ["1", "3"], "windowed": ["0", "2"]}.get(str(layers), ["1"])
    assert [number for number, _ in model.zoo_encoding["fox"].named_children()] == expected
    whole, cache, parts = compute(model, tokens), None, []
    assert (whole - before).abs().max() > 1e-3
    with torch.no_grad():
        for part in tokens.split((9, *(1,) * 7), 1):
            out = model(part, past_key_values=cache, use_cache=True)
            cache, parts = out.past_key_values, [*parts, out.logits]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)


def test_padding_on_the_left_changes_nothing():
    model, tokens = make_model("Qwen2ForCausalLM"), torch.randint(1, 60, (1, 10))
    zoo.equip(model, "fox", layers="full")
    mask = torch.cat([torch.zeros(1, 4), torch.ones(1, 10)], 1).long()
    padded = torch.cat([torch.zeros(1, 4).long(), tokens], 1)
    with torch.no_grad():
        got = model(padded, attention_mask=mask).logits[:, 4:]
    torch.testing.assert_close(got, compute(model, tokens), atol=1e-5, rtol=1e-5)


def test_gradients_reach_the_encodings_of_the_chosen_layers():
    for recomputes in (False, True):
        model = make_model("Qwen2ForCausalLM").train()
        zoo.equip(model, [{"name": "t5"}, "rope"], layers="full")
        if recomputes:
            model.gradient_checkpointing_enable({"use_reentrant": True})
            model.enable_input_require_grads()
        model(torch.randint(1, 60, (1, 8))).logits.square().mean().backward()
        assert model.zoo_encoding["t5"].table.grad.abs().sum() > 0


def test_a_saved_model_has_the_same_layers(tmp_path):
    model, tokens = make_model("Qwen2ForCausalLM"), torch.randint(1, 60, (2, 12))
    zoo.equip(model, "fox", layers="full")
    zoo.save(model, tmp_path)
    torch.testing.assert_close(compute(zoo.load(tmp_path), tokens), compute(model, tokens))
    again = copy.deepcopy(model)
    assert torch.equal(compute(again, tokens), compute(model, tokens))


@pytest.mark.parametrize(
    ("encoding", "layers", "words"),
    [
        ("fox", [4], "layers 0 to 3"),
        ("fox", [True], "layers 0 to 3"),
        ("fox", [], "the list is empty"),
        ("fox", "local", "write all, full, windowed"),
        ("sinusoidal", "full", "belongs to the model"),
    ],
)
def test_wrong_layers_are_refused(encoding, layers, words):
    model = make_model("Qwen2ForCausalLM")
    before = compute(model, torch.arange(1, 9)[None])
    with pytest.raises(OptionError, match=words):
        zoo.equip(model, encoding, layers=layers)
    assert torch.equal(compute(model, torch.arange(1, 9)[None]), before)


def test_what_single_layers_cannot_keep_is_refused():
    config = transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    with pytest.raises(OptionError, match="single layers cannot keep"):
        zoo.equip(transformers.GPT2LMHeadModel(config), "fox", layers=[0])
    plain = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), 2)
    with pytest.raises(OptionError, match="no windowed layers"):
        zoo.equip(plain, "alibi", layers="windowed")
    assert zoo.equip(plain, "alibi", layers=[1]).layers == 1
