"""Cohere 2 (Command R7B, Command A): read from published weights, and written for transformers."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from zoo.data.spec import DataSpec
from zoo.formats.config_entries import EntryError
from zoo.formats.decoder_target import (
    BLOCK_NAMES,
    FULL,
    SLIDING,
    DecoderTarget,
    TargetShape,
    write_decoder,
)
from zoo.formats.export import ExportSource
from zoo.formats.llama import DecoderFamily, describe_windows
from zoo.formats.native import DECODER
from zoo.formats.targets import ExportOptions

COHERE_BLOCK = {name: published for name, published in BLOCK_NAMES.items() if name != "norm2"}


class Cohere2Family(DecoderFamily):
    """Cohere 2: parallel branches, layer norms without biases, no encoding in full layers.

    Its logits are scaled, which the final norm does here.
    """

    block_names = COHERE_BLOCK
    joins_halves = False
    ties = True
    ignored = frozenset({"layer_switch"})

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        # former entries, of which transformers knows one value
        self.require(
            use_parallel_block=True,
            use_gated_activation=True,
            use_embedding_sharing=True,
            use_parallel_embedding=True,
            use_qk_norm=False,
            rotary_pct=1.0,
            position_embedding_type="rope_gptj",
            order_of_interleaved_layers="local_attn_first",
        )
        self.scale = float(self.config.get("logit_scale", 0.0625))
        return super().describe()

    @cached_property
    def head_dim(self) -> int:
        """The number of channels of a head, which only the width of the model decides."""
        width, heads = super().head_dim, self.config["num_attention_heads"]
        if width * heads != self.dim:
            message = f"its heads have {width} channels, expected {self.dim} / {heads}"
            raise EntryError(f"head_dim: {message}")
        return width

    def describe_block(self) -> dict[str, Any]:
        """Return the options of the blocks."""
        return {
            **super().describe_block(),
            "norm": "layer",
            "norm_bias": False,
            "norm_eps": self.config.get("layer_norm_eps", 1e-5),
            "norm_position": "parallel",
        }

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        depth, step = self.config["num_hidden_layers"], self.read_window_step(4)
        return self.read_kinds([SLIDING if (i + 1) % step else FULL for i in range(depth)])

    def describe_encoding(self, kind: str) -> dict[str, Any]:
        """Return the encoding of layers of a type."""
        rope = super().describe_encoding(kind)
        return rope if kind == SLIDING else {"name": "none"}

    def rename(self, heads: int) -> None:
        super().rename(heads)
        self.pool.change(r"norm\.weight", lambda weight: weight.float() * self.scale)


def describe_cohere2(shape: TargetShape) -> dict[str, Any]:
    """Return the entries that Cohere 2 has in addition to a Llama."""
    eps = shape.options["block"].norm_eps
    return {**describe_windows(shape), "layer_norm_eps": eps, "logit_scale": 1.0}


COHERE2 = DecoderTarget(
    "cohere2",
    "Cohere2ForCausalLM",
    {
        **DECODER,
        "model.block.qk_norm": False,
        "model.block.norm": "layer",
        "model.block.norm_bias": False,
        "model.block.norm_position": "parallel",
        "model.block.mlp_bias": False,
    },
    encodings=("rope", "none"),
    rotates_windows=True,
    head_width="quotient",
    joins_halves=False,
    block_names=COHERE_BLOCK,
    entries=describe_cohere2,
)


def write_cohere2(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers reads as a Cohere 2.

    Raises:
        RecipeError: The recipe is none; every option that stands in the way is named.
    """
    write_decoder(COHERE2, source, folder)
