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
    auto, has_logits = "AutoModel", False
    required = (
        "num_hidden_layers",
        "num_attention_heads",
        "image_size",
        "num_register_tokens",
        "rope_theta",
    )
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
        patches = "embeddings.patch_embeddings.weight"
        dim = self.read_size("hidden_size", patches, 0)
        channels = self.read_size("num_channels", patches, 1)
        patch = self.read_size("patch_size", patches, 2)
        hidden = self.read_size("intermediate_size", "layer.0.mlp.up_proj.weight", 0)
        self.registers = 0
        if "embeddings.register_tokens" in self.pool.rest or config["num_register_tokens"]:
            self.registers = self.read_size("num_register_tokens", "embeddings.register_tokens", 1)
        self.has_key_bias = self.read_switch(
            "key_bias", r"layer\.\d+\.attention\.k_proj\.bias", False
        )
        block = {
            "norm_eps": config.get("layer_norm_eps", 1e-5),
            "mlp_ratio": mlp_ratio(hidden, dim),
            "key_bias": self.has_key_bias,
            # an initial value, which the weights of the file replace
            "layer_scale": 1.0,
        }
        # DINOv3 turns by fractions of 2 pi, at coordinates from -1 to 1 whatever the image size
        rope = {"name": "rope_axial", "base": config["rope_theta"]}
        rope |= {"unit": "turn", "coordinates": "symmetric"}
        model = {
            "name": "vit",
            "dim": dim,
            "depth": config["num_hidden_layers"],
            "heads": config["num_attention_heads"],
            "patch_size": patch,
            "encoding": [rope],
            "pool": "class",
            "registers": self.registers,
            "block": block,
        }
        sections, spec = self.describe_images(channels, config["image_size"], 1000)
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool, depth = self.pool, self.config["num_hidden_layers"]
        names = {"patch_embed": "embeddings.patch_embeddings", "norm": "norm"}
        block = {name: name for name in ("norm1", "norm2", "mlp.up_proj", "mlp.down_proj")}
        block |= {f"attn.{letter}_proj": f"attention.{letter}_proj" for letter in "qkvo"}
        biased = {*names, *block} - ({"attn.k_proj"} if not self.has_key_bias else set())
        pool.take_layers(names, [block] * depth, "layer.{}.", biased)
        for number in range(depth):
            for scale, branch in (("layer_scale1", "attn"), ("layer_scale2", "mlp")):
                target = f"blocks.{number}.{branch}_branch.scale"
                pool.take(f"layer.{number}.{scale}.lambda1", target)
        pool.take("embeddings.cls_token", "cls_token")
        if self.registers:
            pool.take("embeddings.register_tokens", "register_tokens")
        else:
            # there is one of no rows
            pool.drop(r"embeddings\.register_tokens")

        def order(weight: Tensor) -> Tensor:
            """Put pairs that turn with the column before those that turn with the row."""
            joined = join_halves(weight, heads).unflatten(0, (heads, 2, -1))
            return joined.flip(1).reshape(weight.shape)

        pool.change(r".*\.[qk]_proj\..*", order)
