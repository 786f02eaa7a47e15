"""Rotations of queries and keys: one kernel turns pairs of channels, whatever the angles are."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from zoo.attention import Dims, Encoding, Tokens, precise, unrounded
from zoo.errors import Invalid


class Rotary(Encoding):
    """Turns queries and keys by tables that depend on coordinates alone.

    A shared rotation makes its tables once for all layers, any other once per layer; queries and keys use the same ones,
    and query heads that share a key head turn alike.
    """

    relative = True
    origin = True

    @abstractmethod
    def prepare(self, pos: Tensor) -> tuple[Tensor, ...]:
        """Tables for coordinates [1|B, N, P]."""

    def turn(self, x: Tensor, *tables: Tensor) -> Tensor:
        """Heads [B, H, N, K] turned by the tables; by default pairs (2i, 2i + 1) by a table of `circle`."""
        return turn(x, *tables)

    def embed(self, tokens: Tokens) -> Tokens:
        return self._prepared(tokens) if self.shared else tokens

    def annotate(self, tokens: Tokens) -> Tokens:
        return tokens if self.shared and self.name in tokens.tables else self._prepared(tokens)

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        tables = self.tables(tokens)
        if self.dims.groups == self.dims.heads:
            return self.turn(q, *tables)
        sharing = q.unflatten(1, (self.dims.groups, -1)).unbind(2)  # of [B, G, N, K], one query head of each group
        return torch.stack([self.turn(one, *tables) for one in sharing], dim=2).flatten(1, 2)

    def turn_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.turn(k, *self.tables(tokens))

    def tables(self, tokens: Tokens) -> tuple[Tensor, ...]:
        """What `prepare` gave for these tokens, made now if it was not yet."""
        return self._prepared(tokens, keep=True).tables[self.name]

    def _prepared(self, tokens: Tokens, keep: bool = False) -> Tokens:
        """The same tokens with this encoding's tables; those that are there are kept if asked."""
        if keep and self.name in tokens.tables:
            return tokens
        with unrounded(tokens.pos.device):
            return tokens.replace(tables={**tokens.tables, self.name: self.prepare(tokens.pos)})


def check_pairs(dims: Dims) -> None:
    """Refuse head sizes whose pairs of channels cannot be dealt out to the axes."""
    divisor = 4 if dims.axes == 2 else 2
    if dims.head % divisor or dims.head < 2 * dims.axes:
        needed = f"divisible by {divisor} and at least {2 * dims.axes}"
        raise Invalid(
            "name", f"turning pairs of channels on {dims.axes} axes needs a head size {needed}, not {dims.head}"
        )


def per_axis(value: Tensor, there: Dims, here: Dims) -> Tensor | None:
    """A parameter [P, ...] of one set of axes for another: a clip's rows and columns are those of an image.

    What is new, its frames, is 0: a token turns by its place in the frame alone, as before, until training changes it.
    None where one of them is a text.
    """
    if there.axes == here.axes:
        return value
    if 1 in (there.axes, here.axes):
        return None
    return torch.cat([torch.zeros_like(value[:1]), value]) if there.axes < here.axes else value[1:]


def ladders(dims: Dims, base: float, like: Tensor) -> list[Tensor]:
    """The K/2 pairs dealt out to the P axes in nearly equal parts, as magnitudes base^(-2Pk/K), k counted in each part."""
    parts = torch.arange(dims.head // 2, device=like.device).tensor_split(dims.axes)
    return [base ** (-2 * dims.axes / dims.head * (part - part[0]).to(like.dtype)) for part in parts]


def mixed(pos: Tensor, waves: Tensor) -> Tensor:
    """The table that `turn` takes of wave vectors [P, G, pairs], each turning by sum_a p_a waves[a]: [1|B, G, N, pairs, 2]."""
    return circle(sum(pos[:, None, :, a, None] * waves[a, :, None] for a in range(len(waves))))  # type: ignore[arg-type]


def rebased(x: Tensor, bases: Tensor) -> Tensor:
    """x [B, H, N, K] times a matrix [H, K, K] per head; samples and tokens are one dimension, so that nothing is copied."""
    return torch.einsum("bhnk,hkl->bhnl", x, bases.to(x.dtype))


def circle(angles: Tensor) -> Tensor:
    """(cos, sin) of angles [..., N, pairs], the table that `turn` takes: [..., N, pairs, 2]."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def turn(x: Tensor, table: Tensor) -> Tensor:
    """Pairs (2i, 2i + 1) of x [B, H, N, K] turned: (a, b) -> (a cos - b sin, a sin + b cos). Channels beyond stay."""
    width = 2 * table.shape[-2]
    if width < x.shape[-1]:
        return torch.cat([turn(x[..., :width], table), x[..., width:]], dim=-1)
    return _Turn.apply(x, table)  # type: ignore[no-untyped-call]


class _Turn(torch.autograd.Function):
    """Turning by a table, whose gradient is summed over samples as soon as it is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(x, table)
        return multiply(x, table)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, table = ctx.saved_tensors
        to_x = multiply(gradient, table, -1)
        if not ctx.needs_input_grad[1]:
            return to_x, None
        if torch.compiler.is_compiling():
            (a, b), (c, d) = _pairs(x), _pairs(gradient)
            return to_x, torch.stack([a * c + b * d, a * d - b * c], dim=-1).sum_to_size(table.shape)
        products = (_complex(x).conj() * _complex(gradient)).sum_to_size(table.shape[:-1])
        return to_x, torch.view_as_real(products).to(table.dtype)


def multiply(x: Tensor, table: Tensor, sign: int = 1) -> Tensor:
    """Pairs of x [B, H, N, K] as complex numbers, times those of the table, or for sign -1 their conjugates.

    A CPU turns interleaved pairs fastest as complex numbers; a compiler fuses real arithmetic and does not know them.
    """
    if torch.compiler.is_compiling():
        (a, b), (cos, sin) = _pairs(x), (table[..., 0], table[..., 1] * sign)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
    z, turns = _complex(x), torch.view_as_complex(table)
    batch, heads, tokens, pairs = z.shape
    dtype = torch.promote_types(z.dtype, turns.dtype)
    out = z.new_empty(batch, tokens, heads, pairs, dtype=dtype).transpose(
        1, 2
    )  # tokens before heads, as projections lie
    torch.mul(z, turns if sign > 0 else turns.conj(), out=out)
    return torch.view_as_real(out).flatten(-2).to(x.dtype)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = precise(x).unflatten(-1, (-1, 2)).unbind(-1)
    return first, second


def _complex(x: Tensor) -> Tensor:
    pairs = precise(x).unflatten(-1, (-1, 2))
    aligned = pairs.stride(-1) == 1 and pairs.storage_offset() % 2 == 0 and not any(s % 2 for s in pairs.stride()[:-1])
    return torch.view_as_complex(pairs if aligned else pairs.contiguous())
