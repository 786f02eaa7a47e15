"""DINOv3, read from published weights.

The first quarter of its channels turns with the row, in zoo with the column.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zoo.data.spec import DataSpec
from zoo.formats.native import join_halves
from zoo.formats.published import PublishedFamily, mlp_ratio


class DINOv3Family(PublishedFamily):
    """DINOv3, which has no classes: the head starts at 0."""

    dropped = r"embeddings\.mask_token"
    ignored = frozenset(
        {
            "apply_layernorm",
            "layerscale_value",
            "out_features",
            "out_indices",
            "stage_names",
            "reshape_hidden_states",
            "pos_embed_jitter",
            "pos_embed_rescale",
            "pos_embed_shift",
        }
    )

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        config = self.config
        self.require(hidden_act="gelu", use_gated_mlp=False, is_causal=False, mlp_bias=True)
        self.require(query_bias=True, value_bias=True, proj_bias=True)
        self.require_squares()
        dim = config["hidden_size"]
        block = {
            "norm_eps": config.get("layer_norm_eps", 1e-5),
            "mlp_ratio": mlp_ratio(config["intermediate_size"], dim),
            "key_bias": bool(config.get("key_bias", False)),
            "layer_scale": 1.0,
        }
        rope = {"name": "rope_axial", "base": config["rope_theta"]}
        rope |= {"unit": "turn", "coordinates": "symmetric"}
        model = {
            "name": "vit",
            "dim": dim,
            "depth": config["num_hidden_layers"],
            "heads": config["num_attention_heads"],
            "patch_size": config["patch_size"],
            "encoding": [rope],
            "pool": "class",
            "registers": config["num_register_tokens"],
            "block": block,
        }
        sections, spec = self.describe_images(config["num_channels"], config["image_size"], 1000)
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool, depth = self.pool, self.config["num_hidden_layers"]
        names = {"patch_embed": "embeddings.patch_embeddings", "norm": "norm"}
        block = {name: name for name in ("norm1", "norm2", "mlp.up_proj", "mlp.down_proj")}
        block |= {f"attn.{letter}_proj": f"attention.{letter}_proj" for letter in "qkvo"}
        pool.take_layers(names, block, "layer.{}.", depth)
        for number in range(depth):
            for scale, branch in (("layer_scale1", "attn"), ("layer_scale2", "mlp")):
                target = f"blocks.{number}.{branch}_branch.scale"
                pool.take(f"layer.{number}.{scale}.lambda1", target)
        pool.take("embeddings.cls_token", "cls_token")
        if self.config["num_register_tokens"]:
            pool.take("embeddings.register_tokens", "register_tokens")
        else:
            pool.drop(r"embeddings\.register_tokens")

        def order(weight: Tensor) -> Tensor:
            """Put pairs that turn with the column before those that turn with the row."""
            joined = join_halves(weight, heads).unflatten(0, (heads, 2, -1))
            return joined.flip(1).reshape(weight.shape)

        pool.change(r".*\.[qk]_proj\..*", order)
