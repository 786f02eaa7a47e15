"""The base class of encodings: declared facts, and hooks that rewrite tokens, heads and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Self

from torch import Tensor, nn

from zoo.attention.call import AttentionCall
from zoo.attention.tokens import Tokens, check_tensor
from zoo.errors import OptionError
from zoo.registry import Choices
from zoo.reporting.panel import Panel


@dataclass(frozen=True)
class Dims:
    """The sizes that an encoding is made for.

    Args:
        dim: Model dim D.
        heads: Number of query heads H, a divisor of `dim`.
        axes: Number of coordinates of a token: 1 for text, 2 for images, 3 for video.
        length: Tokens along each axis in training: a number, or one per axis (a tuple or a list).
            Some encodings need it.
        layer: Index of the layer, from 0.
        depth: Number of layers of the model.
        kv_heads: Number of key-value heads G, a divisor of `heads`; by default H. A bias belongs to
            a query head, a rotation to a key head (grouped-query attention, arXiv:2305.13245).
        head_dim: Head dim K; by default `dim` divided by `heads`.

    Raises:
        OptionError: Sizes are not positive or do not divide.
    """

    dim: int
    heads: int
    axes: int = 1
    length: int | Sequence[int] | None = None
    layer: int = 0
    depth: int | None = None
    kv_heads: int | None = None
    head_dim: int = 0

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise OptionError("dim", f"dim {self.dim} is not positive")
        if self.head_dim < 0:
            raise OptionError("head_dim", f"head_dim {self.head_dim} is not positive")
        if self.heads < 1 or (not self.head_dim and self.dim % self.heads):
            raise OptionError("heads", f"dim {self.dim} is not divisible by heads {self.heads}")
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.dim // self.heads)
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise OptionError(
                "kv_heads", f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}"
            )
        if self.length is None:
            return
        length = self.length
        sizes = (length,) * self.axes if isinstance(length, int) else tuple(length)
        object.__setattr__(self, "length", sizes)
        if len(sizes) != self.axes or min(sizes) < 1:
            problem = (
                f"length {self.length} does not give a positive size for each of {self.axes} axes"
            )
            raise OptionError("length", problem)

    @property
    def num_kv_heads(self) -> int:
        """Number of key-value heads G."""
        return self.kv_heads or self.heads

    @property
    def sizes(self) -> tuple[int, ...]:
        """Training size, one number per axis.

        Raises:
            OptionError: `length` was not given.
        """
        if self.length is None:
            raise OptionError(
                "length", "this encoding needs the size of training: Dims(length=...)"
            )
        assert isinstance(self.length, tuple)
        return self.length

    @property
    def tokens(self) -> int:
        """Number of tokens in training."""
        return prod(self.sizes)


class Encoding(nn.Module):
    """The base class of positional encodings.

    Override the hooks that the encoding needs; the default of each changes nothing. Hooks see
    coordinates (`tokens.pos`) under the encoding's convention. Class attributes are declared facts:
    they select the laws that test the encoding.

    Args:
        dims: The sizes to make the encoding for. Options of an encoding are keyword-only arguments.

    Raises:
        OptionError: The encoding does not accept this number of axes, or an option does not fit.
    """

    name = ""
    """Registered name."""

    shared = True
    """One module for all layers, or one per layer."""

    shift_invariant = False
    """Adding one vector to all coordinates changes no score."""

    causal_only = False
    """Requires a causal mask."""

    needs_full_sequence = False
    """Reads the whole sequence before the first layer, so causal models refuse it."""

    axes: tuple[int, ...] = (1,)
    """Accepted numbers of coordinates."""

    axes_reason = ""
    """Why it accepts no other number of axes, and which encoding does; part of an error message."""

    coordinates = "index"
    """Default convention of coordinates."""

    zero_gradient: tuple[str, ...] = ()
    """Parameters whose gradient a softmax makes exactly zero."""

    handles_special_tokens = False
    """Handles tokens without a position itself."""

    siblings: tuple[Self, ...] = ()
    """The instances in all layers of a model, this one included; empty if layers share one."""

    lookback = 0
    """How many tokens before a key its per-token data depends on."""

    consumes_biases = False
    """Takes over the biases of encodings before it in a chain, and needs one."""

    reads_keys = False
    """Uses keys beyond their products with queries, so nothing may change cached keys."""

    no_export_reason = ""
    """Why torch.export cannot capture it for any batch size, length and resolution, if so."""

    identity_at_zero = False
    """Changes nothing if all coordinates are 0; tokens without a position are placed there."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        if dims.axes not in self.axes:
            raise OptionError("name", self._refusal(dims.axes))
        self.dims = dims

    def embed(self, tokens: Tokens) -> Tokens:
        """Change tokens once, before the first layer: add vectors, make tables for all layers.

        Args:
            tokens: Tokens with states [B, N, D].

        Returns:
            The tokens, changed.
        """
        return tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        """Store per-token data or tables of one layer, before keys are cached.

        Args:
            tokens: Tokens with the layer's input [B, N, D].

        Returns:
            The tokens with entries in `per_token`, which travel into caches, or `shared_tables`.
        """
        return tokens

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        """Transform queries token by token, for example by rotations.

        Args:
            q: Queries [B, H, N, K].
            tokens: The N tokens that they belong to.

        Returns:
            Queries [B, H, N, K'], where K' may be larger than K.
        """
        return q

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        """Transform keys token by token, before they are cached; a cached key is final.

        Args:
            k: Keys [B, G, M, K].
            tokens: The M tokens that they belong to.

        Returns:
            Keys [B, G, M, K'], as wide as the queries.
        """
        return k

    def update_cached_keys(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        """Change cached keys by what later tokens say, before they are stored again.

        Args:
            k: Keys [B, G, M, K] of earlier and new tokens.
            tokens: Their tokens; read per-token data and documents only.

        Returns:
            The keys, and the tokens with per-token data cut to the rows that are still needed.
        """
        return k, tokens

    def modify(self, call: AttentionCall) -> AttentionCall:
        """Rewrite the attention call: add biases, transform scores.

        Args:
            call: The call. Of `call.keys`, read coordinates and per-token data, never states.

        Returns:
            The call, changed.
        """
        return call

    def after_attention(self, tokens: Tokens, extra: Tensor) -> Tokens:
        """Take back what was mixed along with the values, after attention and its residual.

        Args:
            tokens: Tokens with the layer's output [B, N, D].
            extra: `extra_values` of the call, averaged with the attention weights, [B, H, N, E].

        Returns:
            The tokens, changed.
        """
        return tokens

    def panels(self, call: AttentionCall) -> Iterable[Panel]:
        """Show what the encoding learned in one layer, and what it did to a call.

        Args:
            call: A call that the other hooks described.

        Returns:
            Panels with detached tensors on the CPU. A panel has the same title in each layer.
        """
        return ()

    def check_options(self) -> None:
        """Raise OptionError if options do not go with the coordinates that a recipe chose.

        Called once after the encoding is built, when `shared` and `coordinates` are known.
        """

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        """Offer extrapolation methods for evaluation past the training size.

        Args:
            factors: Size relative to training, along each axis.

        Returns:
            {method: options that replace the encoding's own}. No method changes a parameter, and
            none applies if a recipe chose other coordinates than the class declares. Without
            options the encoding is already as the method would make it.
        """
        return {}

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        """Adapt a parameter that an encoding of other sizes learned.

        Args:
            name: The parameter's name.
            value: Its learned value.
            source: The encoding that learned it, on the meta device; read its `dims` and options.

        Returns:
            The value for this encoding, or None to keep the initial one. A value of the wrong
            shape is not used. By default, parameters carry over between equal numbers of axes.
        """
        return value if source.dims.axes == self.dims.axes else None

    def _refusal(self, axes: int) -> str:
        accepted = " or ".join(map(str, self.axes))
        noun = "axis" if accepted == "1" else "axes"
        problem = f"{self.name or type(self).__name__} takes {accepted} {noun}, not {axes}"
        reason = self.axes_reason
        if self.causal_only and not reason:
            reason = "it goes by the order of tokens, and a grid has none"
        return f"{problem}: {reason}" if reason else problem


def describe_facts(encoding: type[Encoding] | Encoding) -> dict[str, str]:
    """Return {fact: description} of an encoding or of its class."""
    cls = encoding if isinstance(encoding, type) else type(encoding)
    axes = " or ".join(map(str, encoding.axes))
    final_keys = cls.update_cached_keys is Encoding.update_cached_keys
    shift_invariant = "yes: shifting all coordinates changes no score"
    return {
        "modules": "one for all layers" if encoding.shared else "one per layer",
        "axes": f"{axes}; {encoding.axes_reason}" if encoding.axes_reason else axes,
        "coordinates": encoding.coordinates,
        "shift_invariant": shift_invariant if encoding.shift_invariant else "no",
        "causal_only": _yes_or_no(encoding.causal_only),
        "needs_full_sequence": _yes_or_no(encoding.needs_full_sequence),
        "consumes_biases": _yes_or_no(encoding.consumes_biases),
        "cached_keys": "never changed" if final_keys else "changed by later tokens",
        "special_tokens": "handled by the encoding"
        if encoding.handles_special_tokens
        else "left alone",
    }


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


EncodingFactory = Callable[[Dims], Encoding]
EncodingFactories = Annotated[Mapping[str, EncodingFactory], Choices("encodings")]
"""Factories of a model's encodings by name, from the list in a recipe."""


def check_heads(dims: Dims, q: Tensor, k: Tensor, v: Tensor | None, x: Tensor | None) -> None:
    """Raise OptionError where projected heads or states do not fit an encoding or each other."""
    check_tensor("k", k, [None] * 4, kind="floating")
    batch, kv_heads, count, _ = k.shape
    if kv_heads != dims.num_kv_heads:
        problem = f"keys have {kv_heads} heads, the encoding {dims.num_kv_heads} (Dims.kv_heads)"
        raise OptionError("kv_heads", problem)
    check_tensor("k", k, [None, kv_heads, None, dims.head_dim], kind="floating")
    check_tensor("q", q, [batch, dims.heads, None, dims.head_dim], kind="floating")
    if q.shape[2] > count:
        raise OptionError("q", f"{q.shape[2]} queries are not the last of {count} tokens")
    if v is not None:
        check_tensor("v", v, [batch, kv_heads, count, None], kind="floating")
    if x is not None:
        check_tensor("x", x, [batch, count, dims.dim], kind="floating")
    for key, heads in (("k", k), ("v", v)):
        if heads is not None and heads.dtype != q.dtype:
            raise OptionError(key, f"{key} has the type {heads.dtype}, q {q.dtype}")


def check_coordinates(dims: Dims, pos: Tensor, batch: int, count: int) -> Tensor:
    """Return pos [M, P] or [1|B, M, P]; raise OptionError unless it has this shape."""
    axes = dims.axes
    check_tensor("pos", pos, [count, axes], [batch, count, axes], [1, count, axes])
    return pos


def check_per_token(key: str, value: Tensor | None, kind: str, batch: int, count: int) -> None:
    """Raise OptionError unless a value is [M] or [1|B, M], or None."""
    if value is not None:
        check_tensor(key, value, [count], [batch, count], [1, count], kind=kind)


@contextmanager
def explain_types(module: nn.Module, **arguments: Tensor | None) -> Iterator[None]:
    """Raise OptionError where a computation fails on an argument of another type than the weights.

    Args:
        module: What has the weights.
        **arguments: The arguments by name.
    """
    try:
        yield
    except RuntimeError as error:
        weights = {one.dtype for one in module.parameters() if one.is_floating_point()}
        for key, value in arguments.items():
            if weights and value is not None and value.dtype not in weights:
                known = " and ".join(map(str, weights))
                problem = f"{key} has the type {value.dtype}, the weights {known}; convert either"
                raise OptionError(key, problem) from error
        raise
