"""Tokens: their states, positions and documents, and what encodings attach to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn import functional as F

from zoo.errors import OptionError, refuse_type
from zoo.suggestions import join_words

Data = TypeVar("Data")
Join = Callable[[str, Tensor, Tensor], Tensor]
"""(name of a field, its rows [1|B, N, ...] for some tokens, its rows for later tokens) -> all rows.
"""


@dataclass(frozen=True)
class Tokens:
    """N tokens of B samples.

    Every field except `x` may have batch size 1 (`1|B`), which means the same for all samples.
    """

    x: Tensor
    """States [B, N, D]."""

    index: Tensor
    """Grid indices or sequence positions [1|B, N, P], at least float32."""

    grid_size: Tensor | None
    """Size of the grid, or of the token's document, along each axis [1|B, 1|N, P]. None: `index`
    already holds coordinates, to which no convention applies."""

    pos: Tensor
    """Coordinates [1|B, N, P]: `index` under the convention of the encoding that is called."""

    has_position: Tensor | None = None
    """bool [1|B, N], False for CLS and register tokens. None: all tokens have a position."""

    document: Tensor | None = None
    """Document numbers, int [1|B, N], -1 for padding, wherever it stands: a document continues
    after padding inside it. None: one document without padding."""

    ordered: bool = False
    """True if coordinates never decrease within a document, so that under a causal mask no visible
    key is ahead of its query."""

    per_token: Mapping[str, Tensor] = field(default_factory=dict)
    """Values that encodings attach, {name: [1|B, N, ...]}. They are cached with the tokens.

    An encoding that needs only recent values may keep those of the last n tokens.
    """

    shared_tables: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    """Tables that encodings compute for these tokens and this pass. They are not cached."""

    consecutive: bool = False
    """True if coordinates grow by 1 from token to token within a document, so that the offset of a
    pair is the difference of its sequence indices."""

    @classmethod
    def at(
        cls,
        x: Tensor,
        pos: Tensor,
        has_position: Tensor | None = None,
        document: Tensor | None = None,
        ordered: bool = False,
    ) -> Tokens:
        """Create tokens with states [B, N, D] at coordinates [N, P] or [B, N, P].

        Coordinates are converted to the wider of their own dtype and that of x, at least float32.
        `has_position` and `document` are [N] or [B, N].
        """
        pos = upcast(pos if pos.dim() == 3 else pos[None])
        pos = pos.to(torch.promote_types(pos.dtype, x.dtype))
        if has_position is not None and has_position.dim() == 1:
            has_position = has_position[None]
        if document is not None and document.dim() == 1:
            document = document[None]
        return cls(x, pos, None, pos, has_position, document, ordered)

    def __len__(self) -> int:
        """Return the number of tokens N.

        Code that torch.export captures reads `x.shape[1]` instead, which stays variable.
        """
        return self.x.shape[1]

    def replace(self, **changes: object) -> Tokens:
        """Return the tokens with some fields replaced."""
        return replace_fields(self, changes)

    def with_per_token(self, **values: Tensor) -> Tokens:
        """Return the tokens with more values per token, [1|B, N, ...]."""
        return self.replace(per_token={**self.per_token, **values})

    @property
    def valid(self) -> Tensor | None:
        """Bool [1|B, N], False for padding; None if there is none."""
        return None if self.document is None else self.document >= 0

    def clear_padding(self, values: Tensor) -> Tensor:
        """Set values per token [1|B, N, ...] of padding to 0, so that it adds nothing to sums."""
        if self.valid is None:
            return values
        axes = (1,) * (values.dim() - 2)
        return values.masked_fill(~self.valid.reshape(*self.valid.shape, *axes), 0)

    def last(self, count: int, lookback: int = 0) -> Tokens:
        """Return the last `count` tokens, and before them the `lookback` others that came last.

        Padding does not count as one of these others if there is enough else.
        """
        total = self.x.shape[1]
        if count + lookback >= total:
            return self
        if lookback and self.document is not None:
            order = find_last_before(self.document, count, lookback)
            return self.map_values(lambda values: _move_before(values, order, count, total))
        count += lookback
        # Some values may already be cut to fewer tokens (see `per_token`): slice from the end.
        return self.map_values(lambda values: values[:, max(values.shape[1] - count, 0) :])

    def select(self, indices: Tensor) -> Tokens:
        """Return the tokens at sequence indices [n], for which all values must exist."""
        return self.map_values(lambda values: values[:, indices]).replace(consecutive=False)

    def select_rows(self, rows: Tensor) -> Tokens:
        """Return the tokens of other rows of the batch, int [b]; shared values stay shared."""
        return self.map_values(lambda values: select_rows(values, rows))

    def detach(self) -> Tokens:
        """Return the tokens without gradients."""
        return self.map_values(Tensor.detach)

    def drop_states(self) -> Tokens:
        """Return the tokens with states of width 0, as a KV cache keeps them."""
        return self.replace(x=self.x[..., :0])

    def take_tables(self, other: Tokens) -> Tokens:
        """Return the tokens with the tables and values per token of other ones, and no more."""
        return self.replace(per_token=other.per_token, shared_tables=other.shared_tables)

    def join(
        self, later: Tokens, join: Join = lambda name, first, second: concat(first, second)
    ) -> Tokens:
        """Return these tokens followed by `later` ones, which must have the same values per token.

        Args:
            later: The tokens that follow.
            join: Joins the rows of one field; a cache appends them in place.
        """
        # Under the convention `index` both fields are one tensor, which is joined only once.
        is_index = self.pos is self.index and later.pos is later.index
        index = join("index", self.index, later.index)

        # None means the default for all tokens; it is written out where the other side has values.
        has_position, document = self.has_position, self.document
        if has_position is not None or later.has_position is not None:
            first = self._fill(has_position, True)
            has_position = join("has_position", first, later._fill(later.has_position, True))
        if document is not None or later.document is not None:
            document = join("document", self._fill(document, 0), later._fill(later.document, 0))

        return Tokens(
            join("x", self.x, later.x),
            index,
            later.grid_size,
            index if is_index else join("pos", self.pos, later.pos),
            has_position,
            document,
            self.ordered and later.ordered,
            {
                name: join(f"per_token.{name}", values, later.per_token[name])
                for name, values in self.per_token.items()
            },
            consecutive=self.consecutive and later.consecutive,
        )

    def _fill(self, values: Tensor | None, default: int | bool) -> Tensor:
        """Return the values, or the default [1, N] if they are None."""
        if values is not None:
            return values
        dtype = torch.bool if default is True else torch.long
        return self.x.new_full((1, self.x.shape[1]), default, dtype=dtype)

    def map_values(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        """Apply `change` to every field with a token axis, and drop tables, which no longer fit."""

        def change_optional(values: Tensor | None) -> Tensor | None:
            return None if values is None else change(values)

        # One size for all tokens, [1|B, 1, P], has no token axis.
        grid_size = self.grid_size
        if grid_size is not None and grid_size.shape[1] > 1:
            grid_size = change(grid_size)
        index = change(self.index)
        return Tokens(
            change(self.x),
            index,
            grid_size,
            index if self.pos is self.index else change(self.pos),
            change_optional(self.has_position),
            change_optional(self.document),
            self.ordered,
            {name: change(values) for name, values in self.per_token.items()},
            consecutive=self.consecutive,
        )


def replace_fields(data: Data, changes: Mapping[str, object]) -> Data:
    """Return a copy of a dataclass with some fields replaced.

    It is four times faster than `dataclasses.replace`, which matters at 50 calls per step.
    """
    assert changes.keys() <= vars(data).keys(), f"no such field among {sorted(changes)}"
    new = object.__new__(type(data))
    vars(new).update(vars(data), **changes)
    return new


def concat(first: Tensor, second: Tensor, axis: int = 1) -> Tensor:
    """Concatenate [1|B, .., n, ..] along an axis, broadcasting the batch."""
    if first.shape[0] != second.shape[0]:
        batch = max(first.shape[0], second.shape[0])
        first = first.expand(batch, *first.shape[1:])
        second = second.expand(batch, *second.shape[1:])
    return torch.cat([first, second], dim=axis)


def select_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Select rows, int [b], of [1|B, ..]; a batch of 1 stands for all rows and is returned."""
    is_shared = len(values) == 1
    return values if is_shared else values.index_select(0, rows.to(values.device))


