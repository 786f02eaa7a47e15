"""Architectures that other programs have themselves: Llama, and the ViT of transformers and timm.

A recipe that is one of them is exported as such; `zoo convert` reads the same layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo import files
from zoo.config import Recipe
from zoo.data.spec import ImageSpec, TextSpec, VideoSpec
from zoo.errors import ConfigIssue, RecipeError
from zoo.formats.export import ExportOptions, ExportSource
from zoo.formats.huggingface import (
    describe_labels,
    write_card,
    write_generation_config,
    write_tokenizer,
)
from zoo.models.transformer import Block, Transformer
from zoo.packages import explain_imports

LLAMA_MODEL = {"embed_tokens": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"}
LLAMA_BLOCK = {
    "norm1": "input_layernorm",
    "attn.q_proj": "self_attn.q_proj",
    "attn.k_proj": "self_attn.k_proj",
    "attn.v_proj": "self_attn.v_proj",
    "attn.o_proj": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
}
VIT_MODEL = {
    "patch_embed": "vit.embeddings.patch_embeddings.projection",
    "norm": "vit.layernorm",
    "head": "classifier",
}
VIT_BLOCK = {
    "norm1": "layernorm_before",
    "attn.q_proj": "attention.attention.query",
    "attn.k_proj": "attention.attention.key",
    "attn.v_proj": "attention.attention.value",
    "attn.o_proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.up_proj": "intermediate.dense",
    "mlp.down_proj": "output.dense",
}
TIMM_MODEL = {"patch_embed": "patch_embed.proj", "norm": "norm", "head": "head"}
TIMM_BLOCK = {
    "norm1": "norm1",
    "attn.qkv": "attn.qkv",
    "attn.o_proj": "attn.proj",
    "norm2": "norm2",
    "mlp.up_proj": "mlp.fc1",
    "mlp.down_proj": "mlp.fc2",
}
"""Layers by their names in zoo, of a model and of one of its blocks."""

PLAIN_BLOCK: Mapping[str, object] = {
    "model.attention": "softmax",
    "model.block.norm_position": "pre",
    "model.block.embed_norm": False,
    "model.block.qk_norm": False,
    "model.block.output_norm": False,
    "model.block.output_gate": False,
    "model.block.token_shift": False,
}
LLAMA: Mapping[str, object] = {
    **PLAIN_BLOCK,
    "model.encoding": ["rope"],
    "model.scale_embeddings": False,
    "model.memory_length": 0,
    "model.window": None,
    "model.block.norm": "rms",
    "model.block.mlp": "swiglu",
}
VIT: Mapping[str, object] = {
    **PLAIN_BLOCK,
    "model.encoding": ["learned"],
    "model.pool": "class",
    "model.cls_position": "none",
    "model.registers": 0,
    "model.block.norm": "layer",
    "model.block.mlp": "gelu",
}
"""The options of a recipe that is such a model. Sizes, biases and epsilons are free."""

ENCODING_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "rope": {"rotary_fraction": 1.0, "scaling": None, "coordinates": "index"},
    "learned": {"shared": True},
}


def check_recipe(recipe: Recipe, spec: object, target: str) -> None:
    """Check that a recipe is a native architecture.

    Args:
        recipe: The recipe.
        spec: What its model reads.
        target: "llama" or "vit".

    Raises:
        RecipeError: With every option that stands in the way.
    """
    required = LLAMA if target == "llama" else VIT
    is_text = isinstance(spec, TextSpec) and "memory_length" in recipe.model.options
    is_image = isinstance(spec, ImageSpec) and not isinstance(spec, VideoSpec)
    remedy = "use to=hf, which takes every recipe"
    if not (is_text if target == "llama" else is_image):
        reads = "a decoder of text" if target == "llama" else "a vision transformer of images"
        problem = f"{recipe.model.name} is no {target}, which is {reads}"
        raise RecipeError(recipe.make_issue("model.name", problem, remedy))

    issues: list[ConfigIssue] = []
    given = flatten_options(recipe)
    for key, right in required.items():
        if given[key] != right:
            problem = f"a {target} has {_format(right)}, this model {_format(given[key])}"
            issues.append(recipe.make_issue(key, problem, remedy))
    for number, choice in enumerate(recipe.model.options["encoding"]):
        for key, right in ENCODING_OPTIONS.get(choice.name, {}).items():
            if choice.options.get(key, right) not in (right, None):
                problem = f"a {target} has {_format(right)}, got {_format(choice.options[key])}"
                issues.append(recipe.make_issue(f"model.encoding.{number}.{key}", problem, remedy))
    if issues:
        raise RecipeError(*issues)


def flatten_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options of a model by their keys, encodings as a list of names."""
    options = recipe.model.options
    given = {f"model.{key}": value for key, value in options.items()}
    given |= {f"model.block.{key}": value for key, value in asdict(options["block"]).items()}
    given["model.encoding"] = [choice.name for choice in options["encoding"]]
    return given


