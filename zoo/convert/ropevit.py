"""Published weights of RoPE-ViT (Heo et al. 2024, arXiv:2403.13298) in timm's layout.

With D width, H heads, K = D / H, p patch size, C channels, F hidden size, N = h w training patches,
row by row:

    patch_embed.proj.weight, .bias      [D, C, p, p], [D]
    cls_token                           [1, 1, D]         not rotated, no row of pos_embed
    pos_embed                           [1, N, D]         with APE only; bicubic for other grids
    rope.freqs                          [2, depth, H, K/2]    RoPE-Mixed only, see below
    blocks.i.norm1.weight, .bias        [D], [D]          layer norms, eps 1e-6
    blocks.i.attn.qkv.weight, .bias     [3D, D], [3D]     queries, keys, values; keys have a bias
    blocks.i.attn.proj.weight, .bias    [D, D], [D]
    blocks.i.gamma_1, .gamma_2          [D], [D]          layer scale of attention and of the MLP
    blocks.i.norm2.weight, .bias        [D], [D]
    blocks.i.mlp.fc1.weight, .bias      [F, D], [F]       followed by an exact GELU
    blocks.i.mlp.fc2.weight, .bias      [D, F], [D]
    norm.weight, .bias                  [D], [D]
    head.weight, .bias                  [classes, D], [classes]    applied to the normed CLS token

In layer l and head h, channels (2j, 2j + 1) of the query and the key at row r and column c, whole
numbers from 0, are rotated by c freqs[0, l, h, j] + r freqs[1, l, h, j]: the column comes first.
Axial models have no such key; half of their pairs are rotated by c 100^(-4j/K), the others by
r 100^(-4j/K).

The authors' own layout (github.com/naver-ai/rope-vit) has `freqs` [2, depth, H K/2] in place of
`rope.freqs`, patch coordinates `freqs_t_x` and `freqs_t_y`, which are not needed, and everything
under the key `model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

SIZED_WEIGHTS = {
    "patch_embed.proj.weight": 4,
    "cls_token": 3,
    "head.weight": 2,
    "blocks.0.mlp.fc1.weight": 2,
}
"""Weights whose shapes tell the sizes of the model, and their numbers of dimensions."""
BLOCK_LAYERS = {
    "norm1": "norm1",
    "attn.proj": "attn.o_proj",
    "norm2": "norm2",
    "mlp.fc1": "mlp.up_proj",
    "mlp.fc2": "mlp.down_proj",
}
LAYER_SCALES = {"gamma_1": "attn_branch.scale", "gamma_2": "mlp_branch.scale"}
MODEL_LAYERS = {"patch_embed.proj": "patch_embed", "norm": "norm", "head": "head"}


@dataclass(frozen=True)
class Architecture:
    """The sizes of a published model, as its weights tell them."""

    dim: int
    depth: int
    patch_size: int
    channels: int
    classes: int
    hidden: int
    positions: int
    """Rows of `pos_embed`, 0 without APE."""
    mixed: bool
    """RoPE-Mixed, else axial."""
    heads: int | None
    """None where the weights do not tell: of axial models and in the authors' layout."""


def unwrap(content: Mapping[str, object]) -> Mapping[str, object]:
    """Return the weights of either layout under timm's names."""
    weights = content.get("model", content)
    weights = weights if isinstance(weights, Mapping) else content
    unused = ("freqs_t_x", "freqs_t_y")
    renamed = {"freqs": "rope.freqs"}
    return {renamed.get(key, key): value for key, value in weights.items() if key not in unused}


def read_sizes(weights: Mapping[str, Tensor]) -> Architecture:
    """Read the sizes of a model that has the keys of SIZED_WEIGHTS, each of the right rank."""
    kernel, frequencies = weights["patch_embed.proj.weight"], weights.get("rope.freqs")
    numbers = [key.split(".")[1] for key in weights if key.startswith("blocks.")]
    tells_heads = frequencies is not None and frequencies.dim() == 4
    return Architecture(
        dim=kernel.shape[0],
        depth=1 + max(int(number) for number in numbers if number.isdecimal()),
        patch_size=kernel.shape[-1],
        channels=kernel.shape[1],
        classes=weights["head.weight"].shape[0],
        hidden=weights["blocks.0.mlp.fc1.weight"].shape[0],
        positions=weights["pos_embed"].shape[-2] if "pos_embed" in weights else 0,
        mixed=frequencies is not None,
        heads=frequencies.shape[2] if frequencies is not None and tells_heads else None,
    )