def order_padding_first(document: Tensor) -> Tensor:
    """Return the order of tokens int [1|B, N] that has padding first, then all others in sequence.

    Neighbours of a document are then next to each other, also across padding between them.
    """
    return (document >= 0).int().argsort(dim=1, stable=True)


def find_last_before(document: Tensor, count: int, lookback: int) -> Tensor:
    """Return which tokens before the last `count` came last, int [1|B, lookback].

    Padding is among them only if there is not enough else.
    """
    before = document.shape[1] - count
    return order_padding_first(document[:, :before])[:, before - lookback :]


def take_tokens(values: Tensor, order: Tensor) -> Tensor:
    """Return values [1|B, N, ...] in another order of the tokens, int [1|B, n], for each sample."""
    batch = max(len(values), len(order))
    axes = values.shape[2:]
    index = order.reshape(*order.shape, *(1,) * len(axes)).expand(batch, -1, *axes)
    return values.expand(batch, *values.shape[1:]).gather(1, index)


def _move_before(values: Tensor, order: Tensor, count: int, total: int) -> Tensor:
    """Return the last `count` rows of [1|B, total, ...], after some of the others, int [1|B, n].

    Values that are already cut to fewer tokens are returned unchanged.
    """
    if values.shape[1] < total:
        return values
    earlier = take_tokens(values[:, : total - count], order)
    return concat(earlier, values[:, total - count :])


