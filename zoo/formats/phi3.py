"""Phi-3, read from published weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.data.spec import DataSpec
from zoo.formats.decoder_target import FULL, SLIDING
from zoo.formats.llama import DecoderFamily
from zoo.integrations.rope_parameters import ENTRIES, LENGTH_ENTRY, read_kind

ORIGINAL_LENGTH = 4096
"""L where a configuration does not say it."""


class Phi3Family(DecoderFamily):
    """Phi-3: a Llama that stores projections together, and may rotate a part of each head."""

    follows_fraction = True
    biased = ()
    norm_eps = 1e-5
    ignored = frozenset({LENGTH_ENTRY})

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        pool, depth = self.pool, self.config["num_hidden_layers"]
        for number in range(depth if isinstance(depth, int) else 0):
            start = f"model.layers.{number}."
            # as wide as what the heads return
            width = pool.shape(f"{start}self_attn.o_proj.weight", 2)[1]
            self._split(f"{start}self_attn.", "qkv_proj", ("q_proj", "k_proj", "v_proj"), width)
            self._split(f"{start}mlp.", "gate_up_proj", ("gate_proj", "up_proj"))
        return super().describe()

    def _split(self, start: str, name: str, parts: Sequence[str], first: int = 0) -> None:
        """Take a weight apart: the first part has a number of rows, the others have equal ones.

        A weight that cannot be cut stays, and is reported with what is missing.
        """
        rest = self.pool.rest
        packed = rest.get(f"{start}{name}.weight")
        count = len(parts) - 1 if first else len(parts)
        if packed is None or len(packed) <= first or (len(packed) - first) % count:
            return
        del rest[f"{start}{name}.weight"]
        size = (len(packed) - first) // count
        sizes = [*([first] if first else []), *[size] * count]
        for part, weight in zip(parts, packed.split(sizes), strict=True):
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
