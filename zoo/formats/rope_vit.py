"""RoPE-ViT, read from published weights.

RoPE-ViT (Heo et al. 2024, arXiv:2403.13298) has timm's names. With D width, H heads, K = D / H, p
patch size, C channels, F hidden size, N = h w training patches, row by row:

    patch_embed.proj.weight, .bias      [D, C, p, p], [D]
    cls_token                           [1, 1, D]         not rotated, no row of pos_embed
    pos_embed                           [1, N, D]         with APE only; bicubic for other grids
    rope.freqs                          [2, depth, H, K/2]    RoPE-Mixed only, see below
    blocks.i.attn.qkv.weight, .bias     [3D, D], [3D]     queries, keys, values; keys have a bias
    blocks.i.gamma_1, .gamma_2          [D], [D]          layer scale of attention and of the MLP
    head.weight, .bias                  [classes, D], [classes]    applied to the normed CLS token

In layer l and head h, channels (2j, 2j + 1) of the query and the key at row r and column c, whole
numbers from 0, are rotated by c freqs[0, l, h, j] + r freqs[1, l, h, j]: the column comes first.
Axial models have no such key; half of their pairs are rotated by c 100^(-4j/K), the others by
r 100^(-4j/K). The authors' own files (github.com/naver-ai/rope-vit) have `freqs` [2, depth, H K/2]
in place of `rope.freqs`, patch coordinates, which are not needed, and all under the key `model`.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from zoo.data.spec import DataSpec
from zoo.formats.published import PublishedFamily, mlp_ratio, split_qkv
from zoo.formats.vit import TIMM_BLOCK, TIMM_MODEL


class RoPEViTFamily(PublishedFamily):
    """RoPE-ViT, whose sizes its weights tell."""

    def describe(self) -> tuple[dict[str, Any], DataSpec]:
        pool = self.pool
        if "freqs" in pool.rest and "rope.freqs" not in pool.rest:
            pool.rename("freqs", "rope.freqs")
        # coordinates of patches
        pool.drop("freqs_t_[xy]")
        dim, channels, patch, _ = pool.shape("patch_embed.proj.weight", 4)
        pool.shape("cls_token", 3)
        classes = pool.shape("head.weight", 2)[0]
        hidden = pool.shape("blocks.0.mlp.fc1.weight", 2)[0]
        numbers = [name.split(".")[1] for name in pool.rest if name.startswith("blocks.")]
        self.depth = 1 + max(int(number) for number in numbers if number.isdecimal())
        frequencies, table = pool.rest.get("rope.freqs"), pool.rest.get("pos_embed")
        is_told = frequencies is not None and frequencies.dim() == 4
        # published models have heads of 64 channels
        heads = frequencies.shape[2] if frequencies is not None and is_told else max(dim // 64, 1)
        encodings = ["rope_axial" if frequencies is None else "rope_mixed"]
        size = 224
        if table is not None:
            encodings, size = ["learned", *encodings], isqrt(table.shape[-2]) * patch
        block = {"mlp_ratio": mlp_ratio(hidden, dim), "key_bias": True, "layer_scale": 1e-5}
        model = {
            "name": "vit",
            "dim": dim,
            "depth": self.depth,
            "heads": heads,
            "patch_size": patch,
            "encoding": encodings,
            "pool": "class",
            "block": block,
        }
        sections, spec = self.describe_images(channels, size, classes)
        return {"model": model, **sections}, spec

    def rename(self, heads: int) -> None:
        pool, depth = self.pool, self.depth
        pool.take_layers(TIMM_MODEL, [TIMM_BLOCK] * depth, "blocks.{}.")
        for number in range(depth):
            for scale, branch in (("gamma_1", "attn"), ("gamma_2", "mlp")):
                pool.take(f"blocks.{number}.{scale}", f"blocks.{number}.{branch}_branch.scale")
        split_qkv(pool)
        pool.take("cls_token", "cls_token")
        if "pos_embed" in pool.rest:
            pool.take("pos_embed", "encoding.learned.table", lambda table: table[0])
        if "rope.freqs" in pool.rest:
            # zoo's axes are (row, column), [2, depth, H, K/2]
            pool.take(
                "rope.freqs",
                "rope.freqs",
                lambda table: table.reshape(2, depth, heads, -1).flip(0).transpose(0, 1),
            )
            if "rope.freqs" in pool.taken:
                tables = enumerate(pool.taken["rope.freqs"])
                names = {
                    f"encoding.rope_mixed.{number}.frequencies": table for number, table in tables
                }
                pool.split("rope.freqs", names)
