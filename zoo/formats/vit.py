"""The ViT of transformers and timm: read from published weights, and written for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zoo.data.spec import DataSpec, ImageSpec
from zoo.formats.export import ExportSource
from zoo.formats.huggingface import describe_labels
from zoo.formats.model_card import write_card
from zoo.formats.native import VIT, check_recipe, collect_weights, rename_layers
from zoo.formats.published import PublishedFamily, mlp_ratio
from zoo.formats.safetensors import save_weights
from zoo.formats.targets import ExportOptions
from zoo.models.transformer import Transformer
from zoo.utils import write_json

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


class ViTFamily(PublishedFamily):
    """The ViT of transformers, whose CLS token has a position, which is added to it."""

    prefix = "vit."
    auto = "AutoModelForImageClassification"
    dropped = r"vit\.pooler\..*|vit\.embeddings\.mask_token"
    required = ("num_hidden_layers", "num_attention_heads", "image_size")
    ignored = frozenset({"encoder_stride", "pooler_act", "pooler_output_size"})

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config, pool = self.config, self.pool
        self.has_logits = pool.has(r"classifier\..*")
        if not self.has_logits:
            self.auto = "AutoModel"
        patches = "vit.embeddings.patch_embeddings.projection.weight"
        dim = self.read_size("hidden_size", patches, 0)
        channels = self.read_size("num_channels", patches, 1)
        patch = self.read_size("patch_size", patches, 2)
        hidden = self.read_size(
            "intermediate_size", "vit.encoder.layer.0.intermediate.dense.weight", 0
        )
        head_dim = dim // config["num_attention_heads"]
        self.require(hidden_act="gelu", qkv_bias=True, head_dim=head_dim, is_causal=False)
        self.has_key_bias = self.read_key_bias(r".*attention\.attention\.key\.bias")
        block = {
            "norm_eps": config.get("layer_norm_eps", 1e-12),
            "mlp_ratio": mlp_ratio(hidden, dim),
            "key_bias": self.has_key_bias,
        }
        model = {
            "name": "vit",
            "dim": dim,
            "depth": config["num_hidden_layers"],
            "heads": config["num_attention_heads"],
            "patch_size": patch,
            "encoding": ["learned"],
            "pool": "class",
            "block": block,
        }
        # a file without a head leaves this open; zoo's own head has the classes of ImageNet
        classes = 1000
        if self.has_logits:
            classes = self.read_size("num_labels", "classifier.weight", 0)
        sections, spec = self.describe_images(channels, config["image_size"], classes)
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool = self.pool
        names = dict(VIT_MODEL)
        if not self.has_logits:
            del names["head"]
        depth = self.config["num_hidden_layers"]
        biased = {*names, *VIT_BLOCK} - ({"attn.k_proj"} if not self.has_key_bias else set())
        pool.take_layers(names, [VIT_BLOCK] * depth, "vit.encoder.layer.{}.", biased)
        pool.take("vit.embeddings.cls_token", "cls_token")
        pool.take("vit.embeddings.position_embeddings", "encoding.learned.table")
        positions = pool.taken.get("encoding.learned.table", torch.zeros(1, 1, 1))[0]
        pool.change("cls_token", lambda token: token + positions[0])
        pool.change(r"encoding\.learned\.table", lambda table: table[0, 1:])


def write_vit(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers reads as a ViT, with a folder `timm` in it for timm.

    Raises:
        RecipeError: The recipe is no ViT; every option that stands in the way is named.
    """
    recipe, spec, model = source.recipe, source.task.spec, source.task.model
    check_recipe(recipe, spec, "vit", VIT)
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
    write_json(describe_vit(source), folder / "config.json")
    card = write_card(source, "image-classification", "transformers")
    (folder / "README.md").write_text(card, encoding="utf-8")

    for number in range(depth):
        for kind in ("weight", "bias"):
            parts = [weights[f"blocks.{number}.attn.{name}_proj.{kind}"] for name in "qkv"]
            weights[f"blocks.{number}.attn.qkv.{kind}"] = torch.cat(parts)
    renamed = rename_layers(weights, TIMM_MODEL, TIMM_BLOCK, "blocks.{}.", depth)
    renamed |= {"cls_token": weights["cls_token"], "pos_embed": positions}
    (folder / "timm").mkdir()
    save_weights(renamed, folder / "timm" / "model.safetensors")
    write_json(describe_timm_vit(source), folder / "timm" / "config.json")


def describe_vit(source: ExportSource) -> dict[str, Any]:
    """Return config.json of the ViT of transformers."""
    options, spec = source.recipe.model.options, source.task.spec
    assert isinstance(spec, ImageSpec)
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "dtype": "float32",
        "hidden_size": options["dim"],
        "intermediate_size": int(options["dim"] * options["block"].mlp_ratio),
        "num_hidden_layers": options["depth"],
        "num_attention_heads": options["heads"],
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": options["block"].norm_eps,
        "image_size": spec.height if spec.height == spec.width else list(spec.grid),
        "patch_size": options["patch_size"],
        "num_channels": spec.channels,
        "qkv_bias": True,
        **describe_labels(spec),
    }


def describe_timm_vit(source: ExportSource) -> dict[str, Any]:
    """Return config.json of timm: `timm.create_model("local-dir:FOLDER/timm")` reads it."""
    options, spec = source.recipe.model.options, source.task.spec
    assert isinstance(spec, ImageSpec)
    return {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": spec.classes,
        "global_pool": "token",
        "model_args": {
            "img_size": list(spec.grid),
            "patch_size": options["patch_size"],
            "in_chans": spec.channels,
            "embed_dim": options["dim"],
            "depth": options["depth"],
            "num_heads": options["heads"],
            "mlp_ratio": options["block"].mlp_ratio,
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
