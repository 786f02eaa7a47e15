"""Rotations of pairs of channels of queries and keys, and the base classes of rotary encodings."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from zoo.attention import (
    AttentionCall,
    Encoding,
    Tokens,
    disable_autocast,
    is_derived_again,
    is_transformed,
    upcast,
)
from zoo.attention.encoding import check_turned_values
from zoo.encodings.common.frequencies import sum_angles
from zoo.encodings.common.panels import (
    Panels,
    drop_padding,
    frequency_panels,
    pair_panel,
    to_cpu,
    token_spacing,
)
from zoo.errors import OptionError


def cos_sin(angles: Tensor) -> Tensor:
    """Return cos and sin of angles [..., N, pairs] as a table [..., N, pairs, 2]."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def rotation_tables(angles: Tensor) -> tuple[Tensor, ...]:
    """Return the arguments of `rotate_pairs` for angles [1|B, 1|H, N, pairs]."""
    # The gradient of angles takes one sum per pair, that of cos and sin takes two.
    if angles.requires_grad and not is_transformed(angles):
        return cos_sin(angles.detach()), angles
    return (cos_sin(angles),)


def rotate_pairs(x: Tensor, table: Tensor, angles: Tensor | None = None) -> Tensor:
    """Rotate pairs of channels (2i, 2i + 1): (a, b) -> (a cos - b sin, a sin + b cos).

    Args:
        x: Heads [B, H, N, K]; channels past the table stay unchanged.
        table: Table from `cos_sin`, [1|B, 1|H, N, pairs, 2].
        angles: The angles of the table. If given, they receive the gradient in place of the table.
    """
    width = 2 * table.shape[-2]
    if width < x.shape[-1]:
        return torch.cat([rotate_pairs(x[..., :width], table, angles), x[..., width:]], dim=-1)
    if is_transformed(x, table, angles):
        return multiply_pairs_plainly(x, table if angles is None else cos_sin(angles))
    if not torch.is_grad_enabled():
        return multiply_pairs(x, table)
    return _RotatePairs.apply(x, table, angles)  # type: ignore[no-untyped-call]


def rotate_back(x: Tensor, table: Tensor, angles: Tensor | None = None) -> Tensor:
    """Apply the inverse of `rotate_pairs`, whose arguments these are."""
    conjugate = torch.stack([table[..., 0], -table[..., 1]], dim=-1)
    return rotate_pairs(x, conjugate, None if angles is None else -angles)


