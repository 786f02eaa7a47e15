"""GPT-2, read from published weights."""

from __future__ import annotations

from typing import Any

from zoo.data.spec import DataSpec
from zoo.formats.published import PublishedFamily, mlp_ratio, split_qkv


class GPT2Family(PublishedFamily):
    """GPT-2, whose projections are transposed and hold queries, keys and values in one."""

    prefix = "transformer."
    ignored = frozenset(
        {
            "n_ctx",
            "reorder_and_upcast_attn",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        }
    )

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config = self.config
        self.require(
            activation_function="gelu_new",
            scale_attn_weights=True,
            scale_attn_by_inverse_layer_idx=False,
            is_causal=True,
            tie_word_embeddings=True,
        )
        block = {
            "norm_eps": config.get("layer_norm_epsilon", 1e-5),
            "mlp": "gelu_tanh",
            "mlp_ratio": mlp_ratio(config.get("n_inner") or 4 * config["n_embd"], config["n_embd"]),
            "key_bias": True,
        }
        model = {
            "name": "decoder",
            "dim": config["n_embd"],
            "depth": config["n_layer"],
            "heads": config["n_head"],
            "encoding": ["learned"],
            "block": block,
        }
        sections, spec = self.describe_text(config["n_positions"], "causal_lm")
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool = self.pool
        pool.drop(r"lm_head\.weight|.*\.attn\.(masked_)?bias")
        model = {"embed_tokens": "transformer.wte", "norm": "transformer.ln_f"}
        block = {
            "norm1": "ln_1",
            "attn.qkv": "attn.c_attn",
            "attn.o_proj": "attn.c_proj",
            "norm2": "ln_2",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        }
        pool.take_layers(model, block, "transformer.h.{}.", self.config["n_layer"])
        pool.take("transformer.wpe.weight", "encoding.learned.table")
        pool.change(r"blocks\.\d+\.(attn|mlp)\..*\.weight", lambda weight: weight.mT)
        split_qkv(pool)
        self.fit_vocabulary("embed_tokens.weight")