def layout(sizes: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the keys and shapes of a file with these sizes."""
    dim, hidden, depth, heads = sizes.dim, sizes.hidden, sizes.depth, sizes.heads
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, dim)}
    if sizes.positions:
        shapes["pos_embed"] = (1, sizes.positions, dim)
    if sizes.mixed and heads is None:
        shapes["rope.freqs"] = (2, depth, dim // 2)
    elif sizes.mixed and heads is not None:
        shapes["rope.freqs"] = (2, depth, heads, dim // heads // 2)

    patch = (sizes.channels, sizes.patch_size, sizes.patch_size)
    layers = {"patch_embed.proj": (dim, *patch), "norm": (dim,), "head": (sizes.classes, dim)}
    for number in range(depth):
        block = f"blocks.{number}"
        shapes |= {f"{block}.{name}": (dim,) for name in LAYER_SCALES}
        layers |= {
            f"{block}.norm1": (dim,),
            f"{block}.norm2": (dim,),
            f"{block}.attn.qkv": (3 * dim, dim),
            f"{block}.attn.proj": (dim, dim),
            f"{block}.mlp.fc1": (hidden, dim),
            f"{block}.mlp.fc2": (dim, hidden),
        }
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def list_options(sizes: Architecture) -> dict[str, object]:
    """Return the recipe options that a model of these sizes needs."""
    options: dict[str, object] = {
        "model.dim": sizes.dim,
        "model.depth": sizes.depth,
        "model.patch_size": sizes.patch_size,
    }
    if sizes.heads is not None:
        options["model.heads"] = sizes.heads
    table = ["learned"] if sizes.positions else []
    return options | {
        "model.encoding": [*table, "rope_mixed" if sizes.mixed else "rope_axial"],
        "model.pool": "class",
        "model.cls_position": "none",
        "model.registers": 0,
        "model.block.norm": "layer",
        "model.block.norm_position": "pre",
        "model.block.mlp": "gelu",
        "model.block.mlp_ratio": sizes.hidden / sizes.dim,
        "model.block.key_bias": True,
        "model.block.qk_norm": False,
        "model.block.output_norm": False,
        "model.block.output_gate": False,
        "model.block.token_shift": False,
    }


def rename_weights(
    weights: Mapping[str, Tensor], sizes: Architecture, heads: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and weights of zoo's ViT for published ones that match `layout`."""
    yield "cls_token", weights["cls_token"]
    yield from _rename_layers(weights, MODEL_LAYERS)
    if sizes.positions:
        yield "encoding.learned.table", weights["pos_embed"][0]
    if sizes.mixed:
        # zoo's axes are (row, column), [2, depth, H, K/2]
        frequencies = weights["rope.freqs"].reshape(2, sizes.depth, heads, -1).flip(0)
        for number in range(sizes.depth):
            yield f"encoding.rope_mixed.{number}.frequencies", frequencies[:, number]
    for number in range(sizes.depth):
        prefix = f"blocks.{number}."
        own = {key: value for key, value in weights.items() if key.startswith(prefix)}
        block = {key.removeprefix(prefix): value for key, value in own.items()}
        for name, value in _rename_block(block):
            yield f"{prefix}{name}", value


def _rename_block(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for scale, name in LAYER_SCALES.items():
        yield name, weights[scale]
    yield from _rename_layers(weights, BLOCK_LAYERS)
    for kind in ("weight", "bias"):
        query, key, value = weights[f"attn.qkv.{kind}"].chunk(3)
        yield f"attn.q_proj.{kind}", query
        yield f"attn.k_proj.{kind}", key
        yield f"attn.v_proj.{kind}", value


def _rename_layers(
    weights: Mapping[str, Tensor], names: Mapping[str, str]
) -> Iterator[tuple[str, Tensor]]:
    for key, name in names.items():
        for kind in ("weight", "bias"):
            yield f"{name}.{kind}", weights[f"{key}.{kind}"]
