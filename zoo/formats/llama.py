"""Llama: read from published weights, and written for programs that have it themselves.

It rotates channels t and t + K/2 together, zoo 2t and 2t + 1, so rows of projections change places.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zoo.data.spec import DataSpec
from zoo.errors import CheckpointError, OptionError
from zoo.formats.decoder_target import (
    BLOCK_NAMES,
    FULL,
    MODEL_NAMES,
    SLIDING,
    DecoderTarget,
    TargetShape,
    write_decoder,
)
from zoo.formats.export import ExportSource
from zoo.formats.layer_plan import describe_layers
from zoo.formats.native import DECODER, join_halves
from zoo.formats.published import EQUIP, EntryError, PublishedFamily, mlp_ratio
from zoo.formats.targets import ExportOptions
from zoo.integrations.rope_parameters import (
    DEFAULT_BASE,
    ENTRIES,
    FIXED_LENGTH,
    LENGTH_ENTRY,
    read_kind,
    read_rope_parameters,
)

KINDS = {"full_attention": "full", "sliding_attention": "sliding"}
"""Names of types of layers, by those of transformers."""
UNUSED_WINDOW = 4096


class LlamaFamily(PublishedFamily):
    """Llama, and Mistral, Qwen2 and Qwen3, which differ in windows, biases and norms of heads."""

    prefix = "model."
    follows_fraction = False
    """Whether its code follows `partial_rotary_factor`; others rotate whole heads."""

    joins_halves = True
    """Whether channels t and t + K/2 rotate together; otherwise 2t and 2t + 1."""

    block_names: Mapping[str, str] = BLOCK_NAMES
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
        if depth < 1:
            raise EntryError(f"num_hidden_layers must be at least 1, got {depth}")
        if depth > len(pool.rest):
            count = f"{len(pool.rest):,}"
            raise EntryError(f"num_hidden_layers is {depth:,}, but the file has {count} tensors")

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
            raise EntryError(problem)
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
            raise EntryError(problem)
        if SLIDING in kinds and not self.read_window():
            problem = f"layer_types has {SLIDING}, but there is no sliding_window"
            raise EntryError(problem)
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
        model = {own: other for own, other in MODEL_NAMES.items() if own != "lm_head"}
        model |= {} if self.tied else {"lm_head": MODEL_NAMES["lm_head"]}
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


def describe_windows(shape: TargetShape) -> dict[str, Any]:
    """Return the entries of layers with a window and without, as most architectures have them."""
    # Some need a number even where no layer has a window.
    return {"layer_types": shape.kinds, "sliding_window": shape.window or UNUSED_WINDOW}


LLAMA = DecoderTarget(
    "llama",
    "LlamaForCausalLM",
    {**DECODER, "model.block.qk_norm": False},
    has_windows=False,
    entries=lambda shape: {"mlp_bias": shape.options["block"].mlp_bias},
)
QWEN3 = DecoderTarget(
    "qwen3",
    "Qwen3ForCausalLM",
    {
        **DECODER,
        "model.block.qk_norm": True,
        "model.block.qk_norm_joint": False,
        "model.block.mlp_bias": False,
    },
    has_head_norms=True,
    entries=lambda shape: {
        **describe_windows(shape),
        "use_sliding_window": shape.window is not None,
    },
)


def write_llama(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers, vLLM and llama.cpp read as a Llama, without zoo.

    Raises:
        RecipeError: The recipe is no Llama; every option that stands in the way is named.
    """
    write_decoder(LLAMA, source, folder)


def write_qwen3(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers reads as a Qwen3, as `write_llama` does."""
    write_decoder(QWEN3, source, folder)
