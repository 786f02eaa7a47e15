"""The sizes that models are compared in, by name, and what else a comparison is set to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["image", "text"]
Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a ViT or of a decoder. `length` is pixels along each side of an image, or tokens of a text."""

    kind: Kind
    dim: int
    depth: int
    heads: int
    batch: int
    length: int
    outputs: int  # classes, or words of the vocabulary
    patch: int = 16  # pixels
    precision: Precision = "32-true"
    compile: bool = False

    @property
    def reference(self) -> str:
        """The encoding that all others are compared with, unless another is asked for."""
        return "none" if self.kind == "image" else "rope"

    @property
    def unit(self) -> str:
        """What is counted per second."""
        return "images" if self.kind == "image" else "tokens"

    def inputs(self) -> Tensor:
        """What a model reads, of no content: images [B, 3, L, L] or tokens [B, L]."""
        if self.kind == "image":
            return torch.zeros(self.batch, 3, self.length, self.length)
        return torch.zeros(self.batch, self.length, dtype=torch.int64)


def _image(
    dim: int, depth: int, heads: int, batch: int = 8, length: int = 224, patch: int = 16, outputs: int = 1000
) -> Shape:
    return Shape(
        kind="image", dim=dim, depth=depth, heads=heads, batch=batch, length=length, patch=patch, outputs=outputs
    )


def _text(dim: int, depth: int, heads: int, batch: int = 2, length: int = 1024) -> Shape:
    return Shape(kind="text", dim=dim, depth=depth, heads=heads, batch=batch, length=length, outputs=256)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "vit_toy": _image(dim=32, depth=2, heads=2, batch=2, length=32, patch=8, outputs=10),
        "vit_s": _image(dim=384, depth=12, heads=6),
        "vit_b": _image(dim=768, depth=12, heads=12),
        "lm_toy": _text(dim=32, depth=2, heads=2, length=32),
        "lm_small": _text(dim=512, depth=6, heads=8),
        "lm_base": _text(dim=768, depth=12, heads=12),
        "lm_wide": replace(
            _text(dim=1024, depth=12, heads=16, batch=1, length=8192), precision="bf16-mixed", compile=True
        ),
    }
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A shape, and how it is run."""

    shape: Shape
    device: str = "cpu"
    jitter: float = 0.0  # of coordinates in training, in patches or tokens

    def at(self, length: int) -> Setting:
        """The same, with images or texts of another length."""
        return replace(self, shape=replace(self.shape, length=length))