class _RotatePairs(torch.autograd.Function):
    """`rotate_pairs` with a backward pass that sums the table's gradient in one operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, angles: Tensor | None) -> Tensor:
        rotated = multiply_pairs(x, table)
        _, needs_table, needs_angles = ctx.needs_input_grad
        factors = x if needs_table else None, rotated if needs_angles else None
        ctx.save_for_backward(table, angles, *factors)
        return rotated

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        table, angles, x, rotated = ctx.saved_tensors
        multiply = multiply_pairs
        if is_derived_again(gradient):
            # The table was detached from its angles, on which this gradient depends.
            table = table if angles is None else cos_sin(angles)
            multiply = multiply_pairs_plainly

        grad_x, grad_table, grad_angles = multiply(gradient, table, -1), None, None
        if x is not None:
            grad_table = _sum_products(x, gradient, table.shape[:-1]).to(table.dtype)
        if rotated is not None:
            grad_angles = angle_gradient(rotated, gradient, angles.shape).to(table.dtype)
        return grad_x, grad_table, grad_angles


def multiply_pairs(x: Tensor, table: Tensor, sign: int = 1) -> Tensor:
    """Multiply pairs of x [B, H, N, K] as complex numbers by a table, or by its conjugate (-1)."""
    # Complex numbers are fastest on a CPU. A compiler does not support them, but fuses real ones.
    if torch.compiler.is_compiling():
        return multiply_pairs_plainly(x, table, sign)
    z, rotations = _to_complex(upcast(x)), torch.view_as_complex(table)
    # A decoding step has one token: the number of operations counts, not their memory order.
    if rotations.shape[-2] == 1:
        product = z * (rotations if sign > 0 else rotations.conj())
        return torch.view_as_real(product).flatten(-2).to(x.dtype)
    batch, heads, tokens, pairs = z.shape
    dtype = torch.promote_types(z.dtype, rotations.dtype)
    # In memory tokens come before heads, which is the order of projections: no copy later.
    out = z.new_empty(batch, tokens, heads, pairs, dtype=dtype).transpose(1, 2)
    torch.mul(z, rotations if sign > 0 else rotations.conj(), out=out)
    return torch.view_as_real(out).flatten(-2).to(x.dtype)


def multiply_pairs_plainly(x: Tensor, table: Tensor, sign: int = 1) -> Tensor:
    """Compute `multiply_pairs` in real operations, which compilers and transforms follow."""
    (a, b), (cos, sin) = _split_pairs(x), (table[..., 0], table[..., 1] * sign)
    out = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return out.reshape(*out.shape[:-2], 2 * out.shape[-2]).to(x.dtype)


def angle_gradient(rotated: Tensor, gradient: Tensor, shape: torch.Size) -> Tensor:
    """Return the gradient of angles with a given shape [1|B, 1|H, N, pairs].

    Args:
        rotated: Heads [B, H, N, K] after the rotation.
        gradient: Their gradient. Both may instead be those before the rotation.
        shape: Shape of the angles.
    """
    # For z' = exp(i a) z, the gradient of a is Im(conj(z') g), which the rotation does not change.
    return _sum_products(rotated, gradient, shape)[..., 1]


def _sum_products(x: Tensor, gradient: Tensor, shape: torch.Size) -> Tensor:
    """Return conj(x) times the gradient as [.., pairs, 2], summed to a shape [.., pairs]."""
    if torch.compiler.is_compiling() or is_derived_again(gradient):
        (a, b), (c, d) = _split_pairs(x), _split_pairs(gradient)
        return torch.stack([a * c + b * d, a * d - b * c], dim=-1).sum_to_size((*shape, 2))
    batch, heads, tokens, pairs = shape
    # Summed as [B, N, H, pairs], the order in memory.
    products = (_to_complex(upcast(x)).conj() * _to_complex(upcast(gradient))).transpose(1, 2)
    return torch.view_as_real(products.sum_to_size(batch, tokens, heads, pairs)).transpose(1, 2)


def _split_pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    # Under `is_grads_batched` torch has no rule for flatten and unflatten.
    first, second = upcast(x).reshape(*x.shape[:-1], x.shape[-1] // 2, 2).unbind(-1)
    return first, second


def _to_complex(x: Tensor) -> Tensor:
    """View pairs of x [.., K], at least float32, as complex numbers [.., K/2].

    Nothing is copied if memory allows.
    """
    # view_as_complex needs pairs that are adjacent in memory and start at even addresses.
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    if pairs.is_contiguous() and pairs.storage_offset() % 2 == 0:
        return torch.view_as_complex(pairs)
    even_strides = math.gcd(2, *pairs.stride()[:-1]) == 2
    aligned = pairs.stride(-1) == 1 and pairs.storage_offset() % 2 == 0 and even_strides
    return torch.view_as_complex(pairs if aligned else pairs.contiguous())


class Rotary(Encoding):
    """Base class of rotations of queries and keys that depend only on coordinates.

    Tables are computed once per pass if the encoding is shared, otherwise once per layer, for
    queries and keys together. Query heads that share a key head have the same rotation.
    """

    shift_invariant = True
    identity_at_zero = True

    @property
    def layer_name(self) -> str:
        """Name of tables that `embed` made for one layer; others have the encoding's name."""
        return f"{self.name}.{self.dims.layer}"

    @abstractmethod
    def compute_rotation(self, pos: Tensor) -> tuple[Tensor, ...]:
        """Return the tables of a rotation at coordinates [1|B, N, P]."""

    def wave_vectors(self, like: Tensor) -> Tensor | None:
        """Return wave vectors [P, 1|G, pairs] in radians per unit of coordinates, or None."""
        return None

    def panels(self, call: AttentionCall) -> Panels:
        wave_vectors = self.wave_vectors(call.keys.pos)
        return () if wave_vectors is None else frequency_panels(wave_vectors, self, call)

    def pair_waves(self, call: AttentionCall) -> Tensor | None:
        wave_vectors = self.wave_vectors(call.keys.pos)
        if wave_vectors is None:
            return None
        spacing = to_cpu(token_spacing(self, call))
        return to_cpu(wave_vectors) * spacing[:, None, None]

    def rotate(self, x: Tensor, *tables: Tensor) -> Tensor:
        """Rotate heads [B, H, N, K] by tables. By default pairs of channels rotate."""
        return rotate_pairs(x, *tables)

    def turn(self, x: Tensor, *tables: Tensor, back: bool = False) -> Tensor:
        """Rotate values [B, H, N, K] by tables, or outputs back.

        Unlike `rotate`, it has no factor of cos and sin, which serves scores.
        """
        return (rotate_back if back else rotate_pairs)(x, *tables)

    def embed(self, tokens: Tokens) -> Tokens:
        return self._with_rotation(tokens) if self.shared else tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        made = self.name if self.shared else self.layer_name
        return tokens if made in tokens.shared_tables else self._with_rotation(tokens)

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        return self._rotate_query_heads(self.rotate, q, self.get_rotation(tokens))

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        return self.rotate(k, *self.get_rotation(tokens))

    def transform_value(self, v: Tensor, tokens: Tokens, *, back: bool = False) -> Tensor:
        tables = self.get_rotation(tokens)
        if not back:
            return self.turn(v, *tables)
        return self._rotate_query_heads(partial(self.turn, back=True), v, tables)

    def _rotate_query_heads(
        self, rotate: Callable[..., Tensor], q: Tensor, tables: tuple[Tensor, ...]
    ) -> Tensor:
        """Rotate query heads [B, H, N, K] by the tables of their key heads."""
        # One table for all heads, or as many key heads as query heads.
        is_same = all(table.dim() > 3 and table.shape[1] == 1 for table in tables)
        if is_same or self.dims.kv_heads in (None, self.dims.heads):
            return rotate(q, *tables)

        # Tables have a head for each key head [B, G, N, ..]. In a decoding step the H / G query
        # heads of a group are rotated as tokens of one head.
        if q.shape[2] == 1:
            groups = self.dims.num_kv_heads
            members = q.reshape(q.shape[0], groups, q.shape[1] // groups, q.shape[-1])
            rotated = rotate(members, *tables)
            return rotated.reshape(*q.shape[:3], rotated.shape[-1])
        # Otherwise one query head of each group is rotated at a time, [B, G, N, K].
        members = q.unflatten(1, (self.dims.num_kv_heads, -1)).unbind(2)
        return torch.stack([rotate(member, *tables) for member in members], dim=2).flatten(1, 2)

    def get_rotation(self, tokens: Tokens) -> tuple[Tensor, ...]:
        """Return the tables that `prepare` made for these tokens, or compute them."""
        # Tokens of a cache or of selected queries have lost their tables.
        tables = tokens.shared_tables
        rotation = tables.get(self.layer_name) or tables.get(self.name)
        return rotation or self._with_rotation(tokens).shared_tables[self.name]

    def _with_rotation(self, tokens: Tokens) -> Tokens:
        with disable_autocast(tokens.pos.device):
            tables = self.compute_rotation(tokens.pos)
        # A table that is not shared is replaced by the next layer's.
        return tokens.replace(shared_tables={**tokens.shared_tables, self.name: tables})


class CumulativeRotary(Encoding):
    """Base class of rotations of pairs (2t, 2t + 1) by the sum of the angles of all tokens so far.

    A score depends only on the angles between its key and its query: earlier ones cancel, so other
    documents have no effect. Angles follow the order of tokens, with or without positions.
    """

    shared, shift_invariant, causal_only, handles_special_tokens = False, True, True, True
    reads_states = True  # from which angles are computed
    inclusive = True  # whether the sum of a token includes its own angle

    @abstractmethod
    def token_angles(self, tokens: Tokens) -> Tensor:
        """Return the angle of each token, [B, M, 1|G, K/2], in at least float32."""

    def panels(self, call: AttentionCall) -> Panels:
        angles = drop_padding(self.token_angles(call.keys), call.keys)  # [.., 1|G, K/2]
        if len(angles):
            caption = "Mean absolute rotation of each pair per token: slow pairs reach far."
            mean = angles.abs().mean(0)
            yield pair_panel("Rotation per token", "mean radians per token", mean, caption)

    def modify(self, call: AttentionCall) -> AttentionCall:
        if call.q.shape[-1] != self.dims.head_dim:
            reason = "rotates pairs of channels, and an encoding before it has made heads wider"
            raise OptionError("encoding", f"{self.name} {reason}")
        # Per-token angles are cached and summed here, after the cache, for queries and keys.
        with disable_autocast(call.q.device):
            angles = call.keys.clear_padding(self.token_angles(call.keys))
            sums = sum_angles(angles) if self.inclusive else sum_angles(angles) - angles
            keys = cos_sin(sums.transpose(1, 2))  # [B, 1|G, M, K/2, 2]
        # Query heads that share a key head have the same rotation.
        if keys.shape[1] > 1:
            keys = keys.repeat_interleave(call.k.shape[1] // keys.shape[1], dim=1)
        queries, before = call.select_queries(keys), call.transform_query

        def transform_query(x: Tensor) -> Tensor:
            return rotate_pairs(before(x).expand(queries.shape[0], -1, -1, -1), queries)

        turned = call.replace(
            q=rotate_pairs(call.q, queries),
            k=rotate_pairs(call.k, keys),
            transform_query=transform_query,
        )
        return self._turn_values(turned, queries, keys) if self.turn_values else turned

    def _turn_values(self, call: AttentionCall, queries: Tensor, keys: Tensor) -> AttentionCall:
        """Turn values by the tables of keys, and outputs back by those of queries."""
        check_turned_values(self, call.v)
        after = call.transform_output

        def transform_output(out: Tensor) -> Tensor:
            back = rotate_back(out, queries)
            return back if after is None else after(back)

        return call.replace(v=rotate_pairs(call.v, keys), transform_output=transform_output)
