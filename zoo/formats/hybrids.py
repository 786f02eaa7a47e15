"""Qwen3-Next, OLMo Hybrid and LFM2, read from published weights: mixers in most layers."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from zoo.data.spec import DataSpec, Vocabulary
from zoo.errors import CheckpointError
from zoo.formats.config_entries import EntryError
from zoo.formats.decoder_target import BLOCK_NAMES, FULL
from zoo.formats.llama import ATTENTION, LAYER, DecoderFamily
from zoo.formats.olmo import OLMO_BLOCK
from zoo.formats.published import EQUIP, Pool
from zoo.integrations.rope_parameters import DEFAULT_BASE

LINEAR, CONV = "linear_attention", "conv"
"""Types of layers of transformers that have a mixer."""
MIXER = "mixer"
"""The name of a layer's mixer in zoo."""
NORM_EPS = 1e-6
"""The epsilon of the norms of queries and keys in the gated delta rule, in all of transformers."""


class HybridFamily(DecoderFamily):
    """Decoders that have a mixer in the layers of one type, and attention in the others."""

    mixer_kind = LINEAR
    """The type of layers with the mixer, as transformers calls it."""

    mixer_start = "linear_attn."
    """The start of the names of the mixer's weights, after that of their layer."""

    mixer_names: Mapping[str, str]
    """Names in the file of weights of the mixer, by their names in zoo."""

    mark: str
    """The weight in the file by which a layer is one with the mixer."""

    kinds = {FULL: "full"}

    @abstractmethod
    def list_default_kinds(self) -> list[str]:
        """Return the type of each layer of a configuration without `layer_types`."""

    @abstractmethod
    def describe_mixer(self) -> dict[str, Any]:
        """Return the mixer with its options."""

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it.

        Raises:
            EntryError: The tensors are of other types, or no layer has attention or a mixer.
        """
        kinds = self.read_kinds(self.list_default_kinds())
        for kind in (FULL, self.mixer_kind):
            if kind not in kinds:
                reason = f"layer_types has no {kind}, by its entries or by default"
                raise EntryError(f"zoo has no recipe for it: {reason}")
        for number, kind in enumerate(kinds):
            name = f"{LAYER.format(number)}{self.mixer_start}{self.mark}"
            if (name in self.pool.rest) != (kind == self.mixer_kind):
                has_or_not = "has" if name in self.pool.rest else "has no"
                reason = f"layer {number} is {kind} by layer_types or its default"
                raise EntryError(f"{reason}, but the file {has_or_not} {self.pool.name(name)}")
        return kinds

    @cached_property
    def layer_kinds(self) -> list[str]:
        """The type of each layer, read before tensors are taken."""
        return self.list_kinds()

    @cached_property
    def mixer(self) -> dict[str, Any]:
        """The mixer with its options, read before tensors are taken."""
        return self.describe_mixer()

    def list_layers(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the type and the options of each layer; see `Layers`."""
        types: dict[str, dict[str, Any]] = {
            FULL: {"encoding": [self.describe_encoding(FULL)]},
            self.mixer_kind: {"mixer": self.mixer},
        }
        return [(self.kinds[kind], types[kind]) for kind in self.layer_kinds]

    def name_block(self, number: int) -> Mapping[str, str]:
        """Return the names in the file of layers of a block, by their names in zoo."""
        names = super().name_block(number)
        if self.layer_kinds[number] == FULL:
            return names
        return {
            name: published for name, published in names.items() if not name.startswith("attn.")
        }

    def rename(self, heads: int) -> None:
        super().rename(heads)
        for number in self.list_mixers():
            for layer_name, published in self.mixer_names.items():
                name = f"{LAYER.format(number)}{self.mixer_start}{published}"
                self.pool.take(name, f"blocks.{number}.{MIXER}.{layer_name}")

    def list_mixers(self) -> list[int]:
        """Return the numbers of the layers that have a mixer."""
        return [number for number, kind in enumerate(self.layer_kinds) if kind != FULL]

    def name_mixer(self, name: str) -> str:
        """Return the name of a weight of the first mixer."""
        return f"{LAYER.format(self.list_mixers()[0])}{self.mixer_start}{name}"


