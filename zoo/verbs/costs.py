"""What an encoding costs in given sizes: parameters, the way its attention is computed, and time, measured here and now."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from zoo.attention import Dims, Encoding, Tokens
from zoo.attention.attend import choose
from zoo.attention.chain import Chain
from zoo.attention.context import Context
from zoo.attention.coordinates import grid
from zoo.attention.layer import SelfAttention
from zoo.bench.clock import rounds
from zoo.bench.measures.layer import passing
from zoo.errors import Invalid
from zoo.functions import Attention, encoding
from zoo.registry import Between, Choice

TEXT, SIDE = 512, 14  # tokens along the one axis of a text, and along each of several
MOST, LONGEST = 2**20, 4096  # tokens that are counted for, and that a layer is timed with
BATCH, ROUNDS = 2, 3  # samples that a layer is timed with, and rounds at least
Size = Annotated[int, Between(1, 2**16)]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that an encoding is measured in: by default those of a text of 512 tokens, or of 14 along each of several axes."""

    dim: Annotated[int, Between(1, 2**13)] = 512
    heads: Size = 8
    key_heads: Size | None = None
    depth: Annotated[int, Between(1, 2**10)] = 6
    length: Size | tuple[Size, ...] | None = None
    axes: Literal[1, 2, 3] | None = None  # None: as many as `length` has, or the fewest that the encoding takes


def sized(sizes: Sizes, cls: type[Encoding]) -> Dims:
    """The sizes of the first layer. Raises Invalid where they do not go together."""
    if sizes.length == ():
        raise Invalid("length", "a list of none; give a number, or one along each axis")
    several = len(sizes.length) if isinstance(sizes.length, tuple) else None
    axes = sizes.axes or several or min(cls.axes)
    length = sizes.length or (TEXT if axes == 1 else SIDE)
    dims = Dims(sizes.dim, sizes.heads, axes, length, 0, sizes.depth, sizes.key_heads)
    if dims.tokens > MOST:
        raise Invalid("length", f"{dims.tokens:,} tokens are more than {MOST:,}")
    return dims


def parameters(choices: Sequence[Choice], dims: Dims) -> tuple[int, list[int]]:
    """Numbers of parameters: of what all layers share, and of each layer's own."""
    with torch.device("meta"):
        layers = [[*_links(choices, replace(dims, layer=layer))] for layer in range(dims.depth or 1)]
    shared = sum(_count(link) for link in layers[0] if link.shared)
    return shared, [sum(_count(link) for link in layer if not link.shared) for layer in layers]


def _links(choices: Sequence[Choice], dims: Dims) -> Iterator[Encoding]:
    return iter(Chain.of(encoding(choices, dims)))


def _count(link: Encoding) -> int:
    return sum(parameter.numel() for parameter in link.parameters())


@torch.no_grad()
def interpreter(choices: Sequence[Choice], dims: Dims, device: str) -> tuple[str, str]:
    """What computes attention in the first layer on a type of device, and why; one axis is under a causal mask."""
    few = replace(dims, length=(2,) * dims.axes)
    chain = Chain.of(encoding(choices, few))
    x = torch.zeros(1, few.tokens, few.dim)
    tokens = Tokens.at(x, grid(few.sizes, x), ordered=few.axes == 1)
    layer = SelfAttention(few, causal=few.axes == 1)
    return choose(layer.describe(chain.embed(tokens), chain, Context())[1], device)


def times(choices: Sequence[Choice], dims: Dims, seconds: float) -> str:
    """Forward and backward of a layer, relative to one without an encoding: medians of rounds that take turns."""
    if dims.tokens > LONGEST:
        return f"not measured with more than {LONGEST:,} tokens"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dims = replace(dims, depth=max(dims.depth or 0, 2))  # the last layer may have less to do
    layers = [Attention(dims, one, causal=dims.axes == 1).to(device) for one in (choices, [Choice("none")])]
    found = [*rounds([passing(layer, BATCH, device) for layer in layers], ROUNDS, seconds)]
    ours, plain = (statistics.median(each) for each in zip(*found, strict=True))
    where = "a GPU" if device == "cuda" else f"a CPU, torch's threads: {torch.get_num_threads()}"
    told = f"{ours * 1e3:.2f} against {plain * 1e3:.2f} ms, forward and backward of a layer, batch {BATCH}"
    return f"{ours / plain:.2f} of that without an encoding ({told}, medians of {len(found)} rounds on {where})"
