"""OLMo 2 and OLMo 3, read from published weights."""

from __future__ import annotations

from typing import Any

from zoo.formats.llama import FULL, LLAMA_BLOCK, SLIDING, LlamaFamily

OLMO_BLOCK = {
    **LLAMA_BLOCK,
    "norm1": "post_attention_layernorm",
    "norm2": "post_feedforward_layernorm",
}


class Olmo2Family(LlamaFamily):
    """OLMo 2: norms of the branches' outputs, and of the queries and keys of all heads."""

    block_names = OLMO_BLOCK

    def describe_block(self) -> dict[str, Any]:
        """Return the options of the blocks."""
        block = super().describe_block()
        eps = self.config.get("rms_norm_eps", 1e-5)
        block |= {"norm_position": "branch", "norm_eps": eps}
        if self.has_norms:
            block |= {"qk_norm_joint": True, "qk_norm_eps": eps}
        return block

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