class DeltaFamily(HybridFamily):
    """Hybrids whose mixer is the gated delta rule with a decay by head."""

    mark = "dt_bias"
    kinds = {FULL: "full", LINEAR: "linear"}
    has_head_norms = True
    output_norm = "norm"
    """The name in the file of the norm of the mixer's outputs."""

    def describe_delta(self, heads: int, key_dim: int, output_eps: float) -> dict[str, Any]:
        """Return the mixer with the sizes of the configuration and of the tensors.

        Args:
            heads: The number of key heads where the configuration does not say it.
            key_dim: Channels of a key where the configuration does not say them.
            output_eps: The epsilon of the norm of outputs.

        Raises:
            EntryError: An entry contradicts a tensor or another entry.
        """
        convolution = self.name_mixer("conv1d.weight")
        width = self.read_size("linear_conv_kernel_dim", convolution, 2)
        value_heads = self.read_size("linear_num_value_heads", self.name_mixer("A_log"), 0)
        norm = self.name_mixer(f"{self.output_norm}.weight")
        value_dim = self.read_size("linear_value_head_dim", norm, 0)

        sizes = {"linear_num_key_heads": heads, "linear_key_head_dim": key_dim}
        for entry, default in sizes.items():
            stated = self.config.get(entry)
            self.sizes[entry] = sizes[entry] = default if stated is None else stated
        heads, key_dim = sizes.values()
        shown = " and ".join(f"{entry} {size}" for entry, size in sizes.items())
        rows = 2 * heads * key_dim + value_heads * value_dim
        shape = self.pool.shape(convolution, 3)
        if shape[0] != rows:
            name = f"{self.pool.name(convolution)} {list(shape)}"
            raise EntryError(f"{shown} need {rows} rows with the values, but {name} has others")
        if value_heads % heads:
            reason = f"{value_heads} heads of values (linear_num_value_heads) are no multiple"
            raise EntryError(f"zoo has no recipe for it: {reason} of {heads} ({shown})")
        return {
            "name": "gated_delta",
            "heads": heads,
            "value_heads": value_heads,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "conv": width,
            "norm_eps": NORM_EPS,
            "output_norm_eps": output_eps,
        }


class Qwen3NextFamily(DeltaFamily):
    """Qwen3-Next without experts: the output of attention has a gate, a part of a head rotates.

    Norms multiply by 1 + weight, except that of a mixer's outputs.
    """

    mixer_names = {
        "qkvz": "in_proj_qkvz.weight",
        "ba": "in_proj_ba.weight",
        "conv.weight": "conv1d.weight",
        "a_log": "A_log",
        "dt_bias": "dt_bias",
        "norm.weight": "norm.weight",
        "out.weight": "out_proj.weight",
    }
    block_names = {**BLOCK_NAMES, "attn.output_gate": "self_attn.output_gate"}
    dropped = r"mtp\..*"
    follows_fraction = True
    default_fraction = 0.25
    biased = ()
    ignored = frozenset(
        # of experts, which no layer has
        {
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "num_experts_per_tok",
            "norm_topk_prob",
            "output_router_logits",
            "router_aux_loss_coef",
        }
    )

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        if self.pool.has(ATTENTION + r"q_proj\.bias"):
            # The gate of the output would have one too.
            self.require(attention_bias=False)
        self._require_dense()
        for number, kind in enumerate(self.layer_kinds):
            if kind == FULL:
                self._split_gate(f"{LAYER.format(number)}self_attn.")
        return super().describe()

    def _require_dense(self) -> None:
        """Check that no layer has experts.

        Raises:
            EntryError: Layers have experts.
        """
        config, depth = self.config, self.config["num_hidden_layers"]
        experts, step = config.get("num_experts", 512), config.get("decoder_sparse_step", 1)
        dense = config.get("mlp_only_layers") or ()
        sparse = [n for n in range(depth) if experts and (n + 1) % step == 0 and n not in dense]
        if sparse:
            reason = f"num_experts is {experts}, of layers {', '.join(map(str, sparse[:8]))} by"
            reason = f"{reason} mlp_only_layers and decoder_sparse_step; zoo has no experts"
            raise EntryError(f"zoo has no recipe for it: {reason}; {EQUIP}")

    def _split_gate(self, start: str) -> None:
        """Split queries and gates, which take turns by head."""
        name, heads = f"{start}q_proj.weight", self.config["num_attention_heads"]
        rows = self.pool.shape(name, 2)[0]
        if rows % (2 * heads):
            message = f"{self.pool.name(name)} has {rows} rows, not queries and gates of {heads}"
            raise EntryError(f"{message} heads (num_attention_heads)")
        # [heads, query or gate, K, D]
        weight = self.pool.rest[name].unflatten(0, (heads, 2, -1))
        parts = {name: weight[:, 0].flatten(0, 1)}
        self.pool.split_rest(
            name, {**parts, f"{start}output_gate.weight": weight[:, 1].flatten(0, 1)}
        )

    def list_default_kinds(self) -> list[str]:
        """Return the type of each layer of a configuration without `layer_types`."""
        step = self.config.get("full_attention_interval", 4)
        depth = self.config["num_hidden_layers"]
        return [LINEAR if (number + 1) % step else FULL for number in range(depth)]

    def describe_rope(self, rope: dict[str, Any]) -> dict[str, Any]:
        """Return the encoding `rope` with these rotary entries."""
        if rope.get("partial_rotary_factor", 1) is None:
            message = (
                "rope_parameters has partial_rotary_factor null, with which it has no rotation"
            )
            raise EntryError(f"{message}; write a number, or leave it out for 0.25")
        return super().describe_rope(rope)

    def describe_mixer(self) -> dict[str, Any]:
        """Return the mixer with its options."""
        return self.describe_delta(16, 128, self.config.get(self.norm_entry, self.norm_eps))

    def describe_block(self) -> dict[str, Any]:
        """Return the options of the blocks."""
        return {**super().describe_block(), "output_gate": True}

    def rename(self, heads: int) -> None:
        super().rename(heads)
        layer = r"blocks\.\d+\.(norm\d|attn\.[qk]_norm)"
        self.pool.change(rf"(norm|{layer})\.weight", lambda weight: weight.float() + 1)
        mixer, groups = self.mixer, self.mixer["heads"]
        repeats = mixer["value_heads"] // groups
        keys, values = mixer["key_dim"], repeats * mixer["value_dim"]
        projections = {"query": keys, "key": keys, "value": values, "gate": values}
        for number in self.list_mixers():
            start = f"blocks.{number}.{MIXER}."
            split_groups(self.pool, start, "qkvz", groups, projections)
            split_groups(self.pool, start, "ba", groups, {"beta": repeats, "decay": repeats})


