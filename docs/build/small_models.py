"""Small models of transformers with random weights, one of each type, to look at and to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from zoo.auditing.model_folder import SIZES as SMALL
from zoo.auditing.model_folder import build_random

LARGEST = 3e7  # parameters of a model that is small
TEXT = 24  # tokens of a text that the model must read
SIZES = {
    **SMALL,
    "vocab_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "initializer_range": 0.2,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "mamba_d_head": 32,
    "mamba_n_heads": 4,
    "ssm_state_size": 16,
    "vocab_size_per_layer_input": 128,
    "index_topk": 8,
    "embedding_size": 64,
    "dim": 64,
    "hidden_dim": 64,
    "n_layers": 3,
    "n_heads": 4,
}
IMAGE_SIZES = {"image_size": 32, "patch_size": 8}
# Configurations that need more than sizes.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "codegen": {"rotary_dim": 8},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_text": {"num_kv_shared_layers": 0},
    "gemma4_unified_text": {"num_kv_shared_layers": 0},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
}
# Families that derive a size themselves, or need an equal number of heads: tried in this order.
CHANGES: tuple[Mapping[str, Any], ...] = (
    {},
    {"num_hidden_layers": None},
    {"num_key_value_heads": 4},
    {"head_dim": None},
    {"num_key_value_heads": 4, "head_dim": None},
    {"num_key_value_heads": None, "head_dim": None, "num_attention_heads": None},
)


def list_types(kind: str) -> list[str]:
    """List the types of models that the installed transformers has for a kind of task.

    Args:
        kind: decoder or encoder.
    """
    encoders = {*MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    decoders = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    # Encoders have a head for causal texts, too.
    only = {"data2vec-text", "bert-generation", "big_bird", "rembert", "roc_bert", "xlm"}
    only |= {"megatron-bert", "xlm-roberta-xl", "xmod", "roformer", "roberta-prelayernorm"}
    if kind == "decoder":
        return sorted(decoders - encoders - only)
    return sorted(encoders | (decoders & only))


def build_model(name: str, kind: str = "decoder", **entries: Any) -> Any:
    """Build a small model of a type, in evaluation mode.

    Args:
        name: The model_type.
        kind: decoder or encoder.
        **entries: Entries of the text part of its configuration, in addition to sizes.

    Raises:
        ValueError: No sizes that were tried make a model of it; the message has the last reason.
    """
    # Configurations and models of a library fail in many ways.
    try:
        candidates = list(_list_options(name))
    except Exception as error:
        raise ValueError(_describe(error)) from None
    reason = ""
    for options in candidates:
        try:
            return _build(_make_config(name, {**options, **entries}), kind)
        except Exception as error:
            reason = _describe(error)
    raise ValueError(reason)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _list_options(name: str) -> Iterator[dict[str, Any]]:
    """Yield options of the text part of a configuration, from many to few."""
    text = transformers.AutoConfig.for_model(name).get_text_config()
    kinds = list(dict.fromkeys(getattr(text, "layer_types", None) or ()))
    for changes in CHANGES:
        for mixes_layers in (True, False):
            sizes = {key: size for key, size in {**SIZES, **changes}.items() if size is not None}
            options = {key: size for key, size in sizes.items() if _has(text, key)}
            if len(kinds) > 1 and mixes_layers and "num_hidden_layers" in options:
                count = max(4, 2 * len(kinds))
                options |= {"layer_types": (kinds * 2)[:count], "num_hidden_layers": count}
            window = getattr(text, "sliding_window", None)
            if isinstance(window, int) and window > 16:
                options["sliding_window"] = 16
            yield {**options, **OPTIONS.get(name, {})}


def _has(config: Any, key: str) -> bool:
    try:
        return hasattr(config, key)
    # Some properties raise where other entries are missing.
    except Exception:
        return key in config.to_dict()


def _make_config(name: str, options: Mapping[str, Any]) -> Any:
    plain = transformers.AutoConfig.for_model(name)
    text = plain.get_text_config()
    if text is plain:
        return transformers.AutoConfig.for_model(name, **options)
    parts = {"text_config": {"model_type": text.model_type, **options}}
    return transformers.AutoConfig.for_model(name, **parts)


def _build(config: Any, kind: str) -> Any:
    """Build a model that reads a text.

    Raises:
        OptionError: It is too large.
    """
    masked, causal = transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM
    model = build_random(masked if kind == "encoder" else causal, config, LARGEST)
    with torch.no_grad():
        model(input_ids=torch.arange(3, 3 + TEXT)[None])
    return model
