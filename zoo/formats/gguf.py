"""GGUF files, read with their tokenizer as weights and config.json of transformers."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.errors import CheckpointError
from zoo.formats.gguf_architectures import (
    ARCHITECTURES,
    describe_gguf,
    list_fields,
    list_tensor_names,
)
from zoo.formats.published import EQUIP, Published
from zoo.packages import explain_imports
from zoo.utils import escape_text, raise_if_out_of_memory

log = logging.getLogger("zoo")

CONTROL_TOKEN = 3  # its type in a GGUF file
MAX_READS = 20_000_000
"""Entries of metadata; tokenizers of published models have fewer than two million."""
GGUF_DIVISORS = {
    "rope_freqs.weight": "all",
    "rope_factors_short.weight": "short",
    "rope_factors_long.weight": "long",
}
"""Tensors by which frequencies are divided, and the texts that they are for."""


def read_gguf(file: Path) -> Published:
    """Read a GGUF file of one of ARCHITECTURES; quantised weights become float32.

    Raises:
        CheckpointError: It is unreadable, of another architecture, or has a field that is not read.
        PackageError: gguf is missing.
    """
    reader_class = _make_reader()
    try:
        reader = reader_class(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:
        raise_if_out_of_memory(error)
        # it raises errors of several kinds
        raise CheckpointError(f"{file}: unreadable as GGUF: {str(error)[:120]}") from None
    try:
        check_architecture(fields)
        if sum(int(tensor.n_bytes) for tensor in reader.tensors) > file.stat().st_size:
            raise CheckpointError("damaged, its tensors overlap")
        config, weights = read_model(fields, reader.tensors)
        tokenizer = build_gguf_tokenizer(fields)
    except CheckpointError as error:
        raise CheckpointError(escape_text(f"{file}: {error}")) from None
    except BaseException as error:
        # the library of tokenizers panics
        if isinstance(error, Exception):
            raise_if_out_of_memory(error)
        elif type(error).__name__ != "PanicException":
            raise
        reason = f"its metadata are damaged or lack an entry: {error!r:.120}"
        raise CheckpointError(escape_text(f"{file}: {reason}")) from None
    architecture = fields["general.architecture"]
    layers = list_tensor_names(architecture, config["num_hidden_layers"]).items()
    return Published(
        file.stem,
        config,
        weights,
        tokenizer,
        origin="metadata",
        fields=list_fields(architecture),
        names={
            f"{gguf_name}.{part}": f"{published_name}.{part}"
            for published_name, gguf_name in layers
            for part in ("weight", "bias")
        },
    )


def check_architecture(fields: Mapping[str, Any]) -> None:
    """Check that the fields are those of a whole file of an architecture that is read.

    Raises:
        CheckpointError: They are not.
    """
    kind = fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        if fields.get(f"{kind}.expert_count"):
            reason = f"{kind!r:.40} is a mixture of experts, which zoo's decoder does not have"
            raise CheckpointError(f"zoo has no recipe for it: {reason}; {EQUIP}")
        architectures = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(
            f"of architecture {kind!r:.40}; GGUF files are read of {architectures}"
        )
    if (count := fields.get("split.count", 1)) > 1:
        hint = "merge them with llama-gguf-split"
        raise CheckpointError(f"one of {count} files that are one model; {hint}")


def read_model(
    fields: Mapping[str, Any], tensors: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the entries of config.json and the weights by their names in transformers.

    Args:
        fields: The fields of a file.
        tensors: Its tensors, as the reader of the library has them.

    Raises:
        CheckpointError: A field is missing, wrong or not read.
    """
    with explain_imports():
        from gguf import dequantize

    def read(tensor: Any) -> Tensor:
        return torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.float32)

    name = fields["general.architecture"]
    # in config.json these are options of RoPE, not tensors
    divisors = {
        GGUF_DIVISORS[tensor.name]: read(tensor).flatten().tolist()
        for tensor in tensors
        if tensor.name in GGUF_DIVISORS
    }
    config = describe_gguf(fields, divisors, len(tensors))
    names = list_tensor_names(name, config["num_hidden_layers"])
    weights: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name not in GGUF_DIVISORS:
            layer, _, part = tensor.name.rpartition(".")
            full_name = f"{names.get(layer, layer)}.{part}"
            if full_name in weights:
                raise CheckpointError(
                    f"the tensor {full_name} is there twice, the second as {tensor.name}"
                )
            weights[full_name] = ARCHITECTURES[name].restore(full_name, read(tensor), config)
    return config | describe_tensors(weights, config["vocab_size"]), weights


def describe_tensors(weights: Mapping[str, Tensor], tokens: int) -> dict[str, Any]:
    """Return the entries of config.json about which a GGUF file has tensors and no fields.

    Args:
        weights: The weights by their names in transformers.
        tokens: The number of tokens, which the table may exceed.
    """
    table = weights.get("model.embed_tokens.weight")
    return {
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "attention_bias": any(re.search(r"self_attn\.\w+\.bias$", name) for name in weights),
        "mlp_bias": any(re.search(r"mlp\.\w+\.bias$", name) for name in weights),
        "vocab_size": tokens if table is None or not table.dim() else len(table),
    }


def _make_reader() -> Any:
    """Return the class of readers of the library that refuses lengths beyond the end of a file."""
    with explain_imports():
        from gguf import GGUFReader

    class Reader(GGUFReader):  # type: ignore[misc]
        reads = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, *args: Any, **kwargs: Any) -> Any:
            # the library takes what is there, and goes on for as many entries as the file states
            end = int(offset) + int(count) * np.dtype(dtype).itemsize
            self.reads += 1
            if end > len(self.data) or self.reads > MAX_READS:
                raise ValueError(f"an entry ends at byte {end:,} of {len(self.data):,}")
            return super()._get(offset, dtype, count, *args, **kwargs)

    return Reader


def build_gguf_tokenizer(fields: Mapping[str, Any]) -> str | None:
    """Return the JSON of the tokenizer of a GGUF file; None for a kind that is not known here."""
    with explain_imports():
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    before = {"smollm": [pre_tokenizers.Digits(individual_digits=True)], "gpt-2": []}
    model, kind = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2" or kind not in before:
        name = escape_text(f"{model}, {kind}")
        message = f"the tokenizer ({name}) of the file is not known" if model else "no tokenizer"
        log.info("%s; the model reads only token ids", message)
        return None
    pieces, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, merges))
    steps = [*before[kind], pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    special = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(piece, normalized=False) for piece in special])
    return str(tokenizer.to_str())
