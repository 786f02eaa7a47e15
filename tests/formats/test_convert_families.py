"""Published models become runs with recipes of their own, which compute what transformers computes."""

import json

import pytest
import torch
from tiny import TINY, language
from untrained import write_checkpoint

import zoo as package
from zoo.api.tools import convert, export
from zoo.data.corpus.tokenizer import train_bpe
from zoo.errors import CheckpointError, OptionError

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 88,
}
TEXT = {**SIZES, "vocab_size": 50, "max_position_embeddings": 64}
GROUPED = {**TEXT, "num_key_value_heads": 2}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
    "truncate": False,
    "mscale": 2.0,
    "mscale_all_dim": 0.5,
}
FIXED = {
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.5, 2.0, 4.0],
        "long_factor": [1.0, 3.0, 5.0, 9.0],
    },
}
PHI3 = {"pad_token_id": 0}
WINDOWS = {"sliding_window": 5}
DECODERS = {
    "Llama": GROUPED,
    "Llama of biases": {**TEXT, "attention_bias": True, "mlp_bias": True},
    "Llama of 3": {**GROUPED, "tie_word_embeddings": True, "rope_parameters": LLAMA3},
    "Llama of YaRN": {**GROUPED, "rope_parameters": YARN},
    "Llama of proportional": {
        **GROUPED,
        "rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    },
    "Phi3": {**GROUPED, **PHI3, "tie_word_embeddings": True},
    "Phi3 of a part of each head": {**GROUPED, **PHI3, "partial_rotary_factor": 0.5},
    "Phi3 of windows": {**GROUPED, **PHI3, "sliding_window": 5},
    "Mistral": {**GROUPED, "sliding_window": 5},
    "Qwen2": {**GROUPED, "rope_parameters": {**LLAMA3, "high_freq_factor": 9.0}},
    "Qwen2 of windows": {**GROUPED, "use_sliding_window": True, **WINDOWS, "max_window_layers": 0},
    "Qwen2 of windows that start past its layers": {
        **GROUPED,
        "use_sliding_window": True,
        **WINDOWS,
        "max_window_layers": 2,
    },
    "Qwen3": {**GROUPED, "head_dim": 8},
}
IMAGES = {**SIZES, "image_size": 32, "patch_size": 8}


def publish(folder, cls, config):
    """A model of random weights, saved as transformers saves it."""
    kind = cls.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
    model = getattr(transformers, cls)(getattr(transformers, f"{kind}Config")(**config))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    model.save_pretrained(folder)
    return model.eval()


def read(folder):
    return package.load(convert(folder, to=f"{folder}-run").run)


def states(task, inputs):
    return task.model.run_blocks(task.model.tokens(inputs)).x


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_computes_the_same(tmp_path, name):
    model = publish(tmp_path / "it", f"{name.split()[0]}ForCausalLM", DECODERS[name])
    task, tokens = read(tmp_path / "it"), torch.randint(50, (2, 40))
    torch.testing.assert_close(task.model(tokens), model(tokens).logits, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "rule"), [("Llama", "dynamic"), ("Llama", "longrope"), ("Phi3", "longrope")]
)
def test_a_rotation_that_follows_the_length_is_fixed_for_one(tmp_path, name, rule):
    config = {**GROUPED, "rope_parameters": FIXED[rule]}
    if name == "Phi3":
        config |= {**PHI3, "original_max_position_embeddings": 16}
    model, original = publish(tmp_path / "it", f"{name}ForCausalLM", config), {"dynamic": 64}
    short, long = original.get(rule, 16), 100
    task, tokens = read(tmp_path / "it"), torch.randint(50, (2, long))
    right = model(tokens[:, :short]).logits
    torch.testing.assert_close(task.model(tokens[:, :short]), right, **CLOSE)
    with pytest.raises(OptionError, match=f"past length {short}.*set scaling.length"):
        task.model(tokens)

    # transformers divides by the length of the configuration, whatever the text.
    longer = {"model.encoding.0.scaling.length": long, "data.length": long}
    run = convert(tmp_path / "it", longer, to=tmp_path / "longer").run
    found = package.load(run).model(tokens)
    torch.testing.assert_close(found, model(tokens).logits, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("cls", ["GPT2LMHeadModel", "GPT2Model"])
def test_gpt2_computes_the_same(tmp_path, cls):
    config = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    model = publish(tmp_path / "it", cls, config)
    task, tokens = read(tmp_path / "it"), torch.randint(50, (2, 40))
    if cls == "GPT2Model":
        right, found = model(tokens).last_hidden_state, states(task, tokens)
    else:
        right, found = model(tokens).logits, task.model(tokens)
    torch.testing.assert_close(found, right, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("cls", ["BertModel", "BertForMaskedLM"])
def test_bert_has_the_same_states(tmp_path, cls):
    model = publish(tmp_path / "it", cls, TEXT)
    result = convert(tmp_path / "it", to=tmp_path / "run")
    task, tokens = package.load(result.run), torch.randint(50, (2, 40))
    right = getattr(model, "bert", model)(tokens).last_hidden_state
    torch.testing.assert_close(states(task, tokens), right, **CLOSE)
    kind = "pooler.dense.weight" if cls == "BertModel" else "cls.predictions.bias"
    assert kind in result.dropped


@torch.no_grad()
def test_a_vision_transformer_computes_the_same(tmp_path):
    config = {**IMAGES, "id2label": {0: "a", 1: "b", 2: "c"}}
    model = publish(tmp_path / "it", "ViTForImageClassification", config)
    task, images = read(tmp_path / "it"), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(task.model(images), model(images).logits, **CLOSE)
    assert task.spec.names == ("a", "b", "c")


@torch.no_grad()
@pytest.mark.parametrize("registers", [0, 3])
def test_dinov3_has_the_same_states_at_any_size(tmp_path, registers):
    config = {**IMAGES, "num_register_tokens": registers}
    model, task = publish(tmp_path / "it", "DINOv3ViTModel", config), None
    task = read(tmp_path / "it")
    for size in ((32, 32), (48, 24)):
        images = torch.randn(2, 3, *size)
        right = model(images).last_hidden_state
        torch.testing.assert_close(states(task, images), right, **CLOSE)


@pytest.mark.parametrize(
    "options",
    [[], ["model.kv_heads=1", "model.tie_embeddings=false"], ["model.block.key_bias=true"]],
)
def test_an_exported_llama_comes_back_to_the_bit(tmp_path, options):
    write_checkpoint(
        tmp_path / "run", "lm_rope", language(tmp_path / "text.txt", "model.depth=2", *options)
    )
    export(tmp_path / "run", tmp_path / "out", to="llama")
    convert(tmp_path / "out", to=tmp_path / "back")
    first, second = (package.load(tmp_path / name).state_dict() for name in ("run", "back"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_exported_vit_comes_back_to_the_bit(tmp_path):
    options = ["model.encoding=learned", "model.pool=class"]
    write_checkpoint(tmp_path / "run", "vit_comrope", [*TINY, *options])
    export(tmp_path / "run", tmp_path / "out", to="vit")
    convert(tmp_path / "out", to=tmp_path / "back")
    first, second = (package.load(tmp_path / name).state_dict() for name in ("run", "back"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_converted_run_is_evaluated_and_trained_further(tmp_path, zoo):
    subwords = train_bpe(["one two three, four five six; seven eight"] * 5, 300)
    publish(tmp_path / "it", "LlamaForCausalLM", {**GROUPED, "vocab_size": 304})
    (tmp_path / "it" / "tokenizer.json").write_text(subwords.json)
    (tmp_path / "text.txt").write_text("one two three, four five six; " * 40)
    data = ["data.name=text", f"data.files=[{tmp_path / 'text.txt'}]", "data.length=8"]
    code, out, _ = zoo("convert", "it", "to=run", *data, "--json")
    assert code == 0
    assert json.loads(out)["run"] == "run"
    code, out, _ = zoo("eval", "run", "evaluate.lengths=null", "--json")
    assert code == 0
    assert json.loads(out)["metrics"]["test/loss"] > 0
    words = ["init_from=run", "trainer.fast_dev_run=true", "trainer.accelerator=cpu"]
    code, out, _ = zoo("fit", "run/recipe.yaml", *words, "--json")
    assert code == 0
    assert json.loads(out)["init_from"]["left"] == {}


def test_missing_and_unknown_weights_are_named(tmp_path, zoo):
    publish(tmp_path / "it", "LlamaForCausalLM", GROUPED)
    file = tmp_path / "it" / "model.safetensors"
    weights = safetensors.load_file(file)
    del weights["model.layers.1.mlp.up_proj.weight"]
    weights["model.layers.0.strange.weight"] = torch.zeros(3)
    safetensors.save_file(weights, file)
    code, _, message = zoo("convert", "it", "to=run")
    assert code == 5
    assert "missing: model.layers.1.mlp.up_proj.weight" in message
    assert "unknown: model.layers.0.strange.weight [3]" in message
    assert not (tmp_path / "run").exists()


def test_pickles_are_not_read(tmp_path, zoo):
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "config.json").write_text('{"model_type": "llama"}')
    torch.save({"x": torch.zeros(2)}, tmp_path / "it" / "pytorch_model.bin")
    code, _, message = zoo("convert", "it", "to=run")
    assert code == 5
    assert "safetensors" in message


@torch.no_grad()
@pytest.mark.parametrize("is_old", [False, True])
def test_windows_of_some_layers_become_types(tmp_path, is_old):
    config = {**GROUPED, "use_sliding_window": True, **WINDOWS, "max_window_layers": 1}
    model = publish(tmp_path / "it", "Qwen2ForCausalLM", config)
    path = tmp_path / "it" / "config.json"
    found = json.loads(path.read_text())
    if is_old:
        del found["layer_types"]
    path.write_text(json.dumps(found))
    task, tokens = read(tmp_path / "it"), torch.randint(50, (2, 40))
    assert task.model.layer_types == ("full", "sliding")
    torch.testing.assert_close(task.model(tokens), model(tokens).logits, **CLOSE)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"hidden_act": "relu"}, "hidden_act is relu, expected silu"),
        ({"rope_parameters": {"rope_type": "mrope"}}, "rope_type is mrope; rope has default"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "x": 1}},
            "x=1 is no entry of rope_type linear",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5, but yarn rotates whole heads",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}, "full_attention=.* is no"),
        ({"is_causal": False}, "is_causal is False"),
        ({"model_type": "mamba"}, "mamba"),
        (
            {"model_type": "llama4_text", "num_local_experts": 16, "attention_chunk_size": 8},
            "llama4_text is a mixture of experts",
        ),
        (
            {
                "model_type": "llama4_text",
                "num_local_experts": 16,
                "moe_layers": [],
                "attention_chunk_size": 8,
            },
            "llama4_text attends within chunks of tokens",
        ),
        ({"hidden_size": 5}, "hidden_size is 5, but model.embed_tokens.weight .50, 32. has 32"),
        ({"hidden_size": "x"}, "config.json: hidden_size: expected an integer or null, got 'x'"),
        ({"num_attention_heads": 0}, "config.json: num_attention_heads: must be at least 1, got 0"),
        ({"hidden_act": "\x1b[2J\nzoo: done"}, r"hidden_act is \\x1b\[2J\\nzoo"),
    ],
)
def test_what_zoo_has_no_recipe_for_is_named(tmp_path, config, part):
    publish(tmp_path / "it", "LlamaForCausalLM", GROUPED)
    path = tmp_path / "it" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(CheckpointError, match=part):
        convert(tmp_path / "it", to=tmp_path / "run")
