"""The architectures of GGUF files: their metadata as entries of config.json, their tensors' names.

Files are read as llama.cpp writes them from models of transformers. Every field below the name of
the architecture is read or refused by name: one that nobody reads may change what a model computes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

from zoo.errors import CheckpointError
from zoo.formats.cohere import Cohere2Family
from zoo.formats.decoder_target import FULL, HEAD_NORMS, MODEL_NAMES, SLIDING
from zoo.formats.gemma import Gemma2Family, Gemma3Family
from zoo.formats.llama import DecoderFamily, LlamaFamily, Qwen2Family, Qwen3Family
from zoo.formats.native import split_halves
from zoo.formats.olmo import Olmo2Family
from zoo.formats.phi3 import Phi3Family
from zoo.formats.published import EQUIP
from zoo.formats.smollm3 import SmolLM3Family
from zoo.integrations.rope_parameters import DEFAULT_BASE, LENGTH_ENTRY, write_rope_parameters
from zoo.packages import explain_imports
from zoo.suggestions import list_known

REQUIRED = object()
"""The default of fields that a file must have."""
KINDS = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}
"""Kinds of rotations of transformers for those of a GGUF file."""
LAYOUT = "Meta AI original pth"
"""What the oldest files call rows of queries and keys that lie side by side."""
FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "is_causal": "attention.causal",
    "sliding_window": "attention.sliding_window",
    "layer_types": "attention.sliding_window_pattern",
    "rope_parameters": "rope",
    "rope_theta": "rope.freq_base",
    "rope_type": "rope.scaling.type",
    "partial_rotary_factor": "rope.dimension_count",
    "vocab_size": "vocab_size",
}
"""The fields of entries of config.json, for messages."""
NOUNS = {int: "an integer", float: "a number", bool: "a boolean", str: "a string"}


class Fields:
    """The fields of a file below the name of its architecture, taken one by one.

    Args:
        given: All fields of the file.
        architecture: The name.
    """

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.prefix = f"{architecture}."
        self.rest = {
            name: value for name, value in metadata.items() if name.startswith(self.prefix)
        }

    def has(self, name: str) -> bool:
        """Return whether a field is there that nobody has taken."""
        return self.prefix + name in self.rest

    def take(self, name: str, kind: type, default: Any = REQUIRED) -> Any:
        """Take the value of a field, or a default where the file has none.

        Raises:
            CheckpointError: It is missing or of another type.
        """
        name = self.prefix + name
        if name not in self.rest:
            if default is REQUIRED:
                raise CheckpointError(f"{name} is missing")
            return default
        value = self.rest.pop(name)
        types = (int, float) if kind is float else (kind,)
        # Numbers of a file are Python's, and its booleans are no integers.
        if type(value) not in types:
            raise CheckpointError(f"{name} is {value!r:.40}, expected {NOUNS[kind]}")
        return value

    def check_taken(self) -> None:
        """Check that every field was taken.

        Raises:
            CheckpointError: With all fields that nobody reads.
        """
        unread = ", ".join(f"{name}={value!r:.60}" for name, value in sorted(self.rest.items()))
        if unread:
            raise CheckpointError(f"zoo has no recipe for it: {unread} is not read")


Entries = dict[str, Any]
Describe = Callable[[Fields, Entries], Entries]


@dataclass(frozen=True, kw_only=True)
class GGUFArchitecture:
    """How files of an architecture are read.

    Attributes:
        model_type: Its name in transformers.
        family: The family that reads such models.
        layers: Names of layers in addition to those of the family.
        epsilon: The field of the epsilon of norms, and the entry of config.json for it.
        pairs_rows: Whether rows of queries and keys that rotate together lie side by side.
        norm_shift: The number that writers add to the weights of norms.
        renamed: Fields that mean what another field means elsewhere.
        describe: Returns further entries, from the fields and the entries that all have.
    """

    model_type: str
    family: type[DecoderFamily] = LlamaFamily
    layers: tuple[str, ...] = ()
    epsilon: tuple[str, str] = ("layer_norm_rms_epsilon", "rms_norm_eps")
    pairs_rows: bool = False
    norm_shift: float = 0.0
    renamed: tuple[tuple[str, str], ...] = ()
    describe: Describe = lambda fields, entries: {}

    def restore(self, name: str, weight: Tensor, entries: Mapping[str, Any]) -> Tensor:
        """Return a weight as transformers has it, undoing what writers change.

        Args:
            name: Its name in transformers.
            weight: The weight in the file.
            entries: The entries of config.json.
        """
        if self.pairs_rows and (projection := re.search(r"self_attn\.([qk])_proj\.", name)):
            key = "num_attention_heads" if projection[1] == "q" else "num_key_value_heads"
            return split_halves(weight, entries[key])
        return weight - self.norm_shift if name.endswith("norm.weight") else weight


def describe_gguf(
    metadata: Mapping[str, Any], divisors: Mapping[str, list[float]], tensors: int
) -> Entries:
    """Return the entries of config.json for the fields of a file of a known architecture.

    Args:
        metadata: All fields of the file.
        divisors: The lists by which frequencies are divided; see `read_gguf_rope`.
        tensors: The number of tensors, which is more than that of layers.

    Raises:
        CheckpointError: A field is missing or wrong, or zoo does not have what it asks for.
    """
    name = metadata["general.architecture"]
    fields, architecture = Fields(metadata, name), ARCHITECTURES[name]
    for former, current in architecture.renamed:
        if fields.has(former) and not fields.has(current):
            fields.rest[fields.prefix + current] = fields.rest.pop(fields.prefix + former)
    # Files of models without experts may say so.
    for key in ("expert_count", "expert_used_count"):
        if count := fields.take(key, int, 0):
            reason = f"{fields.prefix}{key} is {count}: a mixture of experts"
            raise CheckpointError(f"zoo has no recipe for it: {reason}; {EQUIP}")

    if architecture.pairs_rows and fields.take("tensor_data_layout", str, LAYOUT) != LAYOUT:
        reason = f"{fields.prefix}tensor_data_layout is not {LAYOUT}"
        raise CheckpointError(f"zoo has no recipe for it: {reason}")
    dim, heads = fields.take("embedding_length", int), fields.take("attention.head_count", int)
    depth = fields.take("block_count", int)
    if not 0 < depth <= tensors:
        reason = f"{fields.prefix}block_count is {depth:,}, but the file has {tensors:,} tensors"
        raise CheckpointError(reason)
    if heads < 1:
        raise CheckpointError(f"{fields.prefix}attention.head_count is {heads}")
    head_dim = fields.take("attention.key_length", int, dim // heads)
    if (width := fields.take("attention.value_length", int, head_dim)) != head_dim:
        reason = f"{fields.prefix}attention.value_length is {width}, but keys have {head_dim}"
        raise CheckpointError(f"zoo has no recipe for it: {reason}")
    epsilon, entry = architecture.epsilon
    # The table may have more rows than there are tokens.
    size = len(metadata.get("tokenizer.ggml.tokens", ()))
    rows = fields.take("vocab_size", int, size or REQUIRED)
    entries = {
        "model_type": architecture.model_type,
        "hidden_size": dim,
        "intermediate_size": fields.take("feed_forward_length", int),
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.take("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.take("context_length", int),
        entry: fields.take(f"attention.{epsilon}", float),
        "is_causal": fields.take("attention.causal", bool, True),
        "vocab_size": size or rows,
    }
    entries["rope_parameters"] = read_gguf_rope(fields, divisors, entries)
    fraction = entries["rope_parameters"].get("partial_rotary_factor", 1.0)
    if fraction != 1 and not architecture.family.follows_fraction:
        rotating = round(fraction * head_dim)
        reason = f"{fields.prefix}rope.dimension_count is {rotating}, but heads have {head_dim}"
        raise CheckpointError(f"zoo has no recipe for it: {reason} channels")
    entries |= architecture.describe(fields, entries)
    fields.check_taken()
    return entries


def list_fields(architecture: str) -> dict[str, str]:
    """Return {entry of config.json: field} of the files of an architecture."""
    return {entry: f"{architecture}.{field}" for entry, field in FIELDS.items()}


def read_gguf_rope(
    fields: Fields, divisors: Mapping[str, list[float]], entries: Mapping[str, Any]
) -> Entries:
    """Return `rope_parameters` of transformers for the rotary fields of a GGUF file.

    Args:
        fields: The fields of the file.
        divisors: Lists by which frequencies are divided: "short" and "long", or "all".
        entries: The sizes of the model, as in config.json.

    Raises:
        CheckpointError: A field has no meaning here.
    """
    length, head_dim = entries["max_position_embeddings"], entries["head_dim"]
    width = fields.take("rope.dimension_count", int, head_dim)
    base = fields.take("rope.freq_base", float, DEFAULT_BASE)
    fields.take("rope.scaling.finetuned", bool, False)  # of the training, not of the frequencies

    start = "rope.scaling."
    default_kind = "linear" if fields.has(f"{start}factor") else "none"
    kind = fields.take(f"{start}type", str, default_kind)
    if kind not in KINDS:
        reason = f"{fields.prefix}{start}type is {kind}; {list_known(KINDS)}"
        raise CheckpointError(f"zoo has no recipe for it: {reason}")
    original = fields.take(f"{start}original_context_length", int, 0) or length
    options: dict[str, Any] = {}
    if "short" in divisors:
        kind, options = (
            "longrope",
            {f"{limit}_factor": divisors[limit] for limit in ("short", "long")},
        )
    elif "all" in divisors:
        # Those of llama3, which no length of a text changes.
        both = {"short_factor": divisors["all"], "long_factor": divisors["all"]}
        kind, options, original = "longrope", both, length
    if kind in ("linear", "yarn"):
        options["factor"] = fields.take(f"{start}factor", float, 1.0)
    if kind in ("yarn", "longrope"):
        sharpening = fields.take(f"{start}attn_factor", float, 1.0)
        options |= {"original": original, "attention_factor": sharpening}
    if kind == "yarn":
        # Writers take this one from attention_factor of transformers.
        default = 0.1 * math.log(max(options["factor"], 1.0)) + 1
        options["attention_factor"] *= fields.take(f"{start}yarn_attn_factor", float, default)
        for key in ("beta_fast", "beta_slow"):
            options[key] = fields.take(f"{start}yarn_{key}", float, None)
    rope = write_rope_parameters(base, KINDS[kind], options)
    return rope if width == head_dim else {**rope, "partial_rotary_factor": width / head_dim}


def take_windows(fields: Fields, depth: int, step: int, default: Any = 0) -> Entries:
    """Return the window and the types of layers.

    Args:
        fields: The fields of the file.
        depth: The number of layers.
        step: Which layers have no window where the file does not say: every layer of this number.
        default: The window where the file has none; 0 is no window.
    """
    window = fields.take("attention.sliding_window", int, default)
    name = "attention.sliding_window_pattern"
    # A number, or a boolean for each layer.
    if isinstance(fields.rest.get(fields.prefix + name), list):
        slides = [bool(flag) for flag in fields.rest.pop(fields.prefix + name)]
    else:
        step = fields.take(name, int, step)
        slides = [step == 0 or (layer + 1) % step != 0 for layer in range(depth)]
    kinds = [SLIDING if window and is_sliding else FULL for is_sliding in slides]
    return {"sliding_window": window or None, "layer_types": kinds}


def describe_gemma2(fields: Fields, entries: Entries) -> Entries:
    """Return the entries of Gemma 2, which llama.cpp fixes where a file is silent."""
    depth = entries["num_hidden_layers"]
    return {
        **take_windows(fields, depth, step=2, default=4096),
        "attn_logit_softcapping": fields.take("attn_logit_softcapping", float, 50.0),
        "final_logit_softcapping": fields.take("final_logit_softcapping", float, 30.0),
        **describe_query_scale(entries, largest=46),
    }


def describe_gemma3(fields: Fields, entries: Entries) -> Entries:
    """Return the entries of the text part of Gemma 3."""
    windows = take_windows(fields, entries["num_hidden_layers"], step=6)
    local = write_rope_parameters(fields.take("rope.freq_base_swa", float, DEFAULT_BASE))
    return {
        **windows,
        "final_logit_softcapping": fields.take("final_logit_softcapping", float, None),
        **describe_query_scale(entries, largest=62),
        "rope_parameters": {FULL: entries["rope_parameters"], SLIDING: local},
    }


def describe_query_scale(entries: Mapping[str, Any], largest: int) -> Entries:
    """Return the scale of Gemma's queries, which its files do not have.

    It follows from the head dim, but in the largest model from the width per head.

    Args:
        entries: The sizes of the model.
        largest: The depth by which llama.cpp tells the largest model.
    """
    head_dim = entries["head_dim"]
    if entries["num_hidden_layers"] == largest:
        head_dim = entries["hidden_size"] // entries["num_attention_heads"]
    return {"query_pre_attn_scalar": head_dim}


def describe_olmo2(fields: Fields, entries: Entries) -> Entries:
    """Return the entries of OLMo 2, or of OLMo 3, which is an OLMo 2 with windows in such files."""
    windows = take_windows(fields, entries["num_hidden_layers"], step=4)
    if not windows["sliding_window"]:
        return {}
    # Layers with a window rotate without scaling.
    base = fields.take("rope.freq_base_swa", float, entries["rope_parameters"]["rope_theta"])
    local = write_rope_parameters(base)
    ropes = {FULL: entries["rope_parameters"], SLIDING: local}
    return {"model_type": "olmo3", **windows, "rope_parameters": ropes}


def describe_cohere2(fields: Fields, entries: Entries) -> Entries:
    """Return the entries of Cohere 2."""
    windows = take_windows(fields, entries["num_hidden_layers"], step=4, default=REQUIRED)
    return {**windows, "logit_scale": fields.take("logit_scale", float)}


def describe_smollm3(fields: Fields, entries: Entries) -> Entries:
    """Return which layers of SmolLM3 have no encoding: every fourth, which no field says."""
    return {"no_rope_layer_interval": 4}


def describe_phi3(fields: Fields, entries: Entries) -> Entries:
    """Return the entries of Phi-3, whose layers have the same window, or none."""
    window = fields.take("attention.sliding_window", int, 0)
    config = {"sliding_window": window or None}
    original = entries["rope_parameters"].get(LENGTH_ENTRY)
    return config if original is None else {**config, LENGTH_ENTRY: original}


ARCHITECTURES: Mapping[str, GGUFArchitecture] = MappingProxyType(
    {
        "llama": GGUFArchitecture(model_type="llama", pairs_rows=True),
        "qwen2": GGUFArchitecture(model_type="qwen2", family=Qwen2Family),
        "qwen3": GGUFArchitecture(model_type="qwen3", family=Qwen3Family),
        "smollm3": GGUFArchitecture(
            model_type="smollm3", family=SmolLM3Family, pairs_rows=True, describe=describe_smollm3
        ),
        "phi3": GGUFArchitecture(
            model_type="phi3",
            family=Phi3Family,
            layers=("self_attn.qkv_proj", "mlp.gate_up_proj"),
            describe=describe_phi3,
        ),
        "olmo2": GGUFArchitecture(
            model_type="olmo2",
            family=Olmo2Family,
            # Older writers put attention_factor of transformers here.
            renamed=(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"),),
            describe=describe_olmo2,
        ),
        "gemma2": GGUFArchitecture(
            model_type="gemma2", family=Gemma2Family, norm_shift=1.0, describe=describe_gemma2
        ),
        "gemma3": GGUFArchitecture(
            model_type="gemma3_text", family=Gemma3Family, norm_shift=1.0, describe=describe_gemma3
        ),
        "cohere2": GGUFArchitecture(
            model_type="cohere2",
            family=Cohere2Family,
            epsilon=("layer_norm_epsilon", "layer_norm_eps"),
            describe=describe_cohere2,
        ),
    }
)
"""How files are read, by `general.architecture`."""


def list_tensor_names(architecture: str, depth: int) -> dict[str, str]:
    """Return the names of transformers by those of a GGUF file, without `.weight` and `.bias`.

    Args:
        architecture: One of ARCHITECTURES.
        depth: The number of layers.
    """
    with explain_imports():
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    about = ARCHITECTURES[architecture]
    (kind,) = (number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    name_map = get_tensor_name_map(kind, depth)
    # A later one replaces an earlier one: Phi-3 has up_proj only in gate_up_proj.
    layers = [*about.family.block_names.values(), *HEAD_NORMS.values(), *about.layers]
    names = [f"model.layers.{number}.{layer}" for number in range(depth) for layer in layers]
    names_by_gguf = {name_map.get_name(name): name for name in [*MODEL_NAMES.values(), *names]}
    return {gguf_name: name for gguf_name, name in names_by_gguf.items() if gguf_name is not None}
