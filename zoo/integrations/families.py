"""The model families that can be equipped, with the paths of their parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Family:
    """The parts of a model, as dotted paths relative to its base model.

    Attributes:
        layers: The list of layers.
        attention: The attention of a layer, relative to the layer.
        rotary: The module that makes tables of cos and sin; empty if there is none.
        tables: Embeddings or parameters that are added for positions.
        causal: Whether the model has a causal mask.
        is_image: Whether it reads images.
        empty_rotary: Whether tables of width 0 disable the rotation at no cost.
    """

    layers: str
    attention: str
    rotary: str = ""
    tables: tuple[str, ...] = ()
    causal: bool = True
    is_image: bool = False
    empty_rotary: bool = False


# The layout of Llama, which many later models of transformers share.
LLAMA = Family(layers="layers", attention="self_attn", rotary="rotary_emb")

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "granite", "phi3"), LLAMA
    ),
    "gpt_neox": Family(
        layers="layers", attention="attention", rotary="rotary_emb", empty_rotary=True
    ),
    "gpt2": Family(layers="h", attention="attn", tables=("wpe",)),
    "bert": Family(
        layers="encoder.layer",
        attention="attention.self",
        tables=("embeddings.position_embeddings",),
        causal=False,
    ),
    "modernbert": Family(layers="layers", attention="attn", rotary="rotary_emb", causal=False),
    "vit": Family(
        layers="layers",
        attention="attention",
        tables=("embeddings.position_embeddings",),
        causal=False,
        is_image=True,
    ),
    "dinov3_vit": Family(
        layers="model.layer",
        attention="attention",
        rotary="rope_embeddings",
        causal=False,
        is_image=True,
    ),
    "siglip_vision_model": Family(
        layers="encoder.layers",
        attention="self_attn",
        tables=("embeddings.position_embedding",),
        causal=False,
        is_image=True,
    ),
}
"""The supported families by `config.model_type`."""

REASONS = {
    "gemma2": "it caps its scores (attn_logit_softcapping)",
    "gemma3_text": "its layers have two rotary bases",
    "gemma3": "its layers have two rotary bases",
    "cohere": "it rotates interleaved pairs of channels",
    "cohere2": "it rotates interleaved pairs of channels",
    "gpt_oss": "it has attention sinks",
    "t5": "it has cross-attention",
    "bart": "it has cross-attention",
}
"""Reasons why other model types are not supported."""