def _format(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "null" if value is None else str(value).lower()


def split_halves(weight: Tensor, heads: int) -> Tensor:
    """Order the rows of a projection [H K, ..] for rotations of channels t and t + K/2.

    zoo rotates channels 2t and 2t + 1 together.
    """
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(weight.shape)


def join_halves(weight: Tensor, heads: int) -> Tensor:
    """Undo `split_halves`."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def rename_layers(
    weights: Mapping[str, Tensor],
    model: Mapping[str, str],
    block: Mapping[str, str],
    prefix: str,
    depth: int,
) -> dict[str, Tensor]:
    """Return the weights of layers that are there, under other names.

    Args:
        weights: The weights of zoo by name.
        model: Other names of layers of the model.
        block: Other names of layers of a block.
        prefix: What the names of a block begin with, such as "model.layers.{}.".
        depth: The number of blocks.
    """
    names = dict(model)
    for number in range(depth):
        start = prefix.format(number)
        names |= {f"blocks.{number}.{own}": start + other for own, other in block.items()}
    return {
        f"{other}.{kind}": weights[f"{own}.{kind}"]
        for own, other in names.items()
        for kind in ("weight", "bias")
        if f"{own}.{kind}" in weights
    }


def collect_weights(model: Transformer, biases: bool) -> dict[str, Tensor]:
    """Return the weights of a model, layer scale multiplied into the layer before it.

    Args:
        model: The model.
        biases: Add biases of 0 to projections that have none, as some architectures need.
    """
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        scales = {"attn.o_proj": block.attn_branch.scale, "mlp.down_proj": block.mlp_branch.scale}
        for name, scale in scales.items():
            for kind in ("weight", "bias"):
                key = f"blocks.{number}.{name}.{kind}"
                if scale is not None and key in weights:
                    shape = (-1, *[1] * (weights[key].dim() - 1))
                    weights[key] = weights[key] * scale.detach().view(shape)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj") if biases else ():
            key = f"blocks.{number}.attn.{name}"
            zeros = weights[f"{key}.weight"].new_zeros(len(weights[f"{key}.weight"]))
            weights.setdefault(f"{key}.bias", zeros)
    return weights


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights as safetensors."""
    with explain_imports():
        from safetensors.torch import save

    plain = {name: weight.contiguous() for name, weight in weights.items()}
    path.write_bytes(save(plain, metadata={"format": "pt"}))


def write_llama(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers, vLLM and llama.cpp read as a Llama, without zoo.

    Raises:
        RecipeError: The recipe is no Llama; every option that stands in the way is named.
    """
    recipe, spec, model = source.recipe, source.task.spec, source.task.model
    check_recipe(recipe, spec, "llama")
    assert isinstance(model, Transformer)
    assert isinstance(spec, TextSpec)
    own = recipe.model.options
    block, heads = own["block"], own["heads"]
    kv_heads = own["kv_heads"] or heads

    has_biases = block.proj_bias or block.key_bias
    weights = collect_weights(model, biases=has_biases)
    for number in range(own["depth"]):
        for name, count in (("q_proj", heads), ("k_proj", kv_heads)):
            for kind in ("weight", "bias"):
                key = f"blocks.{number}.attn.{name}.{kind}"
                if key in weights:
                    weights[key] = split_halves(weights[key], count)
    renamed = rename_layers(weights, LLAMA_MODEL, LLAMA_BLOCK, "model.layers.{}.", own["depth"])
    save_weights(renamed, folder / "model.safetensors")

    first = model.blocks[0]
    assert isinstance(first, Block)
    base = own["encoding"][0].options["base"]
    files.write_json(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": str(weights["embed_tokens.weight"].dtype).removeprefix("torch."),
            "vocab_size": len(spec.vocabulary),
            "hidden_size": own["dim"],
            "intermediate_size": first.mlp.up_proj.out_features,
            "num_hidden_layers": own["depth"],
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": own["dim"] // heads,
            "max_position_embeddings": spec.length,
            "hidden_act": "silu",
            "rms_norm_eps": block.norm_eps,
            "rope_theta": base,
            "rope_parameters": {"rope_type": "default", "rope_theta": base},
            "attention_bias": has_biases,
            "mlp_bias": block.mlp_bias,
            "tie_word_embeddings": own["tie_embeddings"],
            "bos_token_id": None,
            "eos_token_id": None,
        },
        folder / "config.json",
    )
    # no token is added: the table has no row for it
    write_tokenizer(spec.vocabulary, folder, mask=None, extend=False)
    write_generation_config(source, folder)
    card = write_card(source, "text-generation", needs_zoo=False)
    (folder / "README.md").write_text(card, encoding="utf-8")


def write_vit(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers reads as a ViT, with a folder `timm` in it for timm.

    Raises:
        RecipeError: The recipe is no ViT; every option that stands in the way is named.
    """
    recipe, spec, model = source.recipe, source.task.spec, source.task.model
    check_recipe(recipe, spec, "vit")
    assert isinstance(model, Transformer)
    assert isinstance(spec, ImageSpec)
    depth = recipe.model.options["depth"]
    weights = collect_weights(model, biases=True)
    # the CLS token has no position: a row of 0
    table = weights["encoding.learned.table"]
    positions = torch.cat([torch.zeros_like(table[:1]), table])[None]

    renamed = rename_layers(weights, VIT_MODEL, VIT_BLOCK, "vit.encoder.layer.{}.", depth)
    renamed["vit.embeddings.cls_token"] = weights["cls_token"]
    renamed["vit.embeddings.position_embeddings"] = positions
    save_weights(renamed, folder / "model.safetensors")
    files.write_json(describe_vit(source), folder / "config.json")
    card = write_card(source, "image-classification", needs_zoo=False)
    (folder / "README.md").write_text(card, encoding="utf-8")

    for number in range(depth):
        for kind in ("weight", "bias"):
            parts = [weights[f"blocks.{number}.attn.{name}_proj.{kind}"] for name in "qkv"]
            weights[f"blocks.{number}.attn.qkv.{kind}"] = torch.cat(parts)
    renamed = rename_layers(weights, TIMM_MODEL, TIMM_BLOCK, "blocks.{}.", depth)
    renamed |= {"cls_token": weights["cls_token"], "pos_embed": positions}
    (folder / "timm").mkdir()
    save_weights(renamed, folder / "timm" / "model.safetensors")
    files.write_json(describe_timm_vit(source), folder / "timm" / "config.json")


def describe_vit(source: ExportSource) -> dict[str, Any]:
    """Return config.json of the ViT of transformers."""
    own, spec = source.recipe.model.options, source.task.spec
    assert isinstance(spec, ImageSpec)
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "dtype": "float32",
        "hidden_size": own["dim"],
        "intermediate_size": int(own["dim"] * own["block"].mlp_ratio),
        "num_hidden_layers": own["depth"],
        "num_attention_heads": own["heads"],
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": own["block"].norm_eps,
        "image_size": spec.height if spec.height == spec.width else list(spec.grid),
        "patch_size": own["patch_size"],
        "num_channels": spec.channels,
        "qkv_bias": True,
        **describe_labels(spec),
    }


def describe_timm_vit(source: ExportSource) -> dict[str, Any]:
    """Return config.json of timm: `timm.create_model("local-dir:FOLDER/timm")` reads it."""
    own, spec = source.recipe.model.options, source.task.spec
    assert isinstance(spec, ImageSpec)
    return {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": spec.classes,
        "global_pool": "token",
        "model_args": {
            "img_size": list(spec.grid),
            "patch_size": own["patch_size"],
            "in_chans": spec.channels,
            "embed_dim": own["dim"],
            "depth": own["depth"],
            "num_heads": own["heads"],
            "mlp_ratio": own["block"].mlp_ratio,
            "dynamic_img_size": True,
        },
        "pretrained_cfg": {
            "num_classes": spec.classes,
            "input_size": [spec.channels, *spec.grid],
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "label_names": list(spec.names) or None,
        },
    }
