"""Rotations of queries and keys: one kernel turns pairs of channels, whatever the angles are."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from zoo.attention import AttentionCall, Encoding, Tokens, disable_autocast, upcast
from zoo.encodings.common.panels import Panels, drop_padding, frequency_panels, pair_panel
from zoo.errors import OptionError


def cos_sin(angles: Tensor) -> Tensor:
    """(cos, sin) of angles [..., N, pairs], the table that `turn` takes: [..., N, pairs, 2]."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def rotation_tables(angles: Tensor) -> tuple[Tensor, ...]:
    """What `turn` takes of angles [1|B, 1|H, N, pairs]: their table, and where they learn themselves, by a shorter way."""
    return (cos_sin(angles.detach()), angles) if angles.requires_grad else (cos_sin(angles),)


def rotate_pairs(x: Tensor, table: Tensor, angles: Tensor | None = None) -> Tensor:
    """Pairs (2i, 2i + 1) of x [B, H, N, K] turned: (a, b) -> (a cos - b sin, a sin + b cos). Channels beyond stay.

    With `angles` a gradient goes to them and none to the table, which has to be their circle.
    """
    width = 2 * table.shape[-2]
    if width < x.shape[-1]:
        return torch.cat([rotate_pairs(x[..., :width], table, angles), x[..., width:]], dim=-1)
    if not torch.is_grad_enabled():
        return multiply_pairs(x, table)
    return _Turn.apply(x, table, angles)  # type: ignore[no-untyped-call]


class _Turn(torch.autograd.Function):
    """Turning by a table, whose gradient is summed over samples as soon as it is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, angles: Tensor | None) -> Tensor:
        turned = multiply_pairs(x, table)
        _, by_table, by_angles = ctx.needs_input_grad
        ctx.shape = None if angles is None else angles.shape
        ctx.save_for_backward(
            table, x if by_table else None, turned if by_angles else None
        )  # nothing that is not read
        return turned

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        table, x, turned = ctx.saved_tensors
        to_x = multiply_pairs(gradient, table, -1)
        to_table = None if x is None else _products(x, gradient, table.shape[:-1]).to(table.dtype)
        to_angles = (
            None if turned is None else angle_gradient(turned, gradient, ctx.shape).to(table.dtype)
        )
        return to_x, to_table, to_angles


def multiply_pairs(x: Tensor, table: Tensor, sign: int = 1) -> Tensor:
    """Pairs of x [B, H, N, K] as complex numbers, times those of the table, or for sign -1 their conjugates.

    A CPU turns interleaved pairs fastest as complex numbers; a compiler fuses real arithmetic and does not know them.
    """
    if torch.compiler.is_compiling():
        (a, b), (cos, sin) = _pairs(x), (table[..., 0], table[..., 1] * sign)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
    z, turns = _complex(x), torch.view_as_complex(table)
    batch, heads, tokens, pairs = z.shape
    dtype = torch.promote_types(z.dtype, turns.dtype)
    laid = z.new_empty(
        batch, tokens, heads, pairs, dtype=dtype
    )  # tokens before heads, as projections lie
    out = laid.transpose(1, 2)
    torch.mul(z, turns if sign > 0 else turns.conj(), out=out)
    return torch.view_as_real(out).flatten(-2).to(x.dtype)


def angle_gradient(turned: Tensor, gradient: Tensor, shape: torch.Size) -> Tensor:
    """The gradient to angles, of a `shape` [1|B, 1|H, N, pairs], of heads [B, H, N, K] that they turned.

    It is the same whether the heads and the gradient to them are both seen turned, or both turned back.
    """
    return _products(turned, gradient, shape)[..., 1]


def _products(x: Tensor, gradient: Tensor, shape: torch.Size) -> Tensor:
    """conj(x) times the gradient, of pairs as complex numbers, summed to a shape [.., pairs]: [.., pairs, 2]."""
    if torch.compiler.is_compiling():
        (a, b), (c, d) = _pairs(x), _pairs(gradient)
        return torch.stack([a * c + b * d, a * d - b * c], dim=-1).sum_to_size((*shape, 2))
    batch, heads, tokens, pairs = shape
    products = (_complex(x).conj() * _complex(gradient)).transpose(
        1, 2
    )  # [B, N, H, pairs], as they lie in memory
    return torch.view_as_real(products.sum_to_size(batch, tokens, heads, pairs)).transpose(1, 2)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = upcast(x).unflatten(-1, (-1, 2)).unbind(-1)
    return first, second


def _complex(x: Tensor) -> Tensor:
    pairs = upcast(x).unflatten(-1, (-1, 2))
    aligned = (
        pairs.stride(-1) == 1
        and pairs.storage_offset() % 2 == 0
        and not any(s % 2 for s in pairs.stride()[:-1])
    )
    return torch.view_as_complex(pairs if aligned else pairs.contiguous())


class Rotary(Encoding):
    """Turns queries and keys by tables that depend on coordinates alone.

    A shared rotation makes its tables once for all layers, any other once per layer; queries and keys use the same ones,
    and query heads that share a key head turn alike.
    """

    shift_invariant = True
    identity_at_zero = True

    @abstractmethod
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        """Tables for coordinates [1|B, N, P]."""

    def wave_vectors(self, like: Tensor) -> Tensor | None:
        """Wave vectors [P, 1|G, pairs] in radians per unit of each coordinate; None where turns have none."""
        return None

    def panels(self, call: AttentionCall) -> Panels:
        waves = self.wave_vectors(call.keys.pos)
        return () if waves is None else frequency_panels(waves, self, call)

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        """Heads [B, H, N, K] turned by the tables; by default pairs (2i, 2i + 1) by a table of `circle`."""
        return rotate_pairs(x, *tables)

    def embed(self, tokens: Tokens) -> Tokens:
        return self._with_rotation(tokens) if self.shared else tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        return (
            tokens
            if self.shared and self.name in tokens.shared_tables
            else self._with_rotation(tokens)
        )

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        tables = self.get_rotation(tokens)
        if self.dims.num_kv_heads == self.dims.heads:
            return self.rotate(q, *tables)
        sharing = q.unflatten(1, (self.dims.num_kv_heads, -1)).unbind(
            2
        )  # of [B, G, N, K], one query head of each group
        return torch.stack([self.rotate(one, *tables) for one in sharing], dim=2).flatten(1, 2)

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.rotate(k, *self.get_rotation(tokens))

    def get_rotation(self, tokens: Tokens) -> tuple[Tensor, ...]:
        """What `prepare` gave for these tokens, made now if it was not yet."""
        return self._with_rotation(tokens, keep=True).shared_tables[self.name]

    def _with_rotation(self, tokens: Tokens, keep: bool = False) -> Tokens:
        """The same tokens with this encoding's tables; those that are there are kept if asked."""
        if keep and self.name in tokens.shared_tables:
            return tokens
        with disable_autocast(tokens.pos.device):
            return tokens.replace(
                shared_tables={**tokens.shared_tables, self.name: self.compute_rotation(tokens.pos)}
            )