def upcast(tensor: Tensor) -> Tensor:
    """Convert to at least float32, as angles, exponentials and long sums require."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def has_variable_sizes() -> bool:
    """Return whether torch.export is capturing a graph for inputs of any size.

    In such a graph the number of tokens is symbolic: no loop can run over tokens. A graph for ONNX
    cannot write to a view either.
    """
    return torch.compiler.is_exporting()


def is_transformed(*tensors: Tensor | None) -> bool:
    """Return whether torch.func transforms this computation, or tensors carry tangents.

    vmap, grad, vjp and jvp follow plain operations only: no `out=`, no value that is read, no
    autograd function without rules of its own.
    """
    # torch itself asks this before it applies an autograd function. The public ways to find out
    # apply one with a vmap rule, which takes 50 microseconds.
    if torch._C._are_functorch_transforms_active():
        return True
    if torch.compiler.is_compiling():
        return False
    for tensor in tensors:
        if tensor is None:
            continue
        # gradients under `is_grads_batched` are batched without a transform of torch.func
        is_batched = torch._C._functorch.is_legacy_batchedtensor(tensor)
        if is_batched or unpack_dual(tensor).tangent is not None:
            return True
    return False


def silu(x: Tensor) -> Tensor:
    """Compute x sigmoid(x); the gradient of torch's own function has no derivative forward."""
    return x * x.sigmoid() if is_transformed(x) else F.silu(x)


def is_derived_again(*gradients: Tensor) -> bool:
    """Return whether a backward pass will be differentiated or is transformed.

    A backward pass then uses plain operations.
    """
    # Grad mode is on in a backward pass only with create_graph; a compiler always sets it.
    is_recorded = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return is_recorded or is_transformed(*gradients)


