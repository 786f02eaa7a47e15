"""SmolLM3: read from published weights, and written for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.formats.config_entries import EntryError
from zoo.formats.decoder_target import FULL, SLIDING, DecoderTarget, write_decoder
from zoo.formats.export import ExportSource
from zoo.formats.llama import DecoderFamily, LlamaFamily, describe_windows
from zoo.formats.native import DECODER
from zoo.formats.targets import ExportOptions


class SmolLM3Family(DecoderFamily):
    """SmolLM3: a Llama with no encoding in every fourth layer."""

    ties = True
    mlp_biased = LlamaFamily.mlp_biased
    default_base = 2_000_000.0
    ignored = frozenset({"max_window_layers"})

    def list_rotating(self) -> list[bool]:
        """Return for each layer whether it has RoPE."""
        depth, step = (
            self.config["num_hidden_layers"],
            self.config.get("no_rope_layer_interval", 4),
        )
        # 1 marks layers that rotate, whatever the name says.
        listed = self.config.get("no_rope_layers")
        marks = [int((i + 1) % step != 0) for i in range(depth)] if listed is None else listed
        if len(marks) < depth:
            message = f"no_rope_layers names {len(marks)} layers of {depth}"
            raise EntryError(message)
        return [bool(mark) for mark in marks[:depth]]

    def read_window(self) -> int | None:
        """Return the number of tokens in the window of layers that have one."""
        window: int | None = self.config.get("sliding_window")
        return window

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        slides = bool(self.config.get("use_sliding_window", False)) and bool(self.read_window())
        default = [SLIDING if slides and not rotates else FULL for rotates in self.list_rotating()]
        kinds = self.read_kinds(default)
        self.require_window_switch(kinds)
        return kinds

    def list_layers(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the type and the options of each layer; see `Layers`."""
        layers = []
        both = zip(super().list_layers(), self.list_rotating(), strict=True)
        for (name, options), rotates in both:
            if rotates:
                layers.append((name, options))
            else:
                layers.append((f"{name}_none", {**options, "encoding": [{"name": "none"}]}))
        return layers


SMOLLM3 = DecoderTarget(
    "smollm3",
    "SmolLM3ForCausalLM",
    {**DECODER, "model.block.qk_norm": False},
    encodings=("rope", "none"),
    entries=lambda shape: {
        **describe_windows(shape),
        "use_sliding_window": shape.window is not None,
        "no_rope_layers": [int(layer.rope is not None) for layer in shape.layers],
        "mlp_bias": shape.options["block"].mlp_bias,
    },
)


def write_smollm3(source: ExportSource, options: ExportOptions, folder: Path) -> None:
    """Write a folder that transformers reads as a SmolLM3.

    Raises:
        RecipeError: The recipe is none; every option that stands in the way is named.
    """
    write_decoder(SMOLLM3, source, folder)
