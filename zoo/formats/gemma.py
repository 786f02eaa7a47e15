"""Gemma 2 and Gemma 3 (text): read from published weights, and written for transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zoo.data.spec import DataSpec
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

GEMMA_BLOCK = {
    **BLOCK_NAMES,
    "out_norm1": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "out_norm2": "post_feedforward_layernorm",
}


class Gemma2Family(DecoderFamily):
    """Gemma 2: norms on both sides of a branch, soft caps, every second layer with a window.

    Its norms multiply by 1 + weight, and its queries are divided by a root of its own.
    """

    block_names = GEMMA_BLOCK
    activation = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
    mlp = "geglu_tanh"
    ties = True
    window_step = 2
    """Every layer of this number has no window, where the configuration names no types."""

    softcaps: tuple[float | None, float | None] = (50.0, 30.0)
    """The bounds of scores and of logits where the configuration has none, as in transformers."""

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        self.require(use_bidirectional_attention=False)
        sections, spec = super().describe()
        model = sections["model"]
        model["scale_embeddings"] = True
        keys = ("attn_logit_softcapping", "final_logit_softcapping")
        scores, logits = (
            self.config.get(key, default) for key, default in zip(keys, self.softcaps, strict=True)
        )
        model |= {"softcap": scores, "logit_softcap": logits}
        self.scale = (self.head_dim / self.config.get("query_pre_attn_scalar", 256)) ** 0.5
        return sections, spec

    def describe_block(self) -> dict[str, Any]:
        """Return the options of the blocks."""
        return {**super().describe_block(), "norm_position": "both"}

    def read_window(self) -> int | None:
        """Return the number of tokens in the window of layers that have one."""
        window = super().read_window()
        self.require(sliding_window_size=window)
        return window

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        depth, step = self.config["num_hidden_layers"], self.read_step()
        return self.read_kinds([SLIDING if (i + 1) % step else FULL for i in range(depth)])

    def read_step(self) -> int:
        """Return which layers have no window: every layer of this number."""
        return self.window_step

    def rename(self, heads: int) -> None:
        super().rename(heads)
        self.pool.change(r".*norm\d?\.weight", lambda weight: weight.float() + 1)
        scaled = "q_norm" if self.has_head_norms else "q_proj"
        self.pool.change(rf".*\.{scaled}\..*", lambda weight: weight.float() * self.scale)


class Gemma3Family(Gemma2Family):
    """The text part of Gemma 3: norms of heads in place of soft caps, two bases of rotations."""

    has_head_norms = True
    window_step = 6
    softcaps = (None, None)
    bases = MappingProxyType({FULL: 1_000_000.0, SLIDING: 10_000.0})

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        # The code of transformers does not follow it.
        self.require(attn_logit_softcapping=None)
        return super().describe()

    def read_step(self) -> int:
        """Return which layers have no window: every layer of this number."""
        return self.read_window_step(self.window_step)

    def describe_encoding(self, kind: str) -> dict[str, Any]:
        """Return the encoding of layers of a type."""
        entries = {FULL: "rope_theta", SLIDING: "rope_local_base_freq"}
        return self.describe_rope(
            self.list_rope_of(kind, self.config.get(entries[kind], self.bases[kind]))
        )


GEMMA: Mapping[str, object] = {
    **{key: value for key, value in DECODER.items() if key != "model.logit_softcap"},
    "model.scale_embeddings": True,
    "model.block.norm_position": "both",
    "model.block.mlp": "geglu_tanh",
    "model.block.mlp_bias": False,
}


def describe_gemma(shape: TargetShape) -> dict[str, Any]:
    """Return the entries that Gemma has in addition to a Llama."""
    return {
        **describe_windows(shape),
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": shape.head_dim,
        "attn_logit_softcapping": shape.options["softcap"],
        "final_logit_softcapping": shape.options["logit_softcap"],
    }


GEMMA2 = DecoderTarget(
    "gemma2",
    "Gemma2ForCausalLM",
    {**GEMMA, "model.block.qk_norm": False},
    free=("softcap",),
    head_width="divides",
    shift=1.0,
    block_names=GEMMA_BLOCK,
    entries=describe_gemma,
)
GEMMA3 = DecoderTarget(
    "gemma3",
    "Gemma3ForCausalLM",
    {**GEMMA, "model.block.qk_norm": True, "model.block.qk_norm_joint": False},
    has_ropes=True,
    has_head_norms=True,
    head_width="divides",
    shift=1.0,
    block_names=GEMMA_BLOCK,
    model_type="gemma3_text",
    entries=lambda shape: {**describe_gemma(shape), "rope_parameters": {**shape.ropes}},
)


def write_gemma2(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers reads as a Gemma 2.

    Raises:
        RecipeError: The recipe is none; every option that stands in the way is named.
    """
    write_decoder(GEMMA2, source, folder)


def write_gemma3(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers reads as the text part of a Gemma 3.

    Raises:
        RecipeError: The recipe is none; every option that stands in the way is named.
    """
    write_decoder(GEMMA3, source, folder)
