"""The case that a law is checked on: an encoding on a number of axes, with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from zoo.attention.chain import Chain, make_factory
from zoo.attention.coordinates import grid
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.temperature import Temperature
from zoo.errors import OptionError
from zoo.options import Choice

BATCH, TOKENS = 2, 12
# The first number of heads, and the first head dim, that an encoding allows are used.
HEADS = (2, 4, 6, 8)
HEAD_DIMS = (48, 64, 96, 128)
# Training sizes by number of axes. On one axis there is room to shift TOKENS positions.
SIZES = {1: (8192,), 2: (3, 4), 3: (2, 3, 2)}
DOCUMENTS = (0, 0, 0, 0, 1, 1, 1, 1, 1, 2, -1, -1)


@dataclass(frozen=True)
class Case:
    """An encoding, or a list of them, on a number of axes, in layers with these options."""

    name: str
    axes: int
    factory: Callable[[Dims], Encoding]
    kv_heads: int | None = None
    softcap: float | None = None
    sinks: bool = False
    temperature: Temperature | None = None
    width: float = 1.0
    """Width of the states, relative to that of all heads together."""

    @classmethod
    def from_choices(cls, name: str, choices: Sequence[Choice], axes: int) -> Case:
        """Make a case of chosen encodings.

        Raises:
            OptionError: An option is unknown.
        """
        factories = {choice.name: make_factory(choice) for choice in choices}

        def build(dims: Dims) -> Encoding:
            links = {link: factory(dims) for link, factory in factories.items()}
            return Chain(dims, links) if len(links) != 1 else links.popitem()[1]

        return cls(name, axes, build)

    def __str__(self) -> str:
        return f"{self.name}-{self.axes}"

    def dims_for(self, head_dim: int, layer: int = 0, axes: int | None = None) -> Dims:
        axes = axes or self.axes
        length = SIZES.get(axes, (2,) * axes)
        dim = round(self.heads * head_dim * self.width)
        return Dims(dim, self.heads, axes, length, layer, 2, self.kv_heads, head_dim)

    @cached_property
    def heads(self) -> int:
        return self._sizes[0]

    @cached_property
    def head_dim(self) -> int:
        return self._sizes[1]

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """The number of heads and the head dim."""
        sizes = ((heads, head_dim) for heads in HEADS for head_dim in HEAD_DIMS)
        return next((size for size in sizes if self._fits(*size)), (HEADS[0], HEAD_DIMS[0]))

    def _fits(self, heads: int, head_dim: int) -> bool:
        length = SIZES.get(self.axes, (2,) * self.axes)
        try:
            self.factory(Dims(heads * head_dim, heads, self.axes, length, 0, 2, self.kv_heads))
        except OptionError:
            return False
        return True

    @property
    def dims(self) -> Dims:
        return self.dims_for(self.head_dim)

    def build(self, layer: int = 0) -> Encoding:
        """Build a new encoding for one of the two layers."""
        return self.factory(self.dims_for(self.head_dim, layer))

    @cached_property
    def facts(self) -> Chain:
        """An encoding from which to read declared facts."""
        return Chain.of(self.build())

    @property
    def with_one_kv_head(self) -> Case:
        return replace(self, kv_heads=1)

    @property
    def widths(self) -> tuple[Case, ...]:
        """This case, and it with heads that are wider and narrower than the states together."""
        return tuple(replace(self, width=width) for width in (1.0, 0.5, 2.0))

    @property
    def supports_shared_keys(self) -> bool:
        """True if query heads may share key heads."""
        try:
            self.with_one_kv_head.build()
        except OptionError as error:
            # Any other reason is a fault, which the law will report.
            return error.key != "kv_heads"
        return True

    @property
    def max_variant_axes(self) -> int:
        """The largest number of axes on which the encoding is not declared shift-invariant."""
        accepted = [axes for axes in (1, 2, 3) if all(axes in link.axes for link in self.facts)]
        return max(axes for axes in accepted if not replace(self, axes=axes).facts.shift_invariant)

    @property
    def causal_modes(self) -> tuple[bool, ...]:
        """The values of `causal` that the encoding allows."""
        if self.facts.causal_only:
            return (True,)
        return (False,) if self.facts.needs_full_sequence else (False, True)

    def positions(self) -> Tensor:
        """Return grid indices [TOKENS, P]."""
        like = torch.zeros(0, dtype=torch.float64)
        return grid((TOKENS,) if self.axes == 1 else SIZES[self.axes], like)

    def states(self, batch: int = BATCH) -> Tensor:
        """Draw states [batch, TOKENS, D]."""
        return torch.randn(batch, TOKENS, self.dims.dim, dtype=torch.float64)


def packed_documents() -> Tensor:
    """Return document numbers int [1, TOKENS] of three documents and padding."""
    return torch.tensor([DOCUMENTS])


def left_padding() -> Tensor:
    """Return document numbers int [1, TOKENS] of padding and one document."""
    return torch.tensor([[-1, -1, -1] + [0] * (TOKENS - 3)])


def position_mask() -> Tensor:
    """Return `has_position` bool [TOKENS] of a CLS token, ordinary tokens and a register token."""
    mask = torch.ones(TOKENS, dtype=torch.bool)
    mask[0] = mask[-1] = False
    return mask
