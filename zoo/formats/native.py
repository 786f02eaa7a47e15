"""Common parts of formats of other architectures: checks of recipes, names and orders of weights.

A recipe that is a Llama or a ViT is exported as one, for programs that know these architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from zoo.config import Recipe
from zoo.data.spec import ImageSpec, TextSpec, VideoSpec
from zoo.errors import ConfigIssue, Message, RecipeError, Setting
from zoo.models.transformer import Block, Transformer

PLAIN_BLOCK: Mapping[str, object] = {
    "model.attention": "softmax",
    "model.softcap": None,
    "model.sinks": False,
    "model.layer_types": None,
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
    "model.temperature": None,
    "model.head_dim": None,
    "model.logit_softcap": None,
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
    "model.block.norm_bias": True,
    "model.block.mlp": "gelu",
}
"""The options of a recipe that is such a model. Sizes, biases and epsilons are free."""

ENCODING_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "rope": {"rotary_fraction": 1.0, "coordinates": "index"},
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
    remedy = Message("use ", Setting("to", "hf"), ", which takes every recipe")
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


def join_halves(weight: Tensor, heads: int, fraction: float = 1.0) -> Tensor:
    """Undo `split_halves`, where the first channels of each head rotate, a fraction of them."""
    rows = weight.unflatten(0, (heads, -1))
    width = round(fraction * rows.shape[1])
    rotated = rows[:, :width].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([rotated, rows[:, width:]], dim=1).reshape(weight.shape)


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
