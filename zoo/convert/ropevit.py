"""Published weights of RoPE-ViT (Heo et al. 2024, arXiv:2403.13298), in the layout of timm.

With D width, H heads, K = D / H, p patch, C channels, F hidden size, N = h w patches of training, row by row:

    patch_embed.proj.weight, .bias               [D, C, p, p], [D]
    cls_token                                    [1, 1, D]              neither turned nor given a row of pos_embed
    pos_embed                                    [1, N, D]              only with APE; other grids read it bicubically
    rope.freqs                                   [2, depth, H, K/2]     only of RoPE-Mixed; see below
    blocks.i.norm1.weight, .bias                 [D], [D]               layer norms, eps 1e-6
    blocks.i.attn.qkv.weight, .bias              [3D, D], [3D]          queries, keys, values; keys have a bias
    blocks.i.attn.proj.weight, .bias             [D, D], [D]
    blocks.i.gamma_1, .gamma_2                   [D], [D]               factors on the branches of attention and perceptron
    blocks.i.norm2.weight, .bias                 [D], [D]
    blocks.i.mlp.fc1.weight, .bias               [F, D], [F]            then an exact GELU
    blocks.i.mlp.fc2.weight, .bias               [D, F], [D]
    norm.weight, .bias                           [D], [D]
    head.weight, .bias                           [classes, D], [classes]    of the class token, normed

In layer l and head h, channels (2j, 2j + 1) of the query and the key at row r and column c, whole numbers from 0 on, turn by
c freqs[0, l, h, j] + r freqs[1, l, h, j]: the column comes first. Axial models have no such key; half of their pairs turn by
c 100^(-4j/K), the rest by r 100^(-4j/K).

The layout of the authors (github.com/naver-ai/rope-vit) differs in `freqs` [2, depth, H K/2] for `rope.freqs`, in the
coordinates `freqs_t_x` and `freqs_t_y` of the patches, which are not needed, and in that all stands under `model`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

TELLING = ("patch_embed.proj.weight", "cls_token", "head.weight", "blocks.0.mlp.fc1.weight")
PARTS = {  # of a block
    "norm1": "norm1",
    "attn.proj": "attn.o_proj",
    "norm2": "norm2",
    "mlp.fc1": "mlp.up_proj",
    "mlp.fc2": "mlp.down_proj",
}
FACTORS = {"gamma_1": "attn_branch.scale", "gamma_2": "mlp_branch.scale"}
WHOLE = {"patch_embed.proj": "patch_embed", "norm": "trunk.norm", "head": "head"}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """What a file tells of its model. `tokens` 0 is no table of positions; axial models do not tell their heads."""

    dim: int
    depth: int
    patch: int
    channels: int
    classes: int
    hidden: int
    tokens: int
    mixed: bool
    heads: int | None


def inner(content: Mapping[str, object]) -> Mapping[str, object]:
    """The weights, also where they stand under `model`, without the coordinates of patches."""
    weights = content.get("model", content)
    weights = weights if isinstance(weights, Mapping) else content
    known = {"freqs": "rope.freqs"}
    return {
        known.get(key, key): value
        for key, value in weights.items()
        if key not in ("freqs_t_x", "freqs_t_y")
    }


def sizes(weights: Mapping[str, Tensor]) -> Sizes:
    """The sizes of a model that has the keys of TELLING, each of the right rank."""
    kernel, frequencies = weights["patch_embed.proj.weight"], weights.get("rope.freqs")
    return Sizes(
        dim=kernel.shape[0],
        depth=1
        + max(
            int(key.split(".")[1])
            for key in weights
            if key.startswith("blocks.") and _numbered(key)
        ),
        patch=kernel.shape[-1],
        channels=kernel.shape[1],
        classes=weights["head.weight"].shape[0],
        hidden=weights["blocks.0.mlp.fc1.weight"].shape[0],
        tokens=weights["pos_embed"].shape[-2] if "pos_embed" in weights else 0,
        mixed=frequencies is not None,
        heads=frequencies.shape[2] if frequencies is not None and frequencies.dim() == 4 else None,
    )


def _numbered(key: str) -> bool:
    return key.split(".")[1].isdecimal()


def layout(of: Sizes) -> dict[str, Shape]:
    """The keys that a file of these sizes has, with their shapes; frequencies as the file has them."""
    dim, hidden, classes = of.dim, of.hidden, of.classes
    found: dict[str, Shape] = {"cls_token": (1, 1, dim)}
    if of.tokens:
        found["pos_embed"] = (1, of.tokens, dim)
    if of.mixed:
        heads = of.heads
        found["rope.freqs"] = (
            (2, of.depth, dim // 2) if heads is None else (2, of.depth, heads, dim // heads // 2)
        )
    found |= _layer("patch_embed.proj", dim, of.channels, of.patch, of.patch)
    for number in range(of.depth):
        block = f"blocks.{number}"
        found |= {f"{block}.{name}": (dim,) for name in FACTORS}
        found |= _layer(f"{block}.norm1", dim) | _layer(f"{block}.norm2", dim)
        found |= _layer(f"{block}.attn.qkv", 3 * dim, dim) | _layer(f"{block}.attn.proj", dim, dim)
        found |= _layer(f"{block}.mlp.fc1", hidden, dim) | _layer(f"{block}.mlp.fc2", dim, hidden)
    return found | _layer("norm", dim) | _layer("head", classes, dim)


def _layer(name: str, *shape: int) -> dict[str, Shape]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def translated(
    weights: Mapping[str, Tensor], of: Sizes, heads: int
) -> Iterator[tuple[str, Tensor]]:
    """The names and weights of zoo's model for those of a file whose keys and shapes are those of `layout`."""
    yield "cls_token", weights["cls_token"]
    yield from _renamed(weights, WHOLE)
    if of.tokens:
        yield "trunk.encoding.learned.table", weights["pos_embed"][0]
    if of.mixed:
        turned = weights["rope.freqs"].reshape(2, of.depth, heads, -1).flip(0)  # (row, column)
        for number in range(of.depth):
            yield f"trunk.encoding.rope_mixed.{number}.frequencies", turned[:, number]
    for number in range(of.depth):
        block = {
            key.removeprefix(prefix): value
            for key, value in weights.items()
            if key.startswith(prefix := f"blocks.{number}.")
        }
        yield from ((f"trunk.blocks.{number}.{name}", value) for name, value in _block(block))


def _block(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from ((name, weights[key]) for key, name in FACTORS.items())
    yield from _renamed(weights, PARTS)
    for kind in ("weight", "bias"):
        parts = weights[f"attn.qkv.{kind}"].chunk(3)
        yield from (
            (f"attn.{name}.{kind}", part)
            for name, part in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True)
        )


def _renamed(
    weights: Mapping[str, Tensor], names: Mapping[str, str]
) -> Iterator[tuple[str, Tensor]]:
    for key, name in names.items():
        yield from ((f"{name}.{kind}", weights[f"{key}.{kind}"]) for kind in ("weight", "bias"))