def split_groups(pool: Pool, start: str, name: str, groups: int, parts: Mapping[str, int]) -> None:
    """Split a weight that was taken, whose rows are those of parts in turn, group by group.

    Args:
        pool: The weights.
        start: The start of the names in zoo.
        name: The end of the name of the weight.
        groups: The number of groups.
        parts: The rows of a group by the name of their part, in their order.

    Raises:
        CheckpointError: The weight has another number of rows.
    """
    if f"{start}{name}" not in pool.taken:
        return  # noted as missing or damaged
    weight, rows = pool.taken[f"{start}{name}"], groups * sum(parts.values())
    if weight.dim() != 2 or len(weight) != rows:
        shown = f"{pool.name_taken(f'{start}{name}')} {list(weight.shape)}"
        raise CheckpointError(f"{shown} does not have the {rows} rows of its configuration")
    split = weight.unflatten(0, (groups, -1)).split([*parts.values()], dim=1)
    named = zip(parts, split, strict=True)
    pool.split(
        f"{start}{name}", {f"{start}{part}.weight": rows.flatten(0, 1) for part, rows in named}
    )


class OlmoHybridFamily(DeltaFamily):
    """OLMo Hybrid: an OLMo 3 with mixers, whose norms come before branches, and rope or none."""

    mixer_names = {
        "query.weight": "q_proj.weight",
        "key.weight": "k_proj.weight",
        "value.weight": "v_proj.weight",
        "decay.weight": "a_proj.weight",
        "beta.weight": "b_proj.weight",
        "gate.weight": "g_proj.weight",
        "conv.weight": "conv1d.weight",
        "a_log": "A_log",
        "dt_bias": "dt_bias",
        "norm.weight": "o_norm.weight",
        "out.weight": "o_proj.weight",
    }
    output_norm = "o_norm"
    norms = {"norm1": "attention_layer_norm", "norm2": "feedforward_layer_norm"}
    """Names in the file of norms of layers with a mixer."""

    ignored = frozenset(
        # initial values
        {
            "linear_a_log_min",
            "linear_a_log_max",
            "linear_dt_min",
            "linear_dt_max",
            "linear_dt_init_floor",
        }
    )

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        pool = self.pool
        for number, kind in enumerate(self.layer_kinds):
            start = LAYER.format(number)
            # transformers loads a norm under either name, and saves all under the first
            for norm, published in self.norms.items():
                former = f"{start}{BLOCK_NAMES[norm]}.weight"
                if former in pool.rest and f"{start}{published}.weight" not in pool.rest:
                    pool.rename(former, f"{start}{published}.weight")
            joined = f"{start}{self.mixer_start}conv1d.weight"
            if kind != FULL and joined not in pool.rest:
                parts = [
                    f"{start}{self.mixer_start}{projection}_conv1d.weight" for projection in "qkv"
                ]
                pool.join_rest(joined, parts)
        return super().describe()

    def name_block(self, number: int) -> Mapping[str, str]:
        """Return the names in the file of layers of a block, by their names in zoo."""
        norms = self.norms
        if self.layer_kinds[number] == FULL:
            # after attention comes what is before the MLP elsewhere
            norms = {"norm1": self.norms["norm2"], "norm2": OLMO_BLOCK["norm2"]}
        return {**super().name_block(number), **norms}

    def list_default_kinds(self) -> list[str]:
        """Return the type of each layer of a configuration without `layer_types`."""
        depth = self.config["num_hidden_layers"]
        kinds = [FULL if number % 4 == 3 else LINEAR for number in range(depth)]
        return kinds if FULL in kinds else [*kinds[:-1], FULL]

    def describe_mixer(self) -> dict[str, Any]:
        """Return the mixer with its options."""
        heads = self.config.get("linear_num_key_heads") or self.config["num_attention_heads"]
        mixer = self.describe_delta(heads, int(0.75 * self.dim / heads), 1e-5)
        doubles = self.config.get("linear_allow_neg_eigval", True)
        return {**mixer, "negative_eigenvalues": doubles}

    def describe_block(self) -> dict[str, Any]:
        """Return the options of the blocks."""
        return {**super().describe_block(), "norm_position": "hybrid", "qk_norm_joint": True}

    def describe_encoding(self, kind: str) -> dict[str, Any]:
        """Return the encoding of layers of a type: none where the base of rotations is null."""
        entries = self.config.get("rope_scaling") or self.config.get("rope_parameters") or {}
        base = entries.get("rope_theta", self.config.get("rope_theta", DEFAULT_BASE))
        return {"name": "none"} if base is None else super().describe_encoding(kind)


