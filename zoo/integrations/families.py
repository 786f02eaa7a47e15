"""The model families that can be equipped, with the paths of their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Family:
    """The parts of a model, as dotted paths relative to its base model.

    Attributes:
        layers: The list of layers.
        attention: The attention of a layer, relative to the layer.
        rotary: The module that makes tables of cos and sin; empty if there is none.
        tables: Embeddings or parameters that are added for positions.
        is_image: Whether it reads images.
        empty_rotary: Whether tables of width 0 disable the rotation at no cost.
        rotation: The function of the model's module that rotates queries and keys.
        rotary_table: What the rotary module returns: cos and sin for all rotated channels (full),
            or for one of each pair (half), or complex numbers, one for each pair of neighbours.
        caps_scores: Whether the attention follows `config.attn_logit_softcapping`.
        has_position: Whether an attention has positions; some layers may have none (NoPE).
    """

    layers: str
    attention: str
    rotary: str = ""
    tables: tuple[str, ...] = ()
    is_image: bool = False
    empty_rotary: bool = False
    rotation: str = "apply_rotary_pos_emb"
    rotary_table: Literal["full", "half", "complex"] = "full"
    caps_scores: bool = False
    has_position: Callable[[Any], bool] = lambda attention: True


# The layouts that many models of transformers share.
LLAMA = Family(layers="layers", attention="self_attn", rotary="rotary_emb")
BERT = Family(
    layers="encoder.layer", attention="attention.self", tables=("embeddings.position_embeddings",)
)
DINO = Family(
    layers="encoder.layer",
    attention="attention",
    tables=("embeddings.position_embeddings",),
    is_image=True,
)
CLIP = Family(
    layers="encoder.layers",
    attention="self_attn",
    tables=("embeddings.position_embedding",),
    is_image=True,
)

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "olmo2",
            "granite",
            "phi3",
            "apertus",
            "arcee",
            "bitnet",
            "cohere",
            "dots1",
            "ernie4_5",
            "ernie4_5_moe",
            "flex_olmo",
            "gemma",
            "gemma3_text",
            "glm",
            "glm4",
            "glm4_moe",
            "granitemoe",
            "granitemoeshared",
            "helium",
            "hunyuan_v1_dense",
            "hunyuan_v1_moe",
            "ministral",
            "ministral3",
            "mixtral",
            "nemotron",
            "olmo",
            "olmo3",
            "olmoe",
            "persimmon",
            "phi",
            "phimoe",
            "qwen2_moe",
            "qwen3_moe",
            "seed_oss",
            "stablelm",
            "starcoder2",
        ),
        LLAMA,
    ),
    "smollm3": replace(LLAMA, has_position=lambda attention: bool(attention.use_rope)),
    "gemma2": replace(LLAMA, caps_scores=True),
    "gpt_oss": replace(LLAMA, rotary_table="half"),
    "llama4_text": replace(
        LLAMA,
        rotation="apply_rotary_emb",
        rotary_table="complex",
        has_position=lambda attention: bool(attention.use_rope),
    ),
    "cohere2": replace(LLAMA, has_position=lambda attention: attention.sliding_window is not None),
    "exaone4": replace(
        LLAMA,
        has_position=lambda attention: attention.sliding_window is None or attention.is_sliding,
    ),
    "gpt_neox": Family(
        layers="layers", attention="attention", rotary="rotary_emb", empty_rotary=True
    ),
    "gpt2": Family(layers="h", attention="attn", tables=("wpe",)),
    "opt": Family(
        layers="decoder.layers", attention="self_attn", tables=("decoder.embed_positions",)
    ),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "electra", "ernie"),
        BERT,
    ),
    "distilbert": Family(
        layers="transformer.layer",
        attention="attention",
        tables=("embeddings.position_embeddings",),
    ),
    "modernbert": Family(layers="layers", attention="attn", rotary="rotary_emb"),
    "eurobert": LLAMA,
    "vit": Family(
        layers="layers",
        attention="attention",
        tables=("embeddings.position_embeddings",),
        is_image=True,
    ),
    "deit": Family(
        layers="layers",
        attention="attention",
        tables=("embeddings.position_embeddings",),
        is_image=True,
    ),
    "ijepa": Family(
        layers="layers",
        attention="attention",
        tables=("embeddings.position_embeddings",),
        is_image=True,
    ),
    "dinov2": DINO,
    "dinov2_with_registers": DINO,
    "dinov3_vit": Family(
        layers="model.layer", attention="attention", rotary="rope_embeddings", is_image=True
    ),
    "siglip_vision_model": CLIP,
    "clip_vision_model": CLIP,
}
"""The supported families by `config.model_type`."""

REASONS = {
    "gemma3": "it reads images; load its text model, as Gemma3ForCausalLM",
    "llama4": "it reads images; load its text model, as Llama4ForCausalLM",
    "t5": "it has cross-attention",
    "bart": "it has cross-attention",
}
"""Reasons why other model types are not supported."""
