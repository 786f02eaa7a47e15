"""GGUF files of the architecture llama, read with their tokenizer."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zoo.errors import CheckpointError, OptionError
from zoo.formats.native import split_halves
from zoo.formats.published import Published
from zoo.integrations.rope_parameters import write_rope_parameters
from zoo.packages import explain_imports
from zoo.utils import escape_text, raise_if_out_of_memory

log = logging.getLogger("zoo")

CONTROL_TOKEN = 3  # its type in a GGUF file
MAX_READS = 20_000_000
"""Entries of metadata; tokenizers of published models have fewer than two million."""
GGUF_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""Names of transformers for those of a GGUF file."""
GGUF_DIVISORS = {
    "rope_freqs.weight": "all",
    "rope_factors_short.weight": "short",
    "rope_factors_long.weight": "long",
}
"""Tensors by which frequencies are divided, and the texts that they are for."""
GGUF_RULES = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}
"""Kinds of transformers for those of a GGUF file."""


def read_gguf(file: Path) -> Published:
    """Read a GGUF file of the architecture llama; quantised weights become float32.

    Raises:
        CheckpointError: It is unreadable, or of another architecture.
        PackageError: gguf is missing.
    """
    with explain_imports():
        from gguf import dequantize

    try:
        reader = _open_reader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        kind = fields.get("general.architecture")
    except Exception as error:
        raise_if_out_of_memory(error)
        # it raises errors of several kinds
        raise CheckpointError(f"{file}: unreadable as GGUF: {str(error)[:120]}") from None
    if kind != "llama":
        shown = escape_text(f"{kind!r:.40}")
        raise CheckpointError(f"{file}: of architecture {shown}; of GGUF files only llama is read")
    if sum(int(tensor.n_bytes) for tensor in reader.tensors) > file.stat().st_size:
        raise CheckpointError(f"{file}: damaged, its tensors overlap")

    try:
        settings = _read_settings(fields)
        tokenizer = build_gguf_tokenizer(fields)
        weights = {}
        for tensor in reader.tensors:
            numbers = dequantize(tensor.data, tensor.tensor_type)
            weights[_rename_gguf(tensor.name)] = torch.tensor(numbers, dtype=torch.float32)
        divisors = {
            kind: weights.pop(name).flatten().tolist()
            for name, kind in GGUF_DIVISORS.items()
            if name in weights
        }
        settings["rope_parameters"] = read_gguf_rope(fields, divisors, settings)
        for name, weight in weights.items():
            # these files have the rows that belong together side by side, as zoo does
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                is_query = "q_proj" in name
                key = "num_attention_heads" if is_query else "num_key_value_heads"
                weights[name] = split_halves(weight, settings[key])
    except OptionError as error:
        problem = f"zoo has no recipe for it: {error}"
        raise CheckpointError(escape_text(f"{file}: {problem}")) from None
    except BaseException as error:
        # the library of tokenizers panics
        if isinstance(error, Exception):
            raise_if_out_of_memory(error)
        elif type(error).__name__ != "PanicException":
            raise
        problem = f"its metadata are damaged or lack an entry: {error!r:.120}"
        raise CheckpointError(escape_text(f"{file}: {problem}")) from None
    return Published(file.stem, settings, weights, tokenizer)


def _open_reader(file: Path) -> Any:
    """Return the reader of a file, which refuses lengths beyond its end."""
    with explain_imports():
        from gguf import GGUFReader

    class Reader(GGUFReader):  # type: ignore[misc]
        reads = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, *others: Any, **more: Any) -> Any:
            # the library takes what is there, and goes on for as many entries as the file states
            end = int(offset) + int(count) * np.dtype(dtype).itemsize
            self.reads += 1
            if end > len(self.data) or self.reads > MAX_READS:
                raise ValueError(f"an entry ends at byte {end:,} of {len(self.data):,}")
            return super()._get(offset, dtype, count, *others, **more)

    return Reader(file)


