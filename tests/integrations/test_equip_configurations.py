"""`zoo.equip` of families whose configuration is unusual: biases, one key head, scales, caps, rules.

With its own positions each computes what transformers does: in one pass, with a cache in parts,
padded and packed. Without positions and with ALiBi each attention is that of the definition.
"""

import importlib
import random
import sys
import warnings
from pathlib import Path

import pytest
import torch
from parts import mark_others

transformers = pytest.importorskip("transformers")

import zoo  # noqa: E402
from zoo.errors import OptionError  # noqa: E402
from zoo.integrations.evaluating import stirred  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "build"))
types = importlib.import_module("equip_types")
small_models = importlib.import_module("small_models")
sys.path.pop(0)

KINDS = ["sliding_attention", "full_attention"]
WINDOWED = ["sliding_attention"] * 4
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
PARTIAL = {**PLAIN, "partial_rotary_factor": 0.75}
WHOLE = {**PLAIN, "partial_rotary_factor": 1.0}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
ORIGINAL = {"original_max_position_embeddings": 8}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, **ORIGINAL}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, **ORIGINAL}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGURATIONS = {
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1}),
    "llama, wide heads": ("llama", {"head_dim": 32}),
    "llama, narrow heads": ("llama", {"head_dim": 6}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, linear": ("llama", {"rope_parameters": LINEAR}),
    "llama, yarn": ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}),
    "apertus, linear": ("apertus", {"rope_parameters": LINEAR, "attention_bias": True}),
    "arcee, one wide key head": ("arcee", {"num_key_value_heads": 1, "head_dim": 24}),
    "biogpt, plain embeddings": ("biogpt", {"scale_embedding": False}),
    "bitnet, one key head": ("bitnet", {"num_key_value_heads": 1, "attention_bias": True}),
    "codegen, few channels": ("codegen", {"rotary_dim": 4}),
    "cohere, norms of heads": ("cohere", {"use_qk_norm": True, "attention_bias": True}),
    "cohere2, all windowed": ("cohere2", {"layer_types": WINDOWED, "sliding_window": 3}),
    "deepseek_v2, whole queries": ("deepseek_v2", {"q_lora_rank": None, "attention_bias": True}),
    "deepseek_v3, halves": ("deepseek_v3", {"rope_interleave": False, "q_lora_rank": None}),
    "deepseek_v3, yarn": ("deepseek_v3", {"rope_parameters": {**YARN, "mscale_all_dim": 1.0}}),
    "diffllama, one pair of key heads": ("diffllama", {"attention_bias": True}),
    "ernie4_5, biases": ("ernie4_5", {"use_bias": True, "num_key_value_heads": 1}),
    "exaone4, no windows": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    ),
    "gemma, one key head": ("gemma", {"num_key_value_heads": 1, "attention_bias": True}),
    "gemma2, no cap": ("gemma2", {"attn_logit_softcapping": None}),
    "gemma2, low cap": ("gemma2", {"attn_logit_softcapping": 0.7, "query_pre_attn_scalar": 3}),
    "gemma2, narrow window": ("gemma2", {"sliding_window": 2}),
    "gemma3, yarn in full layers": (
        "gemma3_text",
        {"rope_parameters": {"sliding_attention": LINEAR, "full_attention": YARN}},
    ),
    "gemma3, all windowed": ("gemma3_text", {"layer_types": WINDOWED, "sliding_window": 4}),
    "glm, all channels": ("glm", {"rope_parameters": WHOLE, "attention_bias": False}),
    "glm4, other channels": ("glm4", {"rope_parameters": PARTIAL}),
    "gpt2, scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2, no scale": ("gpt2", {"scale_attn_weights": False}),
    "gpt2, upcast": ("gpt2", {"reorder_and_upcast_attn": True}),
    "gpt_bigcode, all key heads": ("gpt_bigcode", {"multi_query": False}),
    "gpt_bigcode, no scale": ("gpt_bigcode", {"scale_attn_weights": False}),
    "gpt_neox, in sequence": (
        "gpt_neox",
        {"use_parallel_residual": False, "attention_bias": False},
    ),
    "gpt_neox, other channels": ("gpt_neox", {"rope_parameters": PARTIAL}),
    "gpt_oss, windows last": (
        "gpt_oss",
        {"layer_types": KINDS[::-1] * 2, "num_key_value_heads": 1, "attention_bias": False},
    ),
    "gptj, few channels": ("gptj", {"rotary_dim": 4}),
    "granite, another scale": (
        "granite",
        {"attention_multiplier": 0.5, "embedding_multiplier": 3.0, "residual_multiplier": 0.4},
    ),
    "granitemoehybrid, rope": ("granitemoehybrid", {"position_embedding_type": "rope"}),
    "helium, biases": ("helium", {"attention_bias": True, "num_key_value_heads": 1}),
    "hunyuan, biases": ("hunyuan_v1_dense", {"attention_bias": True}),
    "llama4, chunks": ("llama4_text", {"attention_chunk_size": 5, "no_rope_layers": [1] * 4}),
    "llama4, no norms": ("llama4_text", {"use_qk_norm": False, "no_rope_layers": [0, 1, 0, 1]}),
    "llama4, temperature": ("llama4_text", {"floor_scale": 4, "attn_scale": 0.7}),
    "mimo_v2_flash, all windowed": (
        "mimo_v2_flash",
        {"layer_types": WINDOWED, "attention_value_scale": None},
    ),
    "mimo_v2_flash, other channels": (
        "mimo_v2_flash",
        {"rope_parameters": {"sliding_attention": PARTIAL, "full_attention": WHOLE}},
    ),
    "ministral3, temperature": (
        "ministral3",
        {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}},
    ),
    "mistral, narrow window": ("mistral", {"sliding_window": 2, "num_key_value_heads": 1}),
    "mixtral, window": ("mixtral", {"sliding_window": 5, "head_dim": 24}),
    "modernbert-decoder, window": ("modernbert-decoder", {"sliding_window": 3}),
    "nemotron, biases": ("nemotron", {"attention_bias": True, "rope_parameters": WHOLE}),
    "olmo, clipped": ("olmo", {"clip_qkv": 0.3}),
    "olmo, clipped, one key head": ("olmo", {"clip_qkv": 0.5, "num_key_value_heads": 1}),
    "olmo2, biases": ("olmo2", {"attention_bias": True, "num_key_value_heads": 1}),
    "opt, norms last": ("opt", {"do_layer_norm_before": False, "enable_bias": False}),
    "persimmon, no norms": ("persimmon", {"qk_layernorm": False, "rope_parameters": PARTIAL}),
    "phi, norms": ("phi", {"qk_layernorm": True}),
    "phi3, window": ("phi3", {"sliding_window": 5, "rope_parameters": PARTIAL}),
    "qwen2, late windows": (
        "qwen2",
        {"use_sliding_window": True, "layer_types": KINDS[::-1] * 2, "sliding_window": 5},
    ),
    "qwen3, biases": ("qwen3", {"attention_bias": True, "head_dim": 32}),
    "seed_oss, biases": ("seed_oss", {"attention_out_bias": True, "attention_bias": False}),
    "smollm3, no positions": ("smollm3", {"no_rope_layers": [0] * 4}),
    "smollm3, all positions": ("smollm3", {"no_rope_layers": [1] * 4}),
    "stablelm, parallel": (
        "stablelm",
        {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True},
    ),
    "stablelm, all channels": ("stablelm", {"rope_parameters": WHOLE, "num_key_value_heads": 1}),
    "starcoder2, window": ("starcoder2", {"use_bias": False, "sliding_window": 5}),
}
"""{what is unusual: (the type, entries of its configuration)}"""
EQUAL = ("gpt2, upcast", "llama, tied")
"""Entries that change no number of a model in float32 with the same weights."""
REFUSED = {
    "bloom, residual of norms": (
        "bloom",
        {"apply_residual_connection_post_layernorm": True},
        "no attention by transformers' interface",
    ),
    "falcon, alibi": ("falcon", {"alibi": True}, "no attention by transformers' interface"),
    "falcon, in sequence": (
        "falcon",
        {"parallel_attn": False, "multi_query": False},
        "no attention by transformers' interface",
    ),
    "mpt, clipped": (
        "mpt",
        {"attn_config": {"alibi": False, "clip_qkv": 0.3}},
        "no attention by transformers' interface",
    ),
}
DAILY = random.Random("configurations").sample([*CONFIGURATIONS], 4)


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def find_unknown(name, entries):
    """Entries that the configuration of a type does not have: they would change nothing."""
    text = transformers.AutoConfig.for_model(name).get_text_config()
    known = {*text.to_dict(), *vars(text), "head_dim", "no_rope_layers"}
    return sorted({*entries} - known)


