"""Write decoders as architectures of transformers, layer by layer, for programs without zoo."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from zoo.config import Recipe
from zoo.data.spec import TextSpec
from zoo.errors import ConfigIssue
from zoo.formats.export import ExportSource
from zoo.formats.huggingface import write_generation_config
from zoo.formats.model_card import write_card
from zoo.formats.native import (
    ENCODING_OPTIONS,
    REMEDY,
    check_recipe,
    collect_weights,
    format_option,
    rename_layers,
    split_halves,
)
from zoo.formats.safetensors import save_weights
from zoo.formats.tokenizer_files import write_tokenizer
from zoo.integrations.rope_parameters import ENTRIES, write_rope_parameters
from zoo.models.layer_types import LAYER_KEYS
from zoo.models.transformer import Block, Transformer
from zoo.options import Choice
from zoo.suggestions import join_words
from zoo.utils import write_json

log = logging.getLogger("zoo")

MODEL_NAMES = {"embed_tokens": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"}
BLOCK_NAMES = {
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
HEAD_NORMS = {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}
FULL, SLIDING = "full_attention", "sliding_attention"
"""Types of layers of transformers."""


@dataclass(frozen=True)
class TargetLayer:
    """The window and the rotation of a layer.

    Attributes:
        window: Number of tokens in its window; None if it has none.
        rope: The options of its encoding `rope`; None for no encoding.
    """

    window: int | None
    rope: Mapping[str, Any] | None

    @property
    def kind(self) -> str:
        """Return its type in transformers."""
        return FULL if self.window is None else SLIDING


Entries = Callable[["TargetShape"], dict[str, Any]]


@dataclass(frozen=True)
class DecoderTarget:
    """An architecture of transformers.

    Attributes:
        name: The word after `to=`, which is its model_type unless that is given.
        architecture: Its class.
        required: The options that a recipe must have; others are free.
        encodings: The encodings that a layer may have.
        has_windows: Whether layers may have a window, all the same one.
        has_ropes: Whether layers with a window may rotate otherwise than those without.
        free: Keys of layers that may have any value, the same in all layers.
        rotates_windows: Whether layers with a window, and no others, have RoPE.
        joins_halves: Whether channels t and t + K/2 rotate together.
        has_head_norms: Whether queries and keys are normed, with the epsilon of the other norms.
        head_width: Whether heads may have any head dim (any), only where their number divides the
            dim (divides), or only that of the quotient (quotient).
        shift: What is taken from the weights of norms, which its code adds.
        block_names: Its names of layers of a block.
        model_type: Its name in config.json.
        entries: Return further entries of config.json.
    """

    name: str
    architecture: str
    required: Mapping[str, object]
    encodings: tuple[str, ...] = ("rope",)
    has_windows: bool = True
    has_ropes: bool = False
    free: tuple[str, ...] = ()
    rotates_windows: bool = False
    joins_halves: bool = True
    has_head_norms: bool = False
    head_width: Literal["any", "divides", "quotient"] = "any"
    shift: float = 0.0
    block_names: Mapping[str, str] = field(default_factory=lambda: BLOCK_NAMES)
    model_type: str = ""
    entries: Entries = lambda shape: {}


@dataclass(frozen=True)
class TargetShape:
    """Sizes and options of a model that a configuration is written from.

    Attributes:
        options: The options of the model.
        layers: Its layers.
        head_dim: Head dim K.
        ropes: `rope_parameters` by type of layers.
    """

    options: Mapping[str, Any]
    layers: Sequence[TargetLayer]
    head_dim: int
    ropes: Mapping[str, Mapping[str, Any]]

    @property
    def window(self) -> int | None:
        """Return the window of the layers that have one."""
        return next((layer.window for layer in self.layers if layer.window is not None), None)

    @property
    def kinds(self) -> list[str]:
        """Return the type of each layer in transformers."""
        return [layer.kind for layer in self.layers]


def write_decoder(target: DecoderTarget, source: ExportSource, folder: Path) -> None:
    """Write a folder that transformers reads as a target, without zoo.

    Raises:
        RecipeError: The recipe is no such model; every option that stands in the way is named.
    """
    recipe, spec, model = source.recipe, source.task.spec, source.task.model
    assert isinstance(model, Transformer)
    layers, issues = list_layers(target, recipe, model)
    issues += check_head_width(target, recipe)
    check_recipe(recipe, spec, target.name, target.required, issues)
    assert isinstance(spec, TextSpec)
    options = recipe.model.options
    block, first_block = options["block"], model.blocks[0]
    assert isinstance(first_block, Block)

    weights = _order_weights(target, model, biases=block.proj_bias or block.key_bias)
    names = {**target.block_names, **(HEAD_NORMS if target.has_head_norms else {})}
    renamed = rename_layers(weights, MODEL_NAMES, names, "model.layers.{}.", options["depth"])
    save_weights(renamed, folder / "model.safetensors")

    assert first_block.attn is not None
    head_dim, length = first_block.attn.head_dim, spec.length
    ropes: dict[str, Mapping[str, Any]] = {}
    for layer in layers:
        if layer.rope is not None and layer.kind not in ropes:
            ropes[layer.kind], length = describe_rope(layer.rope, head_dim, spec.length)
    shape = TargetShape(options, layers, head_dim, ropes)
    rope = next(iter(ropes.values()), write_rope_parameters(10000.0))
    config = {
        "architectures": [target.architecture],
        "model_type": target.model_type or target.name,
        "dtype": str(weights["embed_tokens.weight"].dtype).removeprefix("torch."),
        "vocab_size": len(spec.vocabulary),
        "hidden_size": options["dim"],
        "intermediate_size": first_block.mlp.up_proj.out_features,
        "num_hidden_layers": options["depth"],
        "num_attention_heads": options["heads"],
        "num_key_value_heads": options["kv_heads"] or options["heads"],
        "head_dim": head_dim,
        "max_position_embeddings": length,
        "hidden_act": "silu",
        "rms_norm_eps": block.norm_eps,
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "attention_bias": block.proj_bias or block.key_bias,
        "tie_word_embeddings": options["tie_embeddings"],
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    config |= target.entries(shape)
    write_json(config, folder / "config.json")
    # no token is added: the table has no row for it
    write_tokenizer(spec.vocabulary, folder, mask=None, extend=False)
    write_generation_config(source, folder)
    card = write_card(source, "text-generation", "transformers")
    (folder / "README.md").write_text(card, encoding="utf-8")


def _order_weights(target: DecoderTarget, model: Transformer, biases: bool) -> dict[str, Tensor]:
    """Return the weights of a model under their own names, as the code of a target uses them."""
    weights = collect_weights(model, biases=biases)
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        assert block.attn is not None
        width = block.attn.head_dim
        for name in ("q_proj", "k_proj", "q_norm", "k_norm") if target.joins_halves else ():
            for kind in ("weight", "bias"):
                key = f"blocks.{number}.attn.{name}.{kind}"
                if key in weights:
                    weights[key] = split_halves(weights[key], len(weights[key]) // width)
    if target.shift:
        for key in weights:
            if "norm" in key:
                weights[key] = weights[key] - target.shift
    return weights


def list_layers(
    target: DecoderTarget, recipe: Recipe, model: Transformer
) -> tuple[list[TargetLayer], list[ConfigIssue]]:
    """Return the layers of a model, and an issue for each of their options that a target lacks."""
    model_options, issues = recipe.model.options, dict[str, ConfigIssue]()
    types = model_options.get("layer_types") or {}
    layers: list[TargetLayer] = []
    seen: dict[Any, Any] = {}

    def refuse(layer: int, key: str, message: str) -> None:
        full = f"model.{model.locate(layer, key)}"
        issues.setdefault(full, recipe.make_issue(full, message, REMEDY))

    def agree(layer: int, key: str, value: object, among: object, whose: str) -> None:
        """Note a value, and refuse another one of the same layers."""
        if value != seen.setdefault(among, value):
            refuse(layer, key, f"a {target.name} has one {key} for {whose}; these layers have two")

    for number in range(model_options["depth"]):
        layer_options = {key: model_options.get(key) for key in LAYER_KEYS}
        layer_options |= types[model.layer_types[number]] if model.layer_types else {}
        if mixer := layer_options.get("mixer"):
            message = f"a {target.name} has attention in every layer, this model {mixer.name}"
            refuse(number, "mixer", message)
            continue
        # Scores: what all layers of the architecture have, or have not.
        for key, right in (("softcap", None), ("sinks", False), ("temperature", None)):
            if key in target.free:
                agree(number, key, layer_options[key], key, "all layers")
            elif (layer_options[key] or right) != right:
                shown = f"{format_option(right)}, this model {format_option(layer_options[key])}"
                refuse(number, key, f"a {target.name} has {shown}")
        window = layer_options["window"]
        if window is not None and not target.has_windows:
            refuse(number, "window", f"a {target.name} has null, this model {window}")
        elif window is not None:
            agree(number, "window", window, "window", "the layers with a window")

        choices: Sequence[Choice] = layer_options["encoding"] or ()
        names = [choice.name for choice in choices]
        if len(names) != 1 or names[0] not in target.encodings:
            choices_shown = join_words((format_option([name]) for name in target.encodings), "or")
            shown = f"{choices_shown}, this model {format_option(names)}"
            refuse(number, "encoding", f"a {target.name} has {shown}")
            continue
        options = choices[0].options if names == ["rope"] else None
        layer = TargetLayer(window, options)
        layers.append(layer)
        if target.rotates_windows and (options is None) != (window is None):
            message = f"a {target.name} has rope in layers with a window, and none in others"
            refuse(number, "encoding", message)
        if options is not None:
            for key, value in ENCODING_OPTIONS["rope"].items():
                if options.get(key, value) not in (value, None):
                    shown = f"{format_option(value)}, got {format_option(options[key])}"
                    refuse(number, f"encoding.0.{key}", f"a {target.name} has {shown}")
            scaling = options["scaling"]
            # ntk is written as another base
            if scaling is not None and scaling.rule not in (*ENTRIES, "ntk"):
                message = f"no rotation of transformers has the rule {scaling.rule}"
                refuse(number, "encoding.0.scaling.rule", message)
            among = layer.kind if target.has_ropes else "all"
            whose = "layers of a kind" if target.has_ropes else "all layers"
            agree(number, "encoding", _plain(options), ("rope", among), whose)
    return layers, [*issues.values()]


def check_head_width(target: DecoderTarget, recipe: Recipe) -> list[ConfigIssue]:
    """Return an issue if a target has no heads as wide as those of a recipe, for its dim."""
    options = recipe.model.options
    dim, heads, head_dim = options["dim"], options["heads"], options.get("head_dim")
    message, key = "", ""
    if target.head_width != "any" and dim % heads:
        message, key = f"a {target.name} has heads that divide dim {dim}, not {heads}", "heads"
    elif target.head_width == "quotient" and head_dim not in (None, dim // heads):
        message = f"a {target.name} has head_dim {dim // heads}, dim {dim} / {heads} heads"
        message, key = f"{message}; this model has {head_dim}", "head_dim"
    return [recipe.make_issue(f"model.{key}", message, REMEDY)] if message else []


def _plain(options: Mapping[str, Any]) -> str:
    """Return options in a form that can be compared."""
    return repr(sorted(options.items(), key=lambda item: item[0]))


def describe_rope(
    options: Mapping[str, Any], head_dim: int, length: int
) -> tuple[dict[str, Any], int]:
    """Return `rope_parameters` and `max_position_embeddings` of a model with the encoding `rope`.

    Args:
        options: The options of the encoding.
        head_dim: Number of channels of a head, all of which rotate.
        length: Training length of the model in tokens.
    """
    base, scaling = options["base"], options["scaling"]
    if scaling is None:
        return write_rope_parameters(base), length
    resolved = scaling.resolve(length)
    if scaling.rule == "ntk":
        # No architecture has such a rule; it is a larger base.
        return write_rope_parameters(
            base * resolved.stretch ** (head_dim / max(head_dim - 2, 1))
        ), length
    entries = {**vars(scaling), "factor": resolved.factor, "original": resolved.original}
    if scaling.rule == "llama3":
        entries |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    if scaling.rule == "dynamic":
        length = resolved.original
    if resolved.length is not None and resolved.length > resolved.original:
        log.warning(
            "rope %s: this model has the frequencies for texts of %d tokens in all texts; "
            "transformers chooses them by the length of each text, so shorter texts may differ",
            scaling.rule,
            resolved.length,
        )
    return write_rope_parameters(base, scaling.rule, entries), length
