"""Common parts of formats of other architectures: checks of recipes, names and orders of weights.

A recipe that is a Llama or a ViT is exported as one, for programs that know these architectures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from zoo.config import Recipe
from zoo.data.spec import ImageSpec, TextSpec
from zoo.errors import ConfigIssue, Message, RecipeError, Setting
from zoo.models.transformer import Block, Transformer

PLAIN_BLOCK: Mapping[str, object] = {
    "model.block.norm_position": "pre",
    "model.block.embed_norm": False,
    "model.block.qk_norm": False,
    "model.block.output_norm": False,
    "model.block.output_gate": False,
    "model.block.token_shift": False,
}
DECODER: Mapping[str, object] = {
    **PLAIN_BLOCK,
    "model.scale_embeddings": False,
    "model.logit_softcap": None,
    "model.memory_length": 0,
    "model.block.per_head_norms": False,
    "model.block.norm": "rms",
    "model.block.mlp": "swiglu",
}
VIT: Mapping[str, object] = {
    **PLAIN_BLOCK,
    "model.softcap": None,
    "model.sinks": False,
    "model.layer_types": None,
    "model.encoding": ["learned"],
    "model.pool": "class",
    "model.cls_position": "none",
    "model.registers": 0,
    "model.block.norm": "layer",
    "model.block.norm_bias": True,
    "model.block.mlp": "gelu",
}
"""The options of a recipe that is such a model. Sizes, biases and epsilons are free; a decoder's
layers are checked one by one."""

ENCODING_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "rope": {"rotary_fraction": 1.0, "t_min": None, "coordinates": "index"},
    "learned": {"shared": True},
}


REMEDY = Message("use ", Setting("to", "hf"), ", which takes every recipe")


def check_recipe(
    recipe: Recipe,
    spec: object,
    target: str,
    required: Mapping[str, object],
    others: Sequence[ConfigIssue] = (),
) -> None:
    """Check that a recipe is a native architecture.

    Args:
        recipe: The recipe.
        spec: What its model reads.
        target: The name of the architecture, "vit" or that of a decoder.
        required: The options that it must have.
        others: Issues that were found already.

    Raises:
        RecipeError: With every option that stands in the way.
    """
    is_text = isinstance(spec, TextSpec) and "memory_length" in recipe.model.options
    is_image = type(spec) is ImageSpec
    if not (is_image if target == "vit" else is_text):
        reads = "a vision transformer of images" if target == "vit" else "a decoder of text"
        message = f"{recipe.model.name} is no {target}, which is {reads}"
        raise RecipeError(recipe.make_issue("model.name", message, REMEDY))

    issues = [*others]
    options = flatten_options(recipe)
    for key, right in required.items():
        if options[key] != right:
            message = (
                f"a {target} has {format_option(right)}, this model {format_option(options[key])}"
            )
            issues.append(recipe.make_issue(key, message, REMEDY))
    block = recipe.model.options["block"]
    if required.get("model.block.qk_norm") and (block.qk_norm_eps or 1e-6) != block.norm_eps:
        message = f"a {target} has the epsilon of its other norms, {block.norm_eps}"
        issues.append(recipe.make_issue("model.block.qk_norm_eps", message, REMEDY))
    # A decoder's encodings are those of its layers.
    choices = recipe.model.options["encoding"] if target == "vit" else ()
    for number, choice in enumerate(choices):
        for key, right in ENCODING_OPTIONS.get(choice.name, {}).items():
            if choice.options.get(key, right) not in (right, None):
                shown = f"{format_option(right)}, got {format_option(choice.options[key])}"
                message = f"a {target} has {shown}"
                issues.append(recipe.make_issue(f"model.encoding.{number}.{key}", message, REMEDY))
    if issues:
        raise RecipeError(*issues)


def flatten_options(recipe: Recipe) -> dict[str, Any]:
    """Return the options of a model by their keys, encodings as a list of names."""
    options = recipe.model.options
    flat = {f"model.{key}": value for key, value in options.items()}
    flat |= {f"model.block.{key}": value for key, value in asdict(options["block"]).items()}
    flat["model.encoding"] = [choice.name for choice in options["encoding"]]
    return flat


def format_option(value: object) -> str:
    """Return a value as a recipe has it."""
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
        names |= {f"blocks.{number}.{name}": start + published for name, published in block.items()}
    return {
        f"{published}.{kind}": weights[f"{name}.{kind}"]
        for name, published in names.items()
        for kind in ("weight", "bias")
        if f"{name}.{kind}" in weights
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
        # A norm of the branch's output comes before the scale.
        ends = {"branch": ("norm1", "norm2"), "both": ("out_norm1", "out_norm2")}
        scaled = ends.get(block.norm_position, ("attn.o_proj", "mlp.down_proj"))
        scales = dict(zip(scaled, (block.attn_branch.scale, block.mlp_branch.scale), strict=True))
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
