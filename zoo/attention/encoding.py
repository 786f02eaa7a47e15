"""The base class of encodings: declared facts and hooks that rewrite tokens, heads and calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from numbers import Integral
from types import NoneType
from typing import Annotated, Any, Self

from torch import Tensor, nn

from zoo.attention.call import AttentionCall
from zoo.attention.tokens import Tokens, check_positions, check_tensor
from zoo.errors import OptionError, refuse_type
from zoo.options import Choice, Choices
from zoo.registry import find, names
from zoo.reporting.panel import Panel
from zoo.suggestions import join_words

MAX_POINT_AXES = 6
POINT_AXES = tuple(range(1, MAX_POINT_AXES + 1))
"""The numbers of axes that points may have."""


@dataclass(frozen=True)
class Dims:
    """The sizes of the model that an encoding is made for.

    Args:
        dim: Model dim D.
        heads: Number of query heads H, a divisor of `dim` unless `head_dim` is given.
        axes: Number of coordinates of a token: 1 for text, 2 for images, 3 for video, 1 to 6 for
            points.
        length: Number of tokens along each axis in training: one integer, or one per axis. Some
            encodings need it.
        layer: Index of the layer, from 0.
        depth: Number of layers of the model.
        kv_heads: Number of key-value heads G, a divisor of `heads`; H by default. A bias belongs to
            a query head, a rotation to a key head (grouped-query attention, arXiv:2305.13245).
        head_dim: Head dim K; `dim` divided by `heads` by default.
        points: Whether tokens are points at any real coordinates, in the units of the data, and not
            the cells of a sequence or a grid.

    Raises:
        OptionError: A size is not positive, or one does not divide another.
    """

    dim: int
    heads: int
    axes: int = 1
    length: int | Sequence[int] | None = None
    layer: int = 0
    depth: int | None = None
    kv_heads: int | None = None
    head_dim: int = 0
    points: bool = False

    def __post_init__(self) -> None:
        for key in ("dim", "heads", "axes", "layer", "depth", "kv_heads", "head_dim"):
            if not isinstance(size := getattr(self, key), Integral | NoneType):
                raise refuse_type(key, size, "an integer")
        if self.dim < 1:
            raise OptionError("dim", f"dim {self.dim} is not positive")
        if self.head_dim < 0:
            raise OptionError("head_dim", f"head_dim {self.head_dim} is not positive")
        if self.heads < 1 or (not self.head_dim and self.dim % self.heads):
            raise OptionError("heads", f"dim {self.dim} is not divisible by heads {self.heads}")
        if not self.head_dim:
            # The dataclass is frozen; derived defaults are set once, here.
            object.__setattr__(self, "head_dim", self.dim // self.heads)
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise OptionError(
                "kv_heads", f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}"
            )
        if self.length is None:
            return

        # One integer is the size of every axis; `length` becomes a tuple in any case.
        length = self.length
        sizes = (length,) * self.axes if isinstance(length, int) else tuple(length)
        object.__setattr__(self, "length", sizes)
        if len(sizes) != self.axes or min(sizes) < 1:
            message = (
                f"length {self.length} does not give a positive size for each of {self.axes} axes"
            )
            raise OptionError("length", message)

    @property
    def num_kv_heads(self) -> int:
        """Number of key-value heads G."""
        return self.kv_heads or self.heads

    @property
    def sizes(self) -> tuple[int, ...]:
        """Training size in tokens, one number per axis.

        Raises:
            OptionError: `length` was not given.
        """
        if self.length is None:
            raise OptionError("length", "this encoding needs the training size: Dims(length=...)")
        assert isinstance(self.length, tuple)
        return self.length

    @property
    def tokens(self) -> int:
        """Number of tokens in training."""
        return prod(self.sizes)


class Encoding(nn.Module):
    """The base class of positional encodings.

    Override the hooks that the encoding needs; by default each hook changes nothing. Hooks see
    coordinates (`tokens.pos`) under the encoding's convention. Class attributes are declared facts,
    which select the laws that test the encoding. Options are keyword-only arguments of `__init__`.

    Args:
        dims: The sizes of the model.

    Raises:
        OptionError: The encoding does not accept this number of axes, or an option does not fit.
    """

    name = ""
    """Registered name."""

    part = ""
    """The part that the encoding changes: a key of `registry.GROUPS`, which heads its list."""

    shared = True
    """True if all layers use one module; False if each layer has its own."""

    shift_invariant = False
    """True if adding one vector to all coordinates changes no score."""

    causal_only = False
    """True if the encoding requires a causal mask."""

    needs_full_sequence = False
    """True if it reads the whole sequence before the first layer; causal models refuse it."""

    adds_to_input = False
    """True if `embed` adds to the states, so that it belongs to a model and not to some layers."""

    axes: tuple[int, ...] = (1,)
    """Accepted numbers of axes."""

    point_axes: tuple[int, ...] = ()
    """Accepted numbers of axes of points at real coordinates, such as time stamps. Empty if its
    formula counts tokens or needs their training size."""

    axes_reason = ""
    """Why it accepts no other number of axes, and which encoding does. Part of an error message."""

    coordinates = "index"
    """Default convention of coordinates."""

    zero_gradient: tuple[str, ...] = ()
    """Names of parameters whose gradient is exactly zero under a softmax."""

    handles_special_tokens = False
    """True if the encoding itself exempts tokens without a position."""

    siblings: tuple[Self, ...] = ()
    """The instances of all layers that have one each, including this one. Empty if they share one.
    """

    entry: Choice | None = None
    """The name and options that it was made with, as a recipe lists them."""

    lookback = 0
    """Number of tokens before a key on which its per-token data depends."""

    text_length: int | None = None
    """Length of the full text that it is made for, past which it refuses positions; None for any
    length."""

    consumes_biases = False
    """True if it takes over the biases of encodings before it in a chain. It needs at least one."""

    reads_states = False
    """True if scores depend on the states of tokens beyond queries and keys. `zoo.functional` then
    needs these states."""

    reads_positions = True
    """False if coordinates change nothing: it uses the order or the number of tokens, or nothing.
    """

    reads_keys = False
    """True if it uses keys beyond their products with queries, so that none may be updated."""

    no_export_reason = ""
    """Why torch.export cannot capture it for all batch sizes, lengths and resolutions. Empty if it
    can."""

    one_grid_reason = ""
    """Why all images of a batch need grids of one size. Empty if they do not."""

    turn_values = False
    """True if values turn as keys do, and outputs turn back. Rotations have an option for it."""

    identity_at_zero = False
    """True if it changes nothing at coordinates 0, where tokens without a position are placed."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        if refusal := self.explain_misfit(dims):
            raise OptionError("name", refusal, subject=self.name)
        self.dims = dims

    def embed(self, tokens: Tokens) -> Tokens:
        """Change tokens once, before the first layer: add vectors, or make tables for all layers.

        Args:
            tokens: Tokens with states [B, N, D].

        Returns:
            The changed tokens.
        """
        return tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        """Attach per-token data or tables for one layer, before keys are cached.

        Args:
            tokens: Tokens with the layer's input [B, N, D].

        Returns:
            The tokens with new entries in `per_token`, which are cached, or in `shared_tables`.
        """
        return tokens

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        """Transform queries token by token, for example by rotations.

        Args:
            q: Queries [B, H, N, K].
            tokens: The N tokens of the queries.

        Returns:
            Queries [B, H, N, K'], where K' may be larger than K.
        """
        return q

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        """Transform keys token by token, before they are cached; a cached key is final.

        Args:
            k: Keys [B, G, M, K].
            tokens: The M tokens of the keys.

        Returns:
            Keys [B, G, M, K'], as wide as the queries.
        """
        return k

    def transform_value(self, v: Tensor, tokens: Tokens, *, back: bool = False) -> Tensor:
        """Transform values token by token, before they are cached, or outputs back.

        It is called if `turn_values` is true. At coordinates 0, where tokens without a position are
        placed, both must cancel.

        Args:
            v: Values [B, G, M, K], or with `back` outputs [B, H, N, K].
            tokens: Their tokens; those of the queries with `back`.
            back: Whether to apply the inverse, to outputs.

        Returns:
            The transformed values or outputs, in the same shape.
        """
        return v

    def update_cached_keys(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        """Update cached keys with the data of later tokens, before they are stored again.

        Args:
            k: Keys [B, G, M, K] of earlier and new tokens.
            tokens: Their tokens. Read only their per-token data and documents.

        Returns:
            The keys, and the tokens with per-token data reduced to the rows that are still needed.
        """
        return k, tokens

    def modify(self, call: AttentionCall) -> AttentionCall:
        """Rewrite the attention call: add biases, or transform scores.

        Args:
            call: The call. Read the coordinates and per-token data of `call.keys`, never their
                states, which a cache does not keep.

        Returns:
            The changed call.
        """
        return call

    def after_attention(self, tokens: Tokens, extra: Tensor) -> Tokens:
        """Receive the averages of the call's extra values, after attention and its residual.

        Args:
            tokens: Tokens with the layer's output [B, N, D].
            extra: `extra_values` of the call, averaged with the attention weights [B, H, N, E].

        Returns:
            The changed tokens.
        """
        return tokens

    def panels(self, call: AttentionCall) -> Iterable[Panel]:
        """Return panels that show what the encoding learned in one layer and did to a call.

        Args:
            call: A call to which the other hooks were applied.

        Returns:
            Panels with detached tensors on the CPU. A panel has the same title in each layer.
        """
        return ()

    def pair_waves(self, call: AttentionCall) -> Tensor | None:
        """Return by how much each pair of channels turns from a token to the next, for diagnostics.

        Args:
            call: A call to which the other hooks were applied.

        Returns:
            Radians per token or patch along each axis, [P, 1|G, pairs], on the CPU. Pair t is
            channels (2t, 2t + 1) of the transformed queries and keys of the call. None if the
            encoding turns no pairs by the position times a constant.
        """
        return None

    def check_options(self) -> None:
        """Check the options against the coordinates that a recipe chose.

        It is called once after the encoding is built, when `shared` and `coordinates` are known.

        Raises:
            OptionError: An option does not fit the coordinates.
        """

    def check_positions(self, pos: Tensor, has_position: Tensor | None = None) -> None:
        """Check that the encoding can read positions, such as those that a training will draw.

        By default it can read any.

        Args:
            pos: Coordinates [.., P] under the encoding's convention.
            has_position: Which tokens have a position, [1|B, N]; None: all.

        Raises:
            OptionError: A position is outside a table.
        """

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        """Return the extrapolation methods for evaluation beyond the training size.

        Args:
            factors: Size relative to the training size, along each axis.

        Returns:
            {method: options that replace the encoding's own}. No method changes a parameter, and
            none applies if a recipe chose other coordinates than the class declares. Empty options
            mean that the encoding already does what the method would do.
        """
        return {}

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        """Adapt a learned parameter of an encoding with other sizes to this one.

        Args:
            name: The parameter's name.
            value: Its learned value.
            source: The encoding that learned it, on the meta device: read only `dims` and options.

        Returns:
            The value for this encoding, or None to keep the initial value. A value of the wrong
            shape is ignored. By default, parameters carry over between equal numbers of axes.
        """
        return value if source.dims.axes == self.dims.axes else None

    @classmethod
    def explain_misfit(cls, dims: Dims, *, causal: bool = True) -> str:
        """Return why the declared facts exclude a kind of model, whatever the options.

        Args:
            dims: The sizes of the model, of which only the number and kind of axes count.
            causal: Whether the model has a causal mask.

        Returns:
            The reason; empty if the encoding is applicable.
        """
        name = cls.name or cls.__name__
        if dims.axes not in (cls.point_axes if dims.points else cls.axes):
            return cls._refuse_axes(name, dims)
        if cls.causal_only and not causal:
            return f"{name} needs a causal mask, which this model does not have"
        return ""

    @classmethod
    def _refuse_axes(cls, name: str, dims: Dims) -> str:
        """Return the message about a number of axes that this encoding does not accept."""
        if dims.points:
            where = f"points on {dims.axes} {'axis' if dims.axes == 1 else 'axes'}"
            readers = list_point_encodings(dims.axes)
            suggestion = f", which have 1 to {MAX_POINT_AXES}"
            if readers:
                suggestion = f"; these do: {join_words(readers)}"
            return f"{name} does not read {where}{suggestion}"
        accepted = join_words(cls.axes, "or")
        noun = "axis" if accepted == "1" else "axes"
        refusal = f"{name} takes {accepted} {noun}, not {dims.axes}"
        reason = cls.axes_reason
        if cls.causal_only and not reason:
            reason = "it depends on the order of tokens, and a grid has none"
        return f"{refusal}: {reason}" if reason else refusal


def list_point_encodings(axes: int) -> list[str]:
    """Return the names of the encodings that read points on so many axes."""
    return [name for name in names("encodings") if axes in find("encodings", name).point_axes]


def describe_facts(encoding: type[Encoding] | Encoding) -> dict[str, str]:
    """Return the declared facts of an encoding or of its class, {fact: description}."""
    cls = encoding if isinstance(encoding, type) else type(encoding)
    axes = join_words(encoding.axes, "or")
    final_keys = cls.update_cached_keys is Encoding.update_cached_keys
    shift_invariant = "yes: shifting all coordinates changes no score"
    return {
        "modules": "one for all layers" if encoding.shared else "one per layer",
        "axes": f"{axes}; {encoding.axes_reason}" if encoding.axes_reason else axes,
        "points": _span(encoding.point_axes) if encoding.point_axes else "no",
        "coordinates": encoding.coordinates,
        "shift_invariant": shift_invariant if encoding.shift_invariant else "no",
        "causal_only": _yes_or_no(encoding.causal_only),
        "needs_full_sequence": _yes_or_no(encoding.needs_full_sequence),
        "consumes_biases": _yes_or_no(encoding.consumes_biases),
        "reads_states": _yes_or_no(encoding.reads_states),
        "cached_keys": "never changed" if final_keys else "changed by later tokens",
        "special_tokens": "handled by the encoding"
        if encoding.handles_special_tokens
        else "left alone",
    }


def _span(numbers: tuple[int, ...]) -> str:
    fewest, most = numbers[0], numbers[-1]
    if fewest == most == 1:
        return "1 axis"
    return f"{fewest} to {most} axes"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def check_turned_values(encoding: Encoding, v: Tensor) -> None:
    """Check that values [B, H, N, V] are as wide as keys, whose rotations turn them.

    Raises:
        OptionError: They are not.
    """
    if v.shape[-1] != encoding.dims.head_dim:
        message = f"values of {v.shape[-1]} channels cannot turn as keys of"
        hint = "leave turn_values out"
        raise OptionError("turn_values", f"{message} {encoding.dims.head_dim} do; {hint}")


EncodingFactory = Callable[[Dims], Encoding]
EncodingFactories = Annotated[Mapping[str, EncodingFactory], Choices("encodings")]
"""Factories of a model's encodings by name, made from the list in a recipe."""


def check_heads(dims: Dims, q: Tensor, k: Tensor, v: Tensor | None, x: Tensor | None) -> None:
    """Check projected heads and states against the sizes of an encoding and each other.

    Args:
        dims: The sizes of the encoding.
        q: Queries [B, H, N, K].
        k: Keys [B, G, M, K], of which the queries are the last N.
        v: Values [B, G, M, V], or None.
        x: Token states [B, M, D], or None.

    Raises:
        OptionError: A shape or dtype does not fit.
    """
    # The keys give the batch size and the number of tokens, which all others must match.
    check_tensor("k", k, [None] * 4, kind="floating")
    batch, kv_heads, count, _ = k.shape
    if kv_heads != dims.num_kv_heads:
        message = f"keys have {kv_heads} heads, the encoding {dims.num_kv_heads} (Dims.kv_heads)"
        raise OptionError("kv_heads", message)
    check_tensor("k", k, [None, kv_heads, None, dims.head_dim], kind="floating")
    keys = ("k", k)
    check_tensor("q", q, [batch, dims.heads, None, dims.head_dim], kind="floating", like=keys)
    if q.shape[2] > count:
        raise OptionError("q", f"{q.shape[2]} queries are not the last of {count} tokens")
    if v is not None:
        check_tensor("v", v, [batch, kv_heads, count, None], kind="floating", like=keys)
    if x is not None:
        check_tensor("x", x, [batch, count, dims.dim], kind="floating", like=keys)
    for key, heads in (("k", k), ("v", v)):
        if heads is not None and heads.dtype != q.dtype:
            raise OptionError(key, f"{key} has the type {heads.dtype}, q {q.dtype}")


def check_coordinates(
    dims: Dims, pos: Tensor, tokens: tuple[str, Tensor], has_position: Tensor | None = None
) -> Tensor:
    """Check that `pos` is [M, P] or [1|B, M, P] with values that encodings can read, and return it.

    Args:
        dims: The sizes of the encoding.
        pos: The coordinates.
        tokens: The name and the value of an argument [B, .., M, C] with the same tokens.
        has_position: Which tokens have a position, [M] or [1|B, M]; None: all.

    Raises:
        OptionError: It has another shape or device, or the coordinate of a token that has a
            position is not finite.
    """
    batch, count, axes = len(tokens[1]), tokens[1].shape[-2], dims.axes
    check_tensor("pos", pos, [count, axes], [batch, count, axes], [1, count, axes], like=tokens)
    check_positions(pos, has_position)
    return pos


def check_per_token(key: str, value: Tensor | None, kind: str, tokens: tuple[str, Tensor]) -> None:
    """Check that a value per token is [M] or [1|B, M], or None.

    Args:
        key: Name of the argument.
        value: Its value.
        kind: The accepted dtypes; see `check_tensor`.
        tokens: The name and the value of an argument [B, .., M, C] with the same tokens.

    Raises:
        OptionError: It has another shape or device, or a dtype that is not of this kind.
    """
    if value is not None:
        batch, count = len(tokens[1]), tokens[1].shape[-2]
        check_tensor(key, value, [count], [batch, count], [1, count], kind=kind, like=tokens)


@contextmanager
def explain_types(module: nn.Module, **arguments: Tensor | None) -> Iterator[None]:
    """Turn an error of torch about mixed dtypes into one that names the argument.

    Args:
        module: The module with the weights.
        **arguments: The arguments by name.

    Raises:
        OptionError: An argument is on another device than the weights, or the computation failed
            and an argument has another dtype.
    """
    weight = next(itertools.chain(module.parameters(), module.buffers()), None)
    for key, value in arguments.items():
        if weight is not None and isinstance(value, Tensor):
            check_tensor(key, value, value.shape, like=("the encoding", weight))
    try:
        yield
    except RuntimeError as error:
        dtypes = {
            parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()
        }
        for key, value in arguments.items():
            if dtypes and value is not None and value.dtype not in dtypes:
                expected = join_words(dtypes)
                message = (
                    f"{key} has the type {value.dtype}, the weights {expected}; convert either"
                )
                raise OptionError(key, message) from error
        raise
