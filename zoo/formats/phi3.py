"""Phi-3, read from published weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.data.spec import DataSpec
from zoo.errors import CheckpointError
from zoo.formats.decoder_target import FULL, SLIDING
from zoo.formats.llama import DecoderFamily
from zoo.integrations.rope_parameters import ENTRIES, LENGTH_ENTRY, read_kind
from zoo.suggestions import join_words

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
        for number in range(depth):
            start = f"model.layers.{number}."
            # as wide as what the heads return
            width = pool.shape(f"{start}self_attn.o_proj.weight", 2)[1]
            self._split(f"{start}self_attn.", "qkv_proj", ("q_proj", "k_proj", "v_proj"), width)
            self._split(f"{start}mlp.", "gate_up_proj", ("gate_proj", "up_proj"))
        return super().describe()

    def _split(self, start: str, name: str, parts: Sequence[str], leading_rows: int = 0) -> None:
        """Take a weight apart: the first part has a number of rows, the others have equal ones.

        Raises:
            CheckpointError: There is no such weight, or it cannot be cut.
        """
        rows, count = (
            self.pool.shape(f"{start}{name}.weight", 2)[0],
            len(parts) - bool(leading_rows),
        )
        if rows <= leading_rows or (rows - leading_rows) % count:
            full_name = self.pool.name(f"{start}{name}.weight")
            raise CheckpointError(f"{full_name} has {rows} rows, which are not {join_words(parts)}")
        packed = self.pool.rest[f"{start}{name}.weight"]
        size = (len(packed) - leading_rows) // count
        sizes = [*([leading_rows] if leading_rows else []), *[size] * count]
        names = [f"{start}{part}.weight" for part in parts]
        weights = dict(zip(names, packed.split(sizes), strict=True))
        self.pool.split_rest(f"{start}{name}.weight", weights)

    def read_window(self) -> int | None:
        """Return the window of all layers; None if they have none."""
        window: int | None = self.config.get("sliding_window")
        return window

    def list_kinds(self) -> list[str]:
        """Return the type of each layer, as transformers calls it."""
        return [SLIDING if self.read_window() else FULL] * self.config["num_hidden_layers"]

    def list_rope(self) -> dict[str, Any]:
        """Return the rotary entries of the configuration, as transformers standardises them."""
        rope = super().list_rope()
        # yarn is a former name here.
        if read_kind(rope) == "yarn":
            rope["rope_type"] = "longrope"
        if "original" in ENTRIES.get(read_kind(rope), {}):
            rope[LENGTH_ENTRY] = self.config.get(LENGTH_ENTRY, ORIGINAL_LENGTH)
        return rope
