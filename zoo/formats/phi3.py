"""Phi-3, read from published weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoo.data.spec import DataSpec
from zoo.formats.decoder_target import FULL, SLIDING
from zoo.formats.llama import LlamaFamily
from zoo.integrations.rope_parameters import ENTRIES, LENGTH_ENTRY, read_kind

ORIGINAL_LENGTH = 4096
"""L where a configuration does not say it."""


class Phi3Family(LlamaFamily):
    """Phi-3: a Llama that stores projections together, and may rotate a part of each head."""

    follows_fraction = True
    ignored = frozenset({LENGTH_ENTRY})

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config = self.config
        heads = config["num_attention_heads"]
        width = self.head_dim
        kv_size = width * (config.get("num_key_value_heads") or heads)
        gate_size = config["intermediate_size"]
        for number in range(config["num_hidden_layers"]):
            start = f"model.layers.{number}."
            qkv = {"q_proj": heads * width, "k_proj": kv_size, "v_proj": kv_size}
            self._split(start + "self_attn.", "qkv_proj", qkv)
            self._split(
                start + "mlp.", "gate_up_proj", {"gate_proj": gate_size, "up_proj": gate_size}
            )
        return super().describe()

    def _split(self, start: str, name: str, sizes: Mapping[str, int]) -> None:
        """Take a weight apart. One of another size stays, and is reported with what is missing."""
        rest = self.pool.rest
        packed = rest.get(f"{start}{name}.weight")
        if packed is None or len(packed) != sum(sizes.values()):
            return
        del rest[f"{start}{name}.weight"]
        for part, weight in zip(sizes, packed.split([*sizes.values()]), strict=True):
            rest[f"{start}{part}.weight"] = weight

    def read_window(self) -> int | None:
        """Return the window of all layers; None if they have none."""
        window = self.config.get("sliding_window")
        return int(window) if window else None

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        return [SLIDING if self.read_window() else FULL] * self.config["num_hidden_layers"]

    def list_rope(self) -> dict[str, Any]:
        """Return the rotary entries of the configuration, as transformers standardises them."""
        found = super().list_rope()
        # yarn is a former name here.
        if read_kind(found) == "yarn":
            found["rope_type"] = "longrope"
        if "original" in ENTRIES.get(read_kind(found), {}):
            found[LENGTH_ENTRY] = self.config.get(LENGTH_ENTRY, ORIGINAL_LENGTH)
        return found
