"""OLMo 2 and OLMo 3: read from published weights, and written for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.formats.decoder_target import BLOCK_NAMES, FULL, SLIDING, DecoderTarget, write_decoder
from zoo.formats.export import ExportSource
from zoo.formats.llama import DecoderFamily, describe_windows
from zoo.formats.native import DECODER
from zoo.formats.targets import ExportOptions

OLMO_BLOCK = {
    **BLOCK_NAMES,
    "norm1": "post_attention_layernorm",
    "norm2": "post_feedforward_layernorm",
}


class Olmo2Family(DecoderFamily):
    """OLMo 2: norms of the branches' outputs, and of the queries and keys of all heads."""

    block_names = OLMO_BLOCK
    has_head_norms = True
    norm_eps = 1e-5

    def describe_block(self) -> dict[str, Any]:
        """Return the options of the blocks."""
        return {**super().describe_block(), "norm_position": "branch", "qk_norm_joint": True}

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        return [FULL] * self.config["num_hidden_layers"]


class Olmo3Family(Olmo2Family):
    """OLMo 3: three layers with a window, then one without, and a rotation for each kind."""

    default_base = 500_000.0

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        depth = self.config["num_hidden_layers"]
        return self.read_kinds([SLIDING if (i + 1) % 4 else FULL for i in range(depth)])

    def describe_encoding(self, kind: str) -> dict[str, Any]:
        """Return the encoding of layers of a type."""
        base = self.config.get("rope_theta")
        # In older files it is that of full layers, as transformers reads them.
        return self.describe_rope(self.list_rope_of(kind, base if kind == FULL else None))


OLMO3 = DecoderTarget(
    "olmo3",
    "Olmo3ForCausalLM",
    {
        **DECODER,
        "model.block.norm_position": "branch",
        "model.block.qk_norm": True,
        "model.block.qk_norm_joint": True,
        "model.block.mlp_bias": False,
    },
    has_ropes=True,
    has_head_norms=True,
    block_names=OLMO_BLOCK,
    entries=lambda shape: {**describe_windows(shape), "rope_parameters": {**shape.ropes}},
)


def write_olmo3(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers reads as an OLMo 3.

    Raises:
        RecipeError: The recipe is none; every option that stands in the way is named.
    """
    write_decoder(OLMO3, source, folder)
