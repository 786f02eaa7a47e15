"""timm, https://github.com/huggingface/pytorch-image-models: vision transformers with the positions that zoo has too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import nn

from zoo.bench.protocol import Contender, Setting, Shape

NAME, MODULE = "timm", "timm"
SIZES: Mapping[int, str] = MappingProxyType({384: "small", 768: "base"})  # by width
MODELS: Mapping[str, str] = MappingProxyType(
    {
        "learned": "vit_{size}_patch16_224",
        "rope_axial": "vit_{size}_patch16_rope_224",
        "rope_mixed": "vit_{size}_patch16_rope_mixed_224",
    }
)


def contenders(shape: Shape, library: Any) -> list[Contender]:
    """One for each encoding of zoo's that the library has in these sizes; none for texts."""
    size = SIZES.get(shape.dim)
    if shape.kind != "image" or size is None or shape.patch_size != 16 or shape.depth != 12:
        return []
    names = {rival: name.format(size=size) for rival, name in MODELS.items()}
    return [
        Contender(
            name=f"{NAME} {rival}", peer=NAME, rival=rival, make=partial(_make, library, name)
        )
        for rival, name in names.items()
    ]


def _make(library: Any, name: str, setting: Setting) -> nn.Module:
    return library.create_model(
        name, img_size=setting.shape.length, num_classes=setting.shape.outputs
    )
