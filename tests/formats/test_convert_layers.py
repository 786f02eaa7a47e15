"""Published decoders whose layers differ compute what transformers computes, as runs of zoo."""

import json

import pytest
import torch
from parts import mark_others
from torch.nn import functional as F

import zoo as package
from zoo.api.tools import convert, export
from zoo.attention.kv_cache import KeyValueCache
from zoo.errors import CheckpointError
from zoo.formats.layer_plan import describe_layers, write_pattern
from zoo.formats.targets import OWN_MODELS

transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors.torch")

TOKENS = 50
OFTEN = ("Gemma3", "Olmo3", "SmolLM3 of windows", "Qwen3Next", "OlmoHybrid", "Lfm2")
"""Families with layers of all kinds; test_convert_families.py has the others."""
SIZES = {
    "vocab_size": TOKENS,
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 6}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
    "attention_factor": 1.2,
}
KINDS = ["full_attention", "sliding_attention"]
BASES = {kind: {"rope_type": "default", "rope_theta": 100.0} for kind in KINDS}
FAMILIES = {
    "Gemma2": {**WINDOW, "head_dim": 12, "query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0},
    "Gemma3": {
        **WINDOW,
        "head_dim": 12,
        "query_pre_attn_scalar": 20,
        "layer_types": [KINDS[1], KINDS[1], KINDS[0], KINDS[1], KINDS[1]],
        "final_logit_softcapping": 3.0,
        "rope_parameters": {**BASES, KINDS[0]: {"rope_type": "linear", "factor": 8.0}},
    },
    "Olmo2": {"rope_parameters": YARN},
    "Olmo3": {**WINDOW, "rope_parameters": {**BASES, KINDS[0]: YARN}},
    "Cohere2": {**WINDOW, "logit_scale": 0.3},
    "SmolLM3": {},
    "SmolLM3 of windows": {**WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0, 1, 1, 0]},
    "Qwen3": {**WINDOW, "use_sliding_window": True, "head_dim": 12, "max_window_layers": 3},
    "Qwen3Next": {
        "head_dim": 16,
        "num_experts": 3,
        "mlp_only_layers": [0, 1, 2, 3, 4],
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-3,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 5,
    },
    "OlmoHybrid": {"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "OlmoHybrid without rotation": {"rope_parameters": {"rope_theta": None}},
    "Lfm2": {
        "full_attn_idxs": [1, 4],
        "intermediate_size": 46,
        "block_multiple_of": 3,
        "conv_L_cache": 4,
    },
}


def publish(folder, name, **changes):
    """Save a model of random weights as transformers does, and return it."""
    kind = name.split()[0]
    config_name = f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config"
    config = getattr(transformers, config_name)(**{**SIZES, **FAMILIES[name], **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    model.save_pretrained(folder)
    return model


def near(found, right):
    """Compare logits, of which the largest may be far from 1."""
    bounds = {"atol": 1e-5 * max(1.0, float(right.abs().max())), "rtol": 1e-5}
    torch.testing.assert_close(found, right, **bounds)


def decode(model, prompt, count):
    """Return a prompt and the most likely tokens after it, from a cache."""
    cache, found, step = KeyValueCache(), prompt[0].tolist(), prompt
    while len(found) < prompt.shape[1] + count:
        found.append(int(model(step, context=cache, last=1)[0, -1].argmax()))
        step = torch.tensor([found[-1:]])
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", mark_others(FAMILIES, OFTEN))
def test_a_decoder_whose_layers_differ_computes_the_same(tmp_path, name):
    """Within and past window and original length, padded on the left, in parts, and back."""
    other = publish(tmp_path / "it", name)
    model = package.load(convert(tmp_path / "it", to=tmp_path / "run").run).model
    tokens = torch.randint(1, TOKENS, (2, 40))
    for length in (5, 40):
        right = other(tokens[:, :length]).logits
        near(model(tokens[:, :length]), right)

    mask = F.pad(torch.ones(1, 33, dtype=torch.long), (7, 0))
    padded, places = tokens[:1].masked_fill(mask == 0, 0), (mask.cumsum(1) - 1).clamp(min=0)
    right = other(padded, attention_mask=mask, position_ids=places).logits
    near(model(padded, mask - 1)[:, 7:], right[:, 7:])
    cache = KeyValueCache()
    parts = [model(part, context=cache) for part in tokens.split([7, 8, 1, 1, 23], 1)]
    near(torch.cat(parts, 1), other(tokens).logits)

    answers = {"do_sample": False, "max_new_tokens": 50, "eos_token_id": None}
    written = other.generate(tokens[:1, :10], **answers)
    assert decode(model, tokens[:1, :10], 50) == written[0].tolist()

    if (target := name.split()[0].lower()) in OWN_MODELS:
        export(tmp_path / "run", tmp_path / "out", to=target, verbose=None)
        again, found = type(other).from_pretrained(tmp_path / "out", output_loading_info=True)
        assert not any(found.values()), found
        near(again.eval()(tokens).logits, other(tokens).logits)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A published folder of each family, by its name."""
    root = tmp_path_factory.mktemp("published")
    for name in MUTATED:
        publish(root / name, name)
    return root


COMMON = {"hidden_act": "relu", "is_causal": False, "experts": 2}
MUTATED = {
    "Gemma2": {
        "hidden_activation": "gelu",
        "use_bidirectional_attention": True,
        "attention_bias": True,
        "layer_types": ["full_attention"],
    },
    "Gemma3": {"attn_logit_softcapping": 4.0, "use_bidirectional_attention": True},
    "Olmo3": {"sliding_window": None, "clip_qkv": 8.0, "attention_bias": True},
    "Cohere2": {"head_dim": 16, "use_qk_norm": True, "use_parallel_block": False},
    "SmolLM3": {"no_rope_layers": [1], "mlp_bias": True, "layer_types": ["chunked_attention"] * 5},
    "Qwen3": {"layer_types": ["linear_attention"] * 5, "quantization_config": {"bits": 4}},
    "Qwen3Next": {
        "mlp_only_layers": [0, 1, 2, 3],
        "layer_types": ["linear_attention"] * 5,
        "linear_num_value_heads": 3,
        "linear_num_key_heads": 4,
    },
    "OlmoHybrid": {"layer_types": ["full_attention"] * 5, "linear_key_head_dim": 5},
    "Lfm2": {"conv_bias": True, "layer_types": ["conv"] * 5, "block_multiple_of": 48},
}


@pytest.mark.parametrize("name", MUTATED)
def test_an_entry_that_means_something_else_is_refused_by_name(folders, tmp_path, name):
    """Also one that nobody knows: it may change what a model computes."""
    settings = json.loads((folders / name / "config.json").read_text())
    changed = tmp_path / "it"
    changed.mkdir()
    (changed / "model.safetensors").symlink_to(folders / name / "model.safetensors")
    for key, value in {**COMMON, **MUTATED[name]}.items():
        (changed / "config.json").write_text(json.dumps({**settings, key: value}))
        with pytest.raises(CheckpointError, match=key):
            convert(changed, to=tmp_path / "run")
        assert not (tmp_path / "run").exists()


CHANGES = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value + 0.5,
    dict: lambda _: {"strange": 1},
}
# what other entries, or the weights, say already
RESTATED = {
    "tie_word_embeddings",
    "no_rope_layer_interval",
    "use_sliding_window",
    "max_window_layers",
    "sliding_window",
    "_sliding_window_pattern",
    "full_attention_interval",
    "full_attn_idxs",
    "decoder_sparse_step",
    "num_experts",
}


@pytest.mark.parametrize("name", MUTATED)
def test_every_entry_of_a_configuration_matters_or_is_known_to_change_nothing(folders, name):
    """An entry whose value is replaced is refused, changes the recipe, or is listed as ignored."""
    from zoo.formats.convert import FAMILIES as READERS
    from zoo.formats.convert import build_family, read_published
    from zoo.formats.published import IGNORED, Pool, Published

    read = read_published(folders / name)

    def describe(config):
        family = build_family(Published("it", config, read.weights), Pool(read.weights))
        sections, spec = family.describe()
        family.check_read()
        return sections["model"], spec.length, getattr(family, "scale", None)

    before = describe(read.config)
    ignored = IGNORED | READERS[read.config["model_type"]].ignored
    for key, value in read.config.items():
        if key in ignored:
            continue
        change = CHANGES.get(type(value), lambda _: "strange")
        try:
            after = describe({**read.config, key: change(value)})
        except (AttributeError, CheckpointError, LookupError, TypeError, ValueError):
            continue
        assert after != before or key in RESTATED, key


def test_a_mixture_of_experts_is_refused_with_the_way_on(tmp_path):
    config = transformers.GptOssConfig(**SIZES, head_dim=8, num_local_experts=2)
    transformers.GptOssForCausalLM(config).save_pretrained(tmp_path / "it")
    with pytest.raises(CheckpointError, match=r"gpt_oss is a mixture of experts.*zoo\.equip"):
        convert(tmp_path / "it", to=tmp_path / "run")


def test_latent_attention_is_refused_with_the_way_on(tmp_path):
    sizes = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "kv_lora_rank": 8}
    config = transformers.KimiLinearConfig(**SIZES, **sizes, linear_head_dim=8, linear_num_heads=2)
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match=r"kimi_linear has latent attention.*zoo\.equip"):
        convert(tmp_path, to=tmp_path / "run")


def test_older_configurations_are_read(folders):
    """Gemma 3 and OLMo 3 had one entry per base, and scaled full layers only."""
    from zoo.formats.convert import build_family, read_published
    from zoo.formats.published import Pool, Published

    def describe(name, changes):
        read = read_published(folders / name)
        config = {key: one for key, one in read.config.items() if key != "rope_parameters"}
        family = build_family(
            Published("it", {**config, **changes}, read.weights), Pool(read.weights)
        )
        types = family.describe()[0]["model"]["layer_types"]
        family.check_read()
        return {key: one["encoding"][0] for key, one in types.items()}

    linear = {"rope_type": "linear", "factor": 8.0}
    found = describe(
        "Gemma3", {"rope_theta": 9.0, "rope_local_base_freq": 5.0, "rope_scaling": linear}
    )
    assert found["full"] == {
        "name": "rope",
        "base": 9.0,
        "scaling": {"rule": "linear", "factor": 8.0},
    }
    assert found["sliding"] == {"name": "rope", "base": 5.0}


def test_a_pattern_is_the_shortest_that_is_repeated():
    assert write_pattern(["a", "a", "b", "a", "a", "b", "a"]) == ["a*2", "b"]
    assert write_pattern(["a", "b", "b"]) == ["a", "b*2"]
    one, other = {"window": 4, "encoding": ["rope"]}, {"window": None, "encoding": ["rope"]}
    assert describe_layers([("s", one), ("s", one)]) == one
    assert describe_layers([("s", one), ("f", other)]) == {
        "encoding": ["rope"],
        "layer_types": {"s": {"window": 4}, "f": {"window": None}},
        "layer_pattern": ["s", "f"],
    }
