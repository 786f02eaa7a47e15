"""Llama: read from published weights, and written for programs that have it themselves.

It rotates channels t and t + K/2 together, zoo 2t and 2t + 1, so rows of projections change places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from zoo.data.spec import DataSpec
from zoo.errors import OptionError
from zoo.formats.config_entries import EntryError
from zoo.formats.decoder_target import (
    BLOCK_NAMES,
    FULL,
    HEAD_NORMS,
    MODEL_NAMES,
    SLIDING,
    DecoderTarget,
    TargetShape,
    write_decoder,
)
from zoo.formats.export import ExportSource
from zoo.formats.layer_plan import describe_layers
from zoo.formats.native import DECODER, join_halves
from zoo.formats.published import EQUIP, PublishedFamily, mlp_ratio
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


ATTENTION = r"model\.layers\.\d+\.self_attn\."
LAYER = "model.layers.{}."
"""The start of the names of a layer."""


class DecoderFamily(PublishedFamily):
    """Decoders of the shape of Llama, which differ in windows, biases, norms and encodings."""

    prefix = "model."
    required = ("num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    table = "model.embed_tokens.weight"
    follows_fraction = False
    """Whether its code follows `partial_rotary_factor`; others rotate whole heads."""

    joins_halves = True
    """Whether channels t and t + K/2 rotate together; otherwise 2t and 2t + 1."""

    block_names: Mapping[str, str] = BLOCK_NAMES
    activation: Mapping[str, str] = {"hidden_act": "silu"}
    mlp = "swiglu"
    biased: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """The projections of attention that have a bias where attention has any."""

    attention_bias = False
    """Whether attention has biases where the configuration does not say."""

    mlp_biased: tuple[str, ...] = ()
    """The projections of the MLP that have a bias where it has any."""

    has_head_norms = False
    """Whether queries and keys are normed."""

    default_base = DEFAULT_BASE
    default_fraction = 1.0
    """The fraction of channels that rotate where the configuration does not say it."""

    model_names: Mapping[str, str] = MODEL_NAMES
    head_norms: Mapping[str, str] = HEAD_NORMS
    kinds: Mapping[str, str] = KINDS
    """The types of layers that it may have, and their names in a recipe."""

    norm_entry = "rms_norm_eps"
    norm_eps = 1e-6
    """The epsilon of norms where the configuration does not say it."""

    fraction = 1.0
    """The fraction of channels that rotate, once `describe` has read it."""

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config, pool = self.config, self.pool
        heads, depth = config["num_attention_heads"], config["num_hidden_layers"]
        self.require(**self.activation, is_causal=True)
        if depth > len(pool.rest):
            count = f"{len(pool.rest):,}"
            raise EntryError(f"num_hidden_layers is {depth:,}, but the file has {count} tensors")

        self.tied = self.read_tied()
        self.kv_heads = self.read_size(
            "num_key_value_heads", self.name_first("attn.k_proj"), 0, per=self.head_dim
        )
        layers = self.list_layers()
        model = {
            "name": "decoder",
            "dim": self.dim,
            "depth": depth,
            "heads": heads,
            "kv_heads": self.kv_heads,
            **describe_layers(layers),
            "block": self.describe_block(),
            "tie_embeddings": self.tied,
        }
        if self.head_dim * heads != self.dim:
            model["head_dim"] = self.head_dim
        sections, spec = self.describe_text(config["max_position_embeddings"], "causal_lm")
        data = sections["data"]
        for _, layer in layers:
            scaling = layer.get("encoding", [{}])[0].get("scaling") or {}
            if scaling.get("rule") in FIXED_LENGTH:
                # The length of its texts is fixed, at L until the recipe says otherwise.
                data["length"] = min(data["length"], scaling["original"])
        return {"model": model, **sections}, spec

    @cached_property
    def dim(self) -> int:
        """The width of the model."""
        return self.read_size("hidden_size", self.table, 1)

    @cached_property
    def head_dim(self) -> int:
        """The number of channels of a head."""
        heads = self.config["num_attention_heads"]
        return self.read_size("head_dim", self.name_first("attn.q_proj"), 0, per=heads)

    def name_block(self, number: int) -> Mapping[str, str]:
        """Return the names in the file of layers of a block, by their names in zoo."""
        return {**self.block_names, **(self.head_norms if self.has_head_norms else {})}

    def name_first(self, layer: str) -> str:
        """Return the weight in the file of the first layer of a name in zoo: it has their sizes."""
        depth = self.config["num_hidden_layers"]
        blocks = ((number, self.name_block(number)) for number in range(depth))
        number, names = next(pair for pair in blocks if layer in pair[1])
        return f"{LAYER.format(number)}{names[layer]}.weight"

    def read_hidden(self) -> int:
        """Return the number of units of the MLP."""
        return self.read_size("intermediate_size", self.name_first("mlp.up_proj"), 0)

    def describe_block(self) -> dict[str, Any]:
        """Return the options of the blocks."""
        biases = rf"{ATTENTION}({'|'.join(self.biased)})\.bias"
        has_biases = self.read_switch("attention_bias", biases, self.attention_bias)
        mlp = rf"model\.layers\.\d+\.mlp\.({'|'.join(self.mlp_biased)})\.bias"
        has_mlp_biases = self.read_switch("mlp_bias", mlp, False)
        has_key_bias = has_biases and self.read_key_bias(ATTENTION + r"k_proj\.bias")

        names = [f"attn.{name}" for name in self.biased if has_biases and name != "k_proj"]
        names += ["attn.k_proj"] if has_key_bias else []
        names += [f"mlp.{name}" for name in self.mlp_biased if has_mlp_biases]
        self.layers_with_bias = names
        hidden = self.read_hidden()
        block = {
            "norm": "rms",
            "norm_eps": self.config.get(self.norm_entry, self.norm_eps),
            "mlp": self.mlp,
            "mlp_ratio": mlp_ratio(hidden, self.dim),
            "mlp_bias": has_mlp_biases,
            "proj_bias": has_biases,
            "key_bias": has_key_bias,
        }
        if self.has_head_norms:
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
        window: int | None = self.config.get("sliding_window", 4096)  # as transformers has it
        return window

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        # no layer has a window, whatever the configuration says
        return [FULL] * self.config["num_hidden_layers"]

    def read_kinds(self, default: list[str]) -> list[str]:
        """Return `layer_types`, or a default where the configuration has none.

        Raises:
            CheckpointError: A type is one that zoo does not have, or they are not one per layer.
        """
        stated = self.config.get("layer_types")
        kinds = default if stated is None else stated
        for kind in dict.fromkeys(kinds):
            if kind not in self.kinds:
                message = f"layer_types has {kind}; zoo has {', '.join(self.kinds)}"
                raise EntryError(f"zoo has no recipe for it: {message}; {EQUIP}")
        if len(kinds) != len(default):
            message = f"layer_types names {len(kinds)} layers of {len(default)}"
            raise EntryError(message)
        if SLIDING in kinds and not self.read_window():
            message = f"layer_types has {SLIDING}, but there is no sliding_window"
            raise EntryError(message)
        return [*kinds]

    def read_window_step(self, default: int) -> int:
        """Return which layers have no window where no types are named: every layer of this number.

        Raises:
            EntryError: It is under a name that transformers writes and does not read.
        """
        step: int = self.config.get("sliding_window_pattern", default)
        written = self.config.get("_sliding_window_pattern", step)
        if written != step and not self.config.get("layer_types"):
            message = f"_sliding_window_pattern is {written}, which transformers does not read"
            raise EntryError(f"{message}; call it sliding_window_pattern, or name layer_types")
        return step

    def require_window_switch(self, kinds: Sequence[str]) -> None:
        """Check that windows are switched on where layers have one.

        Raises:
            EntryError: `use_sliding_window` is false, with which transformers has no window.
        """
        if SLIDING in kinds and not self.config.get("use_sliding_window", False):
            raise EntryError(f"layer_types has {SLIDING}, but use_sliding_window is not true")

    def describe_encoding(self, kind: str) -> dict[str, Any]:
        """Return the encoding of layers of a type."""
        return self.describe_rope(self.list_rope())

    def list_rope(self) -> dict[str, Any]:
        """Return the rotary entries of the configuration, as transformers standardises them."""
        former = self.config.get("rope_scaling") or {}
        entries = self.config.get("rope_parameters") or {}
        lost = {key: value for key, value in entries.items() if former.get(key) != value}
        if former and lost:
            message = f"rope_scaling replaces rope_parameters, which has {lost!r:.60} in addition"
            raise EntryError(f"{message}; keep one of them")
        return self.complete_rope({**(former or entries)}, self.config.get("rope_theta"))

    def list_rope_of(self, kind: str, base: float | None) -> dict[str, Any]:
        """Return the rotary entries of layers of a type, where each type has its own.

        Args:
            kind: The type.
            base: What older files say of it elsewhere. They scale only full layers.
        """
        by_kind = self.config.get("rope_parameters") or {}
        if unknown := [key for key in by_kind if key not in KINDS]:
            reason = f"rope_parameters has {', '.join(unknown)} in place of types of layers"
            raise EntryError(f"zoo has no recipe for it: {reason}")
        parameters = by_kind.get(kind) or {"rope_type": "default"}
        former = self.config.get("rope_scaling") or {}
        return self.complete_rope({**parameters, **(former if kind == FULL else {})}, base)

    def complete_rope(self, rope: dict[str, Any], base: float | None) -> dict[str, Any]:
        """Add to rotary entries what the configuration says elsewhere, or nowhere.

        Args:
            rope: The entries of one rotation.
            base: The base of the frequencies where the entries have none.
        """
        config, former = self.config, rope.get("type")
        if former is not None and rope.get("rope_type", former) != former:
            message = f"the rotation has type={former} and rope_type={rope['rope_type']}"
            raise EntryError(f"{message}, of which transformers reads rope_type; keep one of them")
        rope["rope_theta"] = rope.get("rope_theta") or base or self.default_base
        # transformers prefers the entry of the configuration to that of its part.
        if "original" in ENTRIES.get(read_kind(rope), {}) and LENGTH_ENTRY in config:
            rope[LENGTH_ENTRY] = config[LENGTH_ENTRY]
        return rope

    def describe_rope(self, rope: dict[str, Any]) -> dict[str, Any]:
        """Return the encoding `rope` with these rotary entries."""
        config, kind = self.config, read_kind(rope)
        try:
            options = read_rope_parameters(rope, config["max_position_embeddings"])
        except OptionError as error:
            raise EntryError(f"zoo has no recipe for it: {error}") from None
        stated = config.get("partial_rotary_factor", self.default_fraction)
        fraction = rope.get("partial_rotary_factor", stated)
        if self.follows_fraction:
            self.fraction = float(fraction) if fraction else 1.0
            return {"name": "rope", **options, "rotary_fraction": self.fraction}
        # The code of these families follows it in rules only, and rotates whole heads.
        if kind not in ("default", "proportional") and fraction not in (None, 1):
            reason = f"partial_rotary_factor is {fraction}, but {kind} rotates whole heads"
            raise EntryError(f"zoo has no recipe for it: {reason}")
        return {"name": "rope", **options}

    def rename(self, heads: int) -> None:
        depth, pool = self.config["num_hidden_layers"], self.pool
        model = {
            name: published for name, published in self.model_names.items() if name != "lm_head"
        }
        model |= {} if self.tied else {"lm_head": self.model_names["lm_head"]}
        blocks = [self.name_block(number) for number in range(depth)]
        pool.take_layers(model, blocks, LAYER, self.layers_with_bias)
        # computed from the configuration
        pool.drop(r".*rotary_emb\.inv_freq")
        if self.joins_halves:
            self._join_halves(heads)
        if "attn.q_proj" in self.layers_with_bias and "attn.o_proj" not in self.layers_with_bias:
            # models of zoo have a bias on all three or on none
            for number in range(depth):
                zeros = torch.zeros(self.dim)
                pool.taken[f"blocks.{number}.attn.o_proj.bias"] = zeros
        self.fit_vocabulary("embed_tokens.weight")
        self.fit_vocabulary("lm_head.weight")

    def _join_halves(self, heads: int) -> None:
        """Order channels of queries and keys so that those which rotate together are neighbours."""
        width, fraction = self.head_dim, self.fraction
        queries = partial(join_halves, heads=heads, fraction=fraction)
        keys = partial(join_halves, heads=self.kv_heads, fraction=fraction)
        self.pool.change(r".*\.q_proj\..*", queries)
        self.pool.change(r".*\.k_proj\..*", keys)
        # A norm has a weight per channel, of one head or of all.
        self.pool.change(
            r".*\.[qk]_norm\..*", lambda weight: join_halves(weight, len(weight) // width, fraction)
        )


class LlamaFamily(DecoderFamily):
    """Llama itself, whose MLP may have biases."""

    mlp_biased = ("gate_proj", "up_proj", "down_proj")


class MistralFamily(DecoderFamily):
    """Mistral: no biases, and a window in all layers or in none."""

    biased = ()

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        return [SLIDING if self.read_window() else FULL] * self.config["num_hidden_layers"]


class Qwen2Family(DecoderFamily):
    """Qwen2: biases of queries, keys and values, and windows in later layers."""

    biased: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    attention_bias = True

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        config, depth = self.config, self.config["num_hidden_layers"]
        first_sliding = config.get("max_window_layers", 28)
        if not (config.get("use_sliding_window", False) and self.read_window()):
            first_sliding = depth
        kinds = self.read_kinds([SLIDING if n >= first_sliding else FULL for n in range(depth)])
        self.require_window_switch(kinds)
        return kinds


class Qwen3Family(Qwen2Family):
    """Qwen3: a Qwen2 with norms of heads, whose biases are those of a Llama."""

    biased = DecoderFamily.biased
    attention_bias = False
    has_head_norms = True


def describe_windows(shape: TargetShape) -> dict[str, Any]:
    """Return the entries of layers with a window and without, as most architectures have them."""
    # Some need a number even where no layer has a window.
    return {"layer_types": shape.kinds, "sliding_window": shape.window or UNUSED_WINDOW}


LLAMA = DecoderTarget(
    "llama",
    "LlamaForCausalLM",
    {**DECODER, "model.block.qk_norm": False},
    has_windows=False,
    head_width="divides",
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
