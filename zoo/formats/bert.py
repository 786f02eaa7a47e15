"""BERT, read from published weights."""

from __future__ import annotations

from typing import Any

import torch

from zoo.data.spec import DataSpec
from zoo.formats.published import PublishedFamily, mlp_ratio


class BertFamily(PublishedFamily):
    """BERT: of its kinds of tokens the first, which is added to positions; without its heads."""

    prefix = "bert."
    table = "bert.embeddings.word_embeddings.weight"
    auto, has_logits = "AutoModel", False
    dropped = r"cls\..*|classifier\..*|bert\.pooler\..*|bert\.embeddings\.position_ids"
    required = ("num_hidden_layers", "num_attention_heads")
    ignored = frozenset(
        {
            "tie_word_embeddings",
            "directionality",
            "pooler_fc_size",
            "pooler_num_fc_layers",
            "pooler_num_attention_heads",
            "pooler_size_per_head",
            "pooler_type",
        }
    )

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config = self.config
        self.require(
            hidden_act="gelu", position_embedding_type="absolute", is_decoder=False, is_causal=False
        )
        dim = self.read_size("hidden_size", self.table, 1)
        hidden = self.read_size(
            "intermediate_size", "bert.encoder.layer.0.intermediate.dense.weight", 0
        )
        start = "bert.embeddings."
        length = self.read_size("max_position_embeddings", f"{start}position_embeddings.weight", 0)
        self.read_size("type_vocab_size", f"{start}token_type_embeddings.weight", 0)
        block = {
            "norm_position": "post",
            "norm_eps": config.get("layer_norm_eps", 1e-12),
            "embed_norm": True,
            "mlp_ratio": mlp_ratio(hidden, dim),
            "key_bias": True,
        }
        model = {
            "name": "encoder",
            "dim": dim,
            "depth": config["num_hidden_layers"],
            "heads": config["num_attention_heads"],
            "encoding": ["learned"],
            "block": block,
        }
        sections, spec = self.describe_text(length, "masked_lm")
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool = self.pool
        model = {"embed_tokens": "bert.embeddings.word_embeddings"}
        model["embed_norm"] = "bert.embeddings.LayerNorm"
        block = {
            "attn.q_proj": "attention.self.query",
            "attn.k_proj": "attention.self.key",
            "attn.v_proj": "attention.self.value",
            "attn.o_proj": "attention.output.dense",
            "norm1": "attention.output.LayerNorm",
            "mlp.up_proj": "intermediate.dense",
            "mlp.down_proj": "output.dense",
            "norm2": "output.LayerNorm",
        }
        depth = self.config["num_hidden_layers"]
        biased = {"embed_norm", *block}
        pool.take_layers(model, [block] * depth, "bert.encoder.layer.{}.", biased)
        kinds = "bert.embeddings.token_type_embeddings.weight"
        pool.take(kinds, "kinds")
        pool.take("bert.embeddings.position_embeddings.weight", "encoding.learned.table")
        # a model of zoo has one kind of segment, whose embedding can be part of that of positions
        segment = pool.taken.pop("kinds", torch.zeros(1, 1))[0]
        pool.change(r"encoding\.learned\.table", lambda table: table + segment)
        self.fit_vocabulary("embed_tokens.weight")
        mask = self._find_mask()
        # the mask token of zoo is the one after the vocabulary
        pool.change(
            r"embed_tokens\.weight", lambda table: torch.cat([table, table[mask : mask + 1]])
        )

    def _find_mask(self) -> int:
        """Return the token whose row is that of the mask token: [MASK], else the last."""
        tokenizer = getattr(self.vocabulary, "tokenizer", None)
        number = None if tokenizer is None else tokenizer.token_to_id("[MASK]")
        assert self.vocabulary is not None
        return len(self.vocabulary) - 1 if number is None else int(number)