def _read_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a configuration. Raises LookupError or TypeError."""
    heads = fields["llama.attention.head_count"]
    counts = {
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", heads),
        "max_position_embeddings": fields["llama.context_length"],
    }
    numbers = {"rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"]}
    for key, value in {**counts, **numbers}.items():
        if isinstance(value, bool) or not isinstance(value, int if key in counts else int | float):
            raise TypeError(f"{key} is {value!r:.40}")
    size = len(fields["tokenizer.ggml.tokens"])
    return {"model_type": "llama", **counts, **numbers, "vocab_size": size}


def read_gguf_rope(
    fields: Mapping[str, Any], divisors: Mapping[str, list[float]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `rope_parameters` of transformers for the rotary fields of a GGUF file.

    Args:
        fields: All fields of the file.
        divisors: The lists of GGUF_DIVISORS that the file has.
        settings: The sizes of the model, as in config.json.

    Raises:
        OptionError: A field has no meaning here.
    """
    start = "llama.rope."
    given = {
        name.removeprefix(start): one for name, one in fields.items() if name.startswith(start)
    }
    length = settings["max_position_embeddings"]
    head_dim = settings["hidden_size"] // settings["num_attention_heads"]
    if (width := given.pop("dimension_count", head_dim)) != head_dim:
        problem = f"{start}dimension_count is {width}, but heads have {head_dim} channels"
        raise OptionError("rope", problem)
    base = given.pop("freq_base", 10000.0)
    given.pop("scaling.finetuned", None)  # tells of the training, not of the frequencies

    kind = given.pop("scaling.type", "linear" if "scaling.factor" in given else "none")
    if kind not in GGUF_RULES:
        raise OptionError("rope", f"{start}scaling.type is {kind}; known: {', '.join(GGUF_RULES)}")
    original = given.pop("scaling.original_context_length", None) or length
    options: dict[str, Any] = {}
    if "short" in divisors:
        kind, options = "longrope", {f"{one}_factor": divisors[one] for one in ("short", "long")}
    elif "all" in divisors:
        # Those of llama3, which no length of a text changes.
        both = {"short_factor": divisors["all"], "long_factor": divisors["all"]}
        kind, options, original = "longrope", both, length
    if kind in ("linear", "yarn"):
        options["factor"] = given.pop("scaling.factor", 1.0)
    if kind in ("yarn", "longrope"):
        sharpening = given.pop("scaling.attn_factor", 1.0)
        options |= {"original": original, "attention_factor": sharpening}
    if kind == "yarn":
        sharpening *= given.pop("scaling.yarn_attn_factor", 1.0)
        options["attention_factor"] = sharpening * (0.1 * math.log(options["factor"]) + 1)
        for key in ("beta_fast", "beta_slow"):
            options[key] = given.pop(f"scaling.yarn_{key}", None)
    for key, value in given.items():
        raise OptionError("rope", f"{start}{key}={value} is not read for rotations {kind}")
    return write_rope_parameters(base, GGUF_RULES[kind], options)


def _rename_gguf(name: str) -> str:
    """Return the name of transformers for `blk.3.attn_q.weight`."""
    *block, layer, kind = name.split(".")
    other = f"{GGUF_LAYERS.get(layer, layer)}.{kind}"
    return f"model.layers.{block[1]}.{other}" if block else other


def build_gguf_tokenizer(fields: Mapping[str, Any]) -> str | None:
    """Return the JSON of the tokenizer of a GGUF file; None for a kind that is not known here."""
    with explain_imports():
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    before = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}
    kind = fields.get("tokenizer.ggml.pre", "gpt-2")
    if fields.get("tokenizer.ggml.model") != "gpt2" or kind not in before:
        log.info("the tokenizer %s of the file is not known; the model reads only token ids", kind)
        return None
    pieces, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, merges))
    steps = [*before[kind], pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    special = [piece for piece, one in zip(pieces, kinds, strict=True) if one == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece in special])
    return str(tokenizer.to_str())