@torch.no_grad()
@pytest.mark.parametrize("title", mark_others(CONFIGURATIONS, DAILY))
def test_an_unusual_configuration_computes_what_it_did(title):
    name, entries = CONFIGURATIONS[title]
    assert not find_unknown(name, entries)
    model, ids = small_models.build_model(name, **entries), types.make_ids()
    with stirred(model):
        before = types.run_all(model, ids)
        assert not isinstance(before["equal"], str), before["equal"]
        zoo.equip(model, "own")
        answers = types.compare_runs(before, types.run_all(model, ids))
        assert not [answer for answer in answers.values() if answer.startswith("no")], answers
        zoo.unequip(model)
        assert torch.equal(types.compute(model, ids), before["equal"])
        for encoding in ("alibi", "none"):
            zoo.equip(model, encoding)
            assert types.check_literally(model, ids, has_alibi=encoding == "alibi"), encoding
            zoo.unequip(model)


@pytest.mark.nightly
@torch.no_grad()
@pytest.mark.parametrize("title", CONFIGURATIONS)
def test_an_unusual_configuration_is_unusual(title):
    """With the same weights, if they fit, the model computes something else."""
    name, entries = CONFIGURATIONS[title]
    models = [small_models.build_model(name, **given) for given in (entries, {})]
    states = [model.state_dict() for model in models]
    shapes = [{key: one.shape for key, one in state.items()} for state in states]
    if shapes[0] != shapes[1]:
        return
    models[1].load_state_dict(states[0])
    with stirred(models[0]), stirred(models[1]):
        changed, usual = (types.compute(model, types.make_ids()) for model in models)
    assert types.is_close(changed, usual) == (title in EQUAL)


@torch.no_grad()
@pytest.mark.parametrize("title", REFUSED)
def test_a_configuration_that_cannot_be_equipped_is_refused_by_name(title):
    name, entries, words = REFUSED[title]
    model = small_models.build_model(name, **entries)
    right = types.compute(model, types.make_ids())
    with pytest.raises(OptionError, match=words):
        zoo.equip(model, "own")
    assert torch.equal(types.compute(model, types.make_ids()), right)


def test_the_table_is_long_enough():
    assert len(CONFIGURATIONS) >= 39
