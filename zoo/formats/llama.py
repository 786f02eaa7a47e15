"""Llama: read from published weights, and written for programs that have it themselves.

It rotates channels t and t + K/2 together, zoo 2t and 2t + 1, so rows of projections change places.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zoo.data.spec import DataSpec, TextSpec
from zoo.errors import CheckpointError, OptionError
from zoo.formats.export import ExportOptions, ExportSource
from zoo.formats.huggingface import write_generation_config
from zoo.formats.layer_plan import describe_layers
from zoo.formats.model_card import write_card
from zoo.formats.native import (
    check_recipe,
    collect_weights,
    join_halves,
    rename_layers,
    split_halves,
)
from zoo.formats.published import EQUIP, PublishedFamily, mlp_ratio
from zoo.formats.safetensors import save_weights
from zoo.formats.tokenizer_files import write_tokenizer
from zoo.integrations.rope_parameters import (
    DEFAULT_BASE,
    ENTRIES,
    FIXED_LENGTH,
    LENGTH_ENTRY,
    read_kind,
    read_rope_parameters,
    write_rope_parameters,
)
from zoo.models.transformer import Block, Transformer
from zoo.utils import write_json

log = logging.getLogger("zoo")

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


KINDS = {"full_attention": "full", "sliding_attention": "sliding"}
"""Names of types of layers, by those of transformers."""
SLIDING, FULL = "sliding_attention", "full_attention"


class LlamaFamily(PublishedFamily):
    """Llama, and Mistral, Qwen2 and Qwen3, which differ in windows, biases and norms of heads."""

    prefix = "model."
    follows_fraction = False
    """Whether its code follows `partial_rotary_factor`; others rotate whole heads."""

    joins_halves = True
    """Whether channels t and t + K/2 rotate together; otherwise 2t and 2t + 1."""

    block_names: Mapping[str, str] = LLAMA_BLOCK
    activation: Mapping[str, str] = {"hidden_act": "silu"}
    mlp = "swiglu"
    ties = False
    """Whether the table predicts where `tie_word_embeddings` does not say."""

    default_base = DEFAULT_BASE
    fraction = 1.0
    """The fraction of channels that rotate, once `describe` has read it."""

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config, pool = self.config, self.pool
        dim, heads, depth = self.dim, config["num_attention_heads"], config["num_hidden_layers"]
        self.require(**self.activation, is_causal=True)
        if depth > len(pool.rest):
            problem = f"num_hidden_layers is {depth:,}, but the file has {len(pool.rest):,} tensors"
            raise CheckpointError(f"config.json: {problem}")

        self.tied = bool(config.get("tie_word_embeddings", self.ties))
        if self.tied or not pool.has("lm_head.weight"):
            # the table, written twice
            self.tied = True
            pool.drop("lm_head.weight")
        layers = self.list_layers()
        model = {
            "name": "decoder",
            "dim": dim,
            "depth": depth,
            "heads": heads,
            "kv_heads": config.get("num_key_value_heads"),
            **describe_layers(layers),
            "block": self.describe_block(),
            "tie_embeddings": self.tied,
        }
        if self.head_dim * heads != dim:
            model["head_dim"] = self.head_dim
        sections, spec = self.describe_text(config["max_position_embeddings"], "causal_lm")
        data = sections["data"]
        for _, layer in layers:
            scaling = layer["encoding"][0].get("scaling") or {}
            if scaling.get("rule") in FIXED_LENGTH:
                # The length of its texts is fixed, at L until the recipe says otherwise.
                data["length"] = min(data["length"], scaling["original"])
        return {"model": model, **sections}, spec

    @property
    def dim(self) -> int:
        """The width of the model."""
        size: int = self.config["hidden_size"]
        return size

    @property
    def head_dim(self) -> int:
        """The number of channels of a head."""
        kind = self.config.get("model_type")
        # as transformers has it
        default = 128 if kind == "qwen3" else self.dim // self.config["num_attention_heads"]
        return int(self.config.get("head_dim") or default)

    def describe_block(self) -> dict[str, Any]:
        """Return the options of the blocks."""
        config, pool = self.config, self.pool
        attention = r"model\.layers\.\d+\.self_attn\."
        has_biases = config.get("attention_bias")
        self.has_bias = pool.has(attention + r"[qvo]_proj\.bias")
        if has_biases and not self.has_bias:
            problem = "attention_bias is true, but the file has no such biases"
            raise CheckpointError(f"config.json: {problem}")
        block = {
            "norm": "rms",
            "norm_eps": config.get("rms_norm_eps", 1e-6),
            "mlp": self.mlp,
            "mlp_ratio": mlp_ratio(config["intermediate_size"], self.dim),
            "mlp_bias": pool.has(r".*\.up_proj\.bias"),
            "proj_bias": self.has_bias,
            "key_bias": self.read_key_bias(attention + r"k_proj\.bias"),
        }
        self.require(mlp_bias=block["mlp_bias"])
        self.has_norms = pool.has(attention + r"q_norm\.weight")
        if self.has_norms:
            block |= {"qk_norm": True, "qk_norm_eps": block["norm_eps"]}
        return block

    def list_layers(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the type and the options of each layer; see `Layers`."""
        kinds, window = self.list_kinds(), self.read_window()
        if SLIDING not in kinds:
            window = None
        options = {
            kind: {
                "window": window if kind == SLIDING else None,
                "encoding": [self.describe_encoding(kind)],
            }
            for kind in dict.fromkeys(kinds)
        }
        return [(KINDS[kind], options[kind]) for kind in kinds]

    def read_window(self) -> int | None:
        """Return the number of tokens in the window of layers that have one."""
        window = self.config.get("sliding_window", 4096)  # as transformers has it
        return int(window) if window else None

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        config, kind = self.config, self.config.get("model_type")
        depth, window = config["num_hidden_layers"], self.read_window()
        # Llama has no windows, whatever its configuration says.
        if kind == "llama":
            return [FULL] * depth
        if kind == "mistral":
            return [SLIDING if window else FULL] * depth
        first = config.get("max_window_layers", 28)
        if not (config.get("use_sliding_window", False) and window):
            first = depth
        return self.read_kinds([SLIDING if layer >= first else FULL for layer in range(depth)])

    def read_kinds(self, default: list[str]) -> list[str]:
        """Return `layer_types`, or a default where the configuration has none.

        Raises:
            CheckpointError: A type is one that zoo does not have, or they are not one per layer.
        """
        kinds = self.config.get("layer_types") or default
        for kind in dict.fromkeys(kinds):
            if kind not in KINDS:
                problem = f"layer_types has {kind}; zoo has {', '.join(KINDS)}"
                raise CheckpointError(f"zoo has no recipe for it: {problem}; {EQUIP}")
        if len(kinds) != len(default):
            problem = f"layer_types names {len(kinds)} layers of {len(default)}"
            raise CheckpointError(f"config.json: {problem}")
        if SLIDING in kinds and not self.read_window():
            problem = f"layer_types has {SLIDING}, but there is no sliding_window"
            raise CheckpointError(f"config.json: {problem}")
        return [*kinds]

    def describe_encoding(self, kind: str) -> dict[str, Any]:
        """Return the encoding of layers of a type."""
        return self.describe_rope(self.list_rope())

    def list_rope(self) -> dict[str, Any]:
        """Return the rotary entries of the configuration, as transformers standardises them."""
        config = self.config
        return self.complete_rope(
            {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})},
            config.get("rope_theta"),
        )

    def list_rope_of(self, kind: str, base: float | None) -> dict[str, Any]:
        """Return the rotary entries of layers of a type, where each type has its own.

        Args:
            kind: The type.
            base: What older files say of it elsewhere. They scale only full layers.
        """
        own = (self.config.get("rope_parameters") or {}).get(kind) or {}
        former = self.config.get("rope_scaling") if kind == FULL else None
        return self.complete_rope({**(former or {}), **own}, base)

    def complete_rope(self, found: dict[str, Any], base: float | None) -> dict[str, Any]:
        """Add to rotary entries what the configuration says elsewhere, or nowhere.

        Args:
            found: The entries of one rotation.
            base: The base of the frequencies where the entries have none.
        """
        config = self.config
        found["rope_theta"] = found.get("rope_theta") or base or self.default_base
        # transformers prefers the entry of the configuration to that of its part.
        if "original" in ENTRIES.get(read_kind(found), {}) and LENGTH_ENTRY in config:
            found[LENGTH_ENTRY] = config[LENGTH_ENTRY]
        return found

    def describe_rope(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the encoding `rope` with these rotary entries."""
        config, kind = self.config, read_kind(found)
        try:
            options = read_rope_parameters(found, config["max_position_embeddings"])
        except OptionError as error:
            raise CheckpointError(f"zoo has no recipe for it: {error}") from None
        fraction = found.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if self.follows_fraction:
            self.fraction = float(fraction) if fraction else 1.0
            return {"name": "rope", **options, "rotary_fraction": self.fraction}
        # The code of these families follows it in rules only, and rotates whole heads.
        if kind not in ("default", "proportional") and fraction not in (None, 1):
            problem = f"partial_rotary_factor is {fraction}, but {kind} rotates whole heads"
            raise CheckpointError(f"zoo has no recipe for it: {problem}")
        return {"name": "rope", **options}

    def rename(self, heads: int) -> None:
        depth, pool = self.config["num_hidden_layers"], self.pool
        model = {own: other for own, other in LLAMA_MODEL.items() if own != "lm_head"}
        model |= {} if self.tied else {"lm_head": LLAMA_MODEL["lm_head"]}
        norms = {f"attn.{name}": f"self_attn.{name}" for name in ("q_norm", "k_norm")}
        block = {**self.block_names, **(norms if self.has_norms else {})}
        pool.take_layers(model, block, "model.layers.{}.", depth)
        pool.drop(r".*rotary_emb\.inv_freq")
        if self.joins_halves:
            self._join_halves(heads)
        if self.has_bias:
            for number in range(depth):
                for name in ("q_proj", "v_proj", "o_proj"):
                    key = f"blocks.{number}.attn.{name}"
                    if f"{key}.weight" in pool.taken:
                        zeros = torch.zeros(len(pool.taken[f"{key}.weight"]))
                        pool.taken.setdefault(f"{key}.bias", zeros)
        self.fit_vocabulary("embed_tokens.weight")
        self.fit_vocabulary("lm_head.weight")

    def _join_halves(self, heads: int) -> None:
        """Order channels of queries and keys so that those which rotate together are neighbours."""
        kv_heads = self.config.get("num_key_value_heads") or heads
        width, fraction = self.head_dim, self.fraction
        queries = partial(join_halves, heads=heads, fraction=fraction)
        keys = partial(join_halves, heads=kv_heads, fraction=fraction)
        self.pool.change(r".*\.q_proj\..*", queries)
        self.pool.change(r".*\.k_proj\..*", keys)
        # A norm has a weight per channel, of one head or of all.
        self.pool.change(
            r".*\.[qk]_norm\..*", lambda weight: join_halves(weight, len(weight) // width, fraction)
        )


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
        # A Llama has no such rule; it is a larger base.
        return write_rope_parameters(
            base * resolved.stretch ** (head_dim / max(head_dim - 2, 1))
        ), length
    given = {**vars(scaling), "factor": resolved.factor, "original": resolved.original}
    if scaling.rule == "llama3":
        given |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    if scaling.rule == "dynamic":
        length = resolved.original
    if resolved.length is not None and resolved.length > resolved.original:
        log.warning(
            "rope %s: this model has the frequencies for texts of %d tokens in all texts; a Llama "
            "chooses them by the length of each text, so shorter texts may differ",
            scaling.rule,
            resolved.length,
        )
    return write_rope_parameters(base, scaling.rule, given), length


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
    head_dim = own["dim"] // heads
    rope, length = describe_rope(own["encoding"][0].options, head_dim, spec.length)
    write_json(
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
            "head_dim": head_dim,
            "max_position_embeddings": length,
            "hidden_act": "silu",
            "rms_norm_eps": block.norm_eps,
            "rope_theta": rope["rope_theta"],
            "rope_parameters": rope,
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
