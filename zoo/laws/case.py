"""Who is under the laws, and the tokens that they are tried with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from zoo.api import make_factory
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims, Encoding
from zoo.errors import OptionError
from zoo.registry import Choice

BATCH, HEADS, TOKENS = 2, 2, 12
HEAD_SIZES = (48, 64, 96, 128)  # the first that suits a member's options
SIZES = {
    1: (8192,),
    2: (3, 4),
    3: (2, 3, 2),
}  # of training; a text may be shorter, and shifted within its table
DOCUMENTS = (0, 0, 0, 0, 1, 1, 1, 1, 1, 2, -1, -1)


@dataclass(frozen=True)
class Case:
    """Who is under the law: an encoding or a list of them, on a number of axes."""

    name: str
    axes: int
    build: Callable[[Dims], Encoding]
    kv_heads: int | None = None

    @classmethod
    def of(cls, name: str, choices: Sequence[Choice], axes: int) -> Case:
        """The member that these encodings are. Raises OptionError for an option that is not known."""
        links = {one.name: make_factory(one) for one in choices}

        def build(dims: Dims) -> Encoding:
            made = {one: link(dims) for one, link in links.items()}
            return Chain(dims, made) if len(made) != 1 else made.popitem()[1]

        return cls(name, axes, build)

    def __str__(self) -> str:
        return f"{self.name}-{self.axes}"

    def sized(self, head: int, layer: int = 0, axes: int | None = None) -> Dims:
        axes = axes or self.axes
        return Dims(
            HEADS * head, HEADS, axes, SIZES.get(axes, (2,) * axes), layer, 2, self.kv_heads
        )

    @cached_property
    def head(self) -> int:
        return next((head for head in HEAD_SIZES if self._fits(head)), HEAD_SIZES[0])

    def _fits(self, head: int) -> bool:
        try:
            self.build(self.sized(head))
        except OptionError:
            return False
        return True

    @property
    def dims(self) -> Dims:
        return self.sized(self.head)

    def make(self, layer: int = 0) -> Encoding:
        """A fresh encoding for a layer of two."""
        return self.build(self.sized(self.head, layer))

    @cached_property
    def facts(self) -> Chain:
        """An encoding to read facts off."""
        return Chain.of(self.make())

    @property
    def grouped(self) -> Case:
        """The same member with one key head for all query heads."""
        return replace(self, kv_heads=1)

    @property
    def shares(self) -> bool:
        """Whether it lets query heads share key heads."""
        try:
            self.grouped.make()
        except OptionError as error:
            return "kv_heads" not in str(error)  # any other reason is a fault
        return True

    @property
    def most_axes(self) -> int:
        """On fewer, generators that do not commute have nothing to commute with."""
        return max(axes for axes in (1, 2, 3) if all(axes in link.axes for link in self.facts))

    @property
    def masks(self) -> tuple[bool, ...]:
        """Whether attention is causal, in the ways that it may have."""
        return (
            (True,)
            if self.facts.causal_only
            else (False,)
            if self.facts.needs_full_sequence
            else (False, True)
        )

    def pos(self) -> Tensor:
        """Indices [TOKENS, P]."""
        like = torch.zeros(0, dtype=torch.float64)
        return grid((TOKENS,) if self.axes == 1 else SIZES[self.axes], like)

    def states(self, batch: int = BATCH) -> Tensor:
        """Random states [batch, TOKENS, D]."""
        return torch.randn(batch, TOKENS, self.dims.dim, dtype=torch.float64)


def document() -> Tensor:
    """int [1, TOKENS]: three documents in a row, then padding."""
    return torch.tensor([DOCUMENTS])


def padded() -> Tensor:
    """int [1, TOKENS]: padding, then one document."""
    return torch.tensor([[-1, -1, -1] + [0] * (TOKENS - 3)])


def unplaced() -> Tensor:
    """bool [TOKENS]: a class token first, a register token last."""
    placed = torch.ones(TOKENS, dtype=torch.bool)
    placed[0] = placed[-1] = False
    return placed