class CumulativeRotary(Encoding):
    """Pairs (2t, 2t + 1) of q and k turn by the sum of the steps of the tokens up to theirs.

    Between a key and its query lie the steps of their own document alone: what came before it cancels. Steps go by the order
    of tokens, whether these have a place or not. A key turns further with each token after it, hence after the cache.
    """

    shared, shift_invariant, causal_only, handles_special_tokens = False, True, True, True
    inclusive = True  # a token turns by its own step too, not by those before it alone

    @abstractmethod
    def token_angles(self, tokens: Tokens) -> Tensor:
        """Angles [B, M, 1|G, K/2], at least float32, made of what the tokens noted."""

    def panels(self, call: AttentionCall) -> Panels:
        steps = drop_padding(self.token_angles(call.keys), call.keys)  # [.., 1|G, K/2]
        if len(steps):
            told = "How far a token turns each pair of channels, on average and either way: slow pairs tell far places."
            yield pair_panel("Turns of tokens", "mean radians per token", steps.abs().mean(0), told)

    def modify(self, call: AttentionCall) -> AttentionCall:
        if call.q.shape[-1] != self.dims.head_dim:
            raise OptionError(
                "encoding",
                f"{self.name} turns pairs of channels, and a link before it has made heads wider",
            )
        with disable_autocast(call.q.device):
            steps = self.token_angles(call.keys)
            sums = steps.cumsum(1) if self.inclusive else steps.cumsum(1) - steps
            columns = cos_sin(
                (sums - sums[:, -1:]).transpose(1, 2)
            )  # from the end: small where it matters
        if columns.shape[1] > 1:  # one for each key head; query heads that share it turn alike
            columns = columns.repeat_interleave(
                call.k.shape[1] // columns.shape[1], dim=1
            )  # [B, 1|H, M, K/2, 2]
        rows, before = call.select_queries(columns), call.transform_query

        def turned(x: Tensor) -> Tensor:
            return rotate_pairs(before(x).expand(len(rows), -1, -1, -1), rows)

        return call.replace(
            q=rotate_pairs(call.q, rows), k=rotate_pairs(call.k, columns), transform_query=turned
        )