class Lfm2Family(HybridFamily):
    """LFM2: short convolutions, and attention with norms of heads."""

    mixer_kind, mixer_start, mark = CONV, "conv.", "conv.weight"
    mixer_names = {f"{name}.weight": f"{name}.weight" for name in ("in_proj", "conv", "out_proj")}
    kinds = {FULL: "full", CONV: "conv"}
    block_names = {
        "norm1": "operator_norm",
        **{f"attn.{one}_proj": f"self_attn.{one}_proj" for one in "qkv"},
        "attn.o_proj": "self_attn.out_proj",
        "norm2": "ffn_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    }
    head_norms = {f"attn.{one}_norm": f"self_attn.{one}_layernorm" for one in "qk"}
    model_names = {**DecoderFamily.model_names, "norm": "model.embedding_norm"}
    # its code has no such entry
    activation: Mapping[str, str] = {}
    has_head_norms = True
    ties = True
    biased = ()
    default_base = 1_000_000.0
    norm_entry, norm_eps = "norm_eps", 1e-5
    former = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
    """Former names of entries, which transformers prefers."""

    ignored = frozenset(
        # of the code that trained it, and read by no code of transformers
        {
            "block_dim",
            "block_mlp_init_scale",
            "block_norm_eps",
            "block_out_init_scale",
            "block_use_swiglu",
            "block_use_xavier_init",
            "conv_dim",
            "conv_dim_out",
            "conv_use_xavier_init",
            "num_heads",
            "theta",
            "use_pos_enc",
        }
    )

    def __init__(
        self, config: Mapping[str, Any], pool: Pool, vocabulary: Vocabulary | None
    ) -> None:
        renamed = {self.former[key]: value for key, value in config.items() if key in self.former}
        unchanged = {key: value for key, value in config.items() if key not in self.former}
        super().__init__({**unchanged, **renamed}, pool, vocabulary)

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        self.require(conv_bias=False)
        return super().describe()

    def list_default_kinds(self) -> list[str]:
        """Return the type of each layer of a configuration without `layer_types`."""
        depth, full = self.config["num_hidden_layers"], self.config.get("full_attn_idxs")
        return [FULL if full is None or number in full else CONV for number in range(depth)]

    def describe_mixer(self) -> dict[str, Any]:
        """Return the mixer with its options."""
        width = self.read_size("conv_L_cache", self.name_mixer("conv.weight"), 2)
        return {"name": "short_conv", "width": width}

    def read_hidden(self) -> int:
        """Return the number of units of the MLP, which the entries round.

        Raises:
            EntryError: They say another number than the tensor has.
        """
        config, name = self.config, self.name_first("mlp.up_proj")
        size, entry = self.pool.shape(name, 2)[0], "intermediate_size"
        unit = config.get("block_multiple_of", 256)
        factor = config.get("block_ffn_dim_multiplier", 1.0)
        adjusts = config.get("block_auto_adjust_ff_dim", True)
        stated = hidden = config.get(entry)
        if hidden is None:
            # what is rounded to the size of the tensor
            hidden = math.ceil(1.5 * size / (factor or 1.0)) if adjusts else size
            self.sizes[entry] = hidden
        if adjusts:
            hidden = int(2 * hidden / 3)
            if factor is not None:
                hidden = unit * ((int(factor * hidden) + unit - 1) // unit)
        if hidden != size:
            shape = f"{self.pool.name(name)} {list(self.pool.shape(name))}"
            rules = f"block_ffn_dim_multiplier {factor} and block_multiple_of {unit}"
            if adjusts:
                rules = f"{rules}, which make it {hidden} by block_auto_adjust_ff_dim"
            raise EntryError(f"{entry} is {stated}, but {shape} has {size} rows; {rules}")
        return size