def disable_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast, for values that half precision would ruin."""
    # Autocast does not know the device type meta.
    kind = "cpu" if device.type == "meta" else device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def pick(values: Tensor, b: Tensor, n: Tensor) -> Tensor:
    """Index values [1|B, N, ...] as `values[b, n]`; a batch of 1 broadcasts."""
    return values[0][n] if values.shape[0] == 1 else values[b, n]


INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
"""The integer dtypes for which torch has all operations."""
LARGEST_POSITION = 2.0**31
"""The largest coordinate. Beyond it, encodings that count in integers would overflow."""


def check_tensor(
    key: str,
    value: Any,
    *shapes: Sequence[int | None],
    kind: str = "real",
    like: tuple[str, Tensor] | None = None,
) -> None:
    """Check a tensor that a user passed.

    Args:
        key: Name of the argument.
        value: Its value.
        *shapes: The accepted shapes; None stands for any size.
        kind: The accepted dtypes: "real", "floating", "integer" or "boolean".
        like: The name and the value of an argument on whose device it must be. None: any device.

    Raises:
        OptionError: The value is not a tensor, or has another kind of dtype, another shape or
            another device.
    """
    if not isinstance(value, Tensor):
        raise OptionError(key, f"{key} is {type(value).__name__}, not a tensor")
    fits = {
        "real": not value.is_complex(),
        "floating": value.is_floating_point(),
        "integer": value.dtype in INTEGERS,
        "boolean": value.dtype == torch.bool,
    }
    if not fits[kind]:
        raise OptionError(key, f"{key} has the type {value.dtype}, not {kind}")
    if not any(_has_shape(value, shape) for shape in shapes):
        names = [str(["*" if size is None else size for size in shape]) for shape in shapes]
        wanted = join_words(dict.fromkeys(names), "or").replace("'", "")
        raise OptionError(key, f"{key} has the shape {list(value.shape)}, not {wanted}")
    if like is not None and value.device != like[1].device:
        message = f"{key} is on the device {value.device}, {like[0]} on {like[1].device}"
        raise OptionError(key, f"{message}; move one of them")


def _has_shape(value: Tensor, shape: Sequence[int | None]) -> bool:
    pairs = zip(shape, value.shape, strict=False)
    return len(shape) == value.dim() and all(
        size is None or size == actual for size, actual in pairs
    )


def check_count(key: str, value: object, least: int = 1) -> None:
    """Raise OptionError if a value is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise refuse_type(key, value, "an integer")
    if int(value) < least:
        raise OptionError(key, f"{key} is {value}, expected at least {least}")


def check_switch(key: str, value: object) -> None:
    """Raise OptionError if a value is not true or false."""
    if not isinstance(value, bool):
        raise refuse_type(key, value, "True or False")


def check_rows(kept: Tensor, new: Tensor) -> None:
    """Check that a call continues what a memory of earlier calls keeps.

    Args:
        kept: What the memory keeps of earlier tokens, [B, N, C] or [B, G, N, K].
        new: The same of this call. A memory of one row continues in all rows.

    Raises:
        OptionError: Batch, heads, channels or device differ.
    """
    if len(kept) not in (1, len(new)):
        message = f"context holds {len(kept)} rows, and this call has {len(new)}"
        hint = "choose the rows with context.reorder, or begin with a new one"
        raise OptionError("context", f"{message}; {hint}")
    for axis, noun in ((-3, "heads"), (-1, "channels")):
        if kept.dim() + axis > 0 and kept.shape[axis] != new.shape[axis]:
            message = f"context holds {kept.shape[axis]} {noun}, and this call has"
            raise OptionError("context", f"{message} {new.shape[axis]}: it is of another model")
    if kept.device != new.device:
        message = f"context is on the device {kept.device}, this call on {new.device}"
        raise OptionError("context", f"{message}; begin with a new one")


def check_row_numbers(rows: Tensor, kept: Tensor) -> None:
    """Check the rows that `reorder` takes.

    Args:
        rows: Numbers of rows, int [b].
        kept: What a memory keeps, [B, ...].

    Raises:
        OptionError: They are no numbers of rows of the memory.
    """
    check_tensor("rows", rows, [None], kind="integer")
    if rows.is_meta != kept.is_meta:
        raise OptionError("rows", f"rows are on {rows.device}, context on {kept.device}")
    if _is_refuted(((rows >= 0) & (rows < len(kept))).all(), "rows are not in context"):
        message = f"rows are {rows.tolist()}, and context holds {len(kept)}, counted from 0"
        raise OptionError("rows", message)


