"""GPT-2, read from published weights."""

from __future__ import annotations

from typing import Any

from zoo.data.spec import DataSpec
from zoo.formats.published import PublishedFamily, mlp_ratio, split_qkv


class GPT2Family(PublishedFamily):
    """GPT-2, whose projections are transposed and hold queries, keys and values in one."""

    prefix = "transformer."
    table, ties = "transformer.wte.weight", True
    required = ("n_layer", "n_head")
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
        )
        self.tied = self.read_tied()
        dim = self.read_size("n_embd", self.table, 1)
        hidden = self.read_size("n_inner", "transformer.h.0.mlp.c_fc.weight", 1)
        length = self.read_size("n_positions", "transformer.wpe.weight", 0)
        block = {
            "norm_eps": config.get("layer_norm_epsilon", 1e-5),
            "mlp": "gelu_tanh",
            "mlp_ratio": mlp_ratio(hidden, dim),
            "key_bias": True,
        }
        model = {
            "name": "decoder",
            "dim": dim,
            "depth": config["n_layer"],
            "heads": config["n_head"],
            "encoding": ["learned"],
            "block": block,
            "tie_embeddings": self.tied,
        }
        sections, spec = self.describe_text(length, "causal_lm")
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool = self.pool
        # the causal mask, and a number that stands for minus infinity
        pool.drop(r".*\.attn\.(masked_)?bias")
        model = {"embed_tokens": "transformer.wte", "norm": "transformer.ln_f"}
        model |= {} if self.tied else {"lm_head": "lm_head"}
        block = {
            "norm1": "ln_1",
            "attn.qkv": "attn.c_attn",
            "attn.o_proj": "attn.c_proj",
            "norm2": "ln_2",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        }
        depth = self.config["n_layer"]
        pool.take_layers(model, [block] * depth, "transformer.h.{}.", biased={"norm", *block})
        pool.take("transformer.wpe.weight", "encoding.learned.table")
        pool.change(r"blocks\.\d+\.(attn|mlp)\..*\.weight", lambda weight: weight.mT)
        split_qkv(pool)
        self.fit_vocabulary("embed_tokens.weight")
        self.fit_vocabulary("lm_head.weight")
