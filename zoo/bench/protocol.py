"""The sizes that models are compared in, by name, and what else a comparison is set to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from zoo.api import Attention
from zoo.bench.timing import Trial
from zoo.errors import OptionError

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
    patch_size: int = 16  # pixels
    precision: Precision = "32-true"
    compile: bool = False

    @property
    def default_reference(self) -> str:
        """The encoding that all others are compared with, unless another is asked for."""
        return "none" if self.kind == "image" else "rope"

    @property
    def unit(self) -> str:
        """What is counted per second."""
        return "images" if self.kind == "image" else "tokens"

    def make_inputs(self) -> Tensor:
        """What a model reads, of no content: images [B, 3, L, L] or tokens [B, L]."""
        if self.kind == "image":
            return torch.zeros(self.batch, 3, self.length, self.length)
        return torch.zeros(self.batch, self.length, dtype=torch.int64)


def _image(
    dim: int,
    depth: int,
    heads: int,
    batch: int = 8,
    length: int = 224,
    patch: int = 16,
    outputs: int = 1000,
) -> Shape:
    return Shape(
        kind="image",
        dim=dim,
        depth=depth,
        heads=heads,
        batch=batch,
        length=length,
        patch_size=patch,
        outputs=outputs,
    )


def _text(dim: int, depth: int, heads: int, batch: int = 2, length: int = 1024) -> Shape:
    return Shape(
        kind="text", dim=dim, depth=depth, heads=heads, batch=batch, length=length, outputs=256
    )


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "vit_toy": _image(dim=32, depth=2, heads=2, batch=2, length=32, patch=8, outputs=10),
        "vit_s": _image(dim=384, depth=12, heads=6),
        "vit_b": _image(dim=768, depth=12, heads=12),
        "lm_toy": _text(dim=32, depth=2, heads=2, length=32),
        "lm_small": _text(dim=512, depth=6, heads=8),
        "lm_base": _text(dim=768, depth=12, heads=12),
        "lm_wide": replace(
            _text(dim=1024, depth=12, heads=16, batch=1, length=8192),
            precision="bf16-mixed",
            compile=True,
        ),
    }
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A shape, and how it is run."""

    shape: Shape
    device: str = "cpu"
    jitter: float = 0.0  # of coordinates in training, in patches or tokens

    def with_length(self, length: int) -> Setting:
        """The same, with images or texts of another length."""
        return replace(self, shape=replace(self.shape, length=length))


Make = Callable[[Setting], nn.Module]
"""A model that takes images [B, 3, L, L] or tokens [B, L] to logits. Raises OptionError where the setting does not allow it."""

Generate = Callable[[nn.Module, Tensor, int], object]
"""Continues a text [1, N] greedily by so many tokens, with a cache."""

Stream = Callable[[nn.Module, Tensor], Iterator[int]]
"""The tokens that follow a text [1, N], one by one, with a cache."""

Plan = Callable[[nn.Module, Tensor, str], str]
"""What computes attention of a model for inputs on a type of device."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model of zoo or, with the name of zoo's own in `rival`, of a `peer`; None for what it cannot do or tell."""

    name: str
    make: Make
    peer: str | None = None
    rival: str | None = None
    generate: Generate | None = None
    stream: Stream | None = None
    plan: Plan | None = None
    layer: Callable[[Setting], Attention] | None = None


def find_refusal(contender: Contender, settings: Sequence[Setting]) -> str | None:
    """Why a model cannot be made or run, or None where it can; nothing is allocated and nothing computed."""
    try:
        with torch.device("meta"), torch.no_grad():
            for setting in settings:
                contender.make(setting)(setting.shape.make_inputs())
    except OptionError as error:
        return str(error)
    except (
        Exception
    ) as error:  # of a plug-in, or of torch, which cannot count so far: told as what fails later is
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """`amount` is how much is done in a run, in what the measure counts per second."""

    amount: float = 0.0
    parameters: int = 0
    plan: str = ""


class PreparedRun(NamedTuple):
    """What is run, and what is known of it."""

    run: Trial
    facts: RunFacts


class BenchMeasure(Protocol):
    """What is measured of each contender, at each length."""

    @property
    def name(self) -> str: ...

    @property
    def unit(self) -> str:
        """Of what a run gives."""
        ...

    @property
    def rate(self) -> str:
        """What is done per second; empty where a run is no time, or nothing is counted."""
        ...

    @property
    def is_repeated(self) -> bool:
        """Whether it differs from run to run."""
        ...

    def choose_lengths(self, setting: Setting, asked: Sequence[int]) -> Sequence[int]:
        """At which lengths it is measured, of those that are asked for or of its own."""
        ...

    def supports(self, contender: Contender) -> bool:
        """Whether a contender can do this at all."""
        ...

    def prepare(self, contender: Contender, setting: Setting) -> PreparedRun:
        """Raises OptionError where the contender does not allow the setting."""
        ...