def _is_refuted(condition: Tensor, message: str) -> bool:
    """Return whether a condition is false, where the host can know it without waiting.

    A GPU ends with the message itself, when it reaches the condition.
    """
    if not has_values(condition):
        return False
    if condition.device.type == "cuda":
        torch._assert_async(condition, message)
        return False
    return not bool(condition)


def has_values(value: Tensor) -> bool:
    """Return whether values can be read: not those of a meta tensor, nor while a graph is made."""
    return not value.is_meta and not torch.compiler.is_compiling()


def check_positions(pos: Tensor, has_position: Tensor | None = None) -> None:
    """Check the values of coordinates, where they can be read.

    Args:
        pos: Coordinates [M, P] or [1|B, M, P].
        has_position: Which tokens have a position, [M] or [1|B, M]; the coordinates of others are
            never used, so that they may have any value. None: all.

    Raises:
        OptionError: A coordinate is not finite, or too large.
    """
    if not has_values(pos):
        return
    # NaN compares false
    is_wrong = ~(pos.abs() <= LARGEST_POSITION)
    if has_position is not None:
        is_wrong = is_wrong & has_position[..., None]
    if bool(is_wrong.any()):
        wrong = float(pos.expand_as(is_wrong)[is_wrong][0])
        message = f"pos has the coordinate {wrong:g}, which is not"
        raise OptionError("pos", f"{message} a finite number up to {LARGEST_POSITION:.0f}")


def check_documents(document: Tensor) -> None:
    """Check that no document continues after another one, where the numbers can be read.

    Positions restart with each run of a number, and tokens see all others with their number: for
    [0, 1, 0, 1] the two would contradict each other.

    Args:
        document: Document numbers [B, N], -1 for padding.

    Raises:
        OptionError: The tokens of a document are apart.
    """
    if not has_values(document):
        return
    filled = fill_padding(document, None)
    counts = (filled[:, 1:] != filled[:, :-1]).sum(1)
    ordered = filled.sort(1).values
    are_together = (counts == (ordered[:, 1:] != ordered[:, :-1]).sum(1)).all()
    message = "document: the tokens of a document are apart, as in [0, 1, 0]"
    if _is_refuted(are_together, message):
        raise OptionError("document", f"{message}; number each run of tokens, or pass pos")


def document_positions(documents: Tensor) -> Tensor:
    """Count positions from 0 within each run of equal document numbers, [B, N] -> [B, N].

    Padding (-1) counts for nothing: a document continues after it. Its own position is 0.
    """
    # Subtract the rank of each token's first token, a running maximum over first tokens.
    filled, is_real = fill_padding(documents, None), documents >= 0
    ranks = is_real.cumsum(1) - 1
    is_first = torch.ones_like(is_real)
    is_first[:, 1:] = filled[:, 1:] != filled[:, :-1]
    starts = torch.where(is_first, ranks, 0).cummax(1).values
    return torch.where(is_real, ranks - starts, 0)


def document_lengths(documents: Tensor) -> Tensor:
    """Count the tokens of each token's document, [B, N] -> [B, N]."""
    return (documents[:, None] == documents[..., None]).sum(-1)


def fill_padding(document: Tensor, before: Tensor | None) -> Tensor:
    """Replace the number of padding in [1|B, N] by that of the document before it.

    The document then continues after the padding. `before` is the last document of earlier calls,
    int [1|B].
    """
    # The index of the last real token up to each token; -1 before the first one.
    indices = torch.arange(document.shape[1], device=document.device)
    sources = torch.where(document >= 0, indices, -1).cummax(1).values
    earlier = document.new_full((1,), -1) if before is None else before
    return torch.where(sources >= 0, document.gather(1, sources.clamp(min=0)), earlier[:, None])
