"""The hooks through which an encoding rewrites tokens, heads and attention calls, and the chain that folds several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Self

from torch import Tensor, nn

from zoo.attention.call import AttentionCall
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError
from zoo.registry import Choices
from zoo.reporting.panel import Panel


@dataclass(frozen=True)
class Dims:
    """Sizes that an encoding is made for. `length` is the size of training, a number or one per axis.

    `kv_heads` is the number of heads that keys and values have where queries share them (arXiv:2305.13245); by default
    each query head has its own. A bias belongs to its query head, a rotation to its key head.
    """

    dim: int
    heads: int
    axes: int = 1
    length: int | tuple[int, ...] | None = None
    layer: int = 0
    depth: int | None = None
    kv_heads: int | None = None

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise OptionError("dim", f"dim {self.dim} is not positive")
        if self.heads < 1 or self.dim % self.heads:
            raise OptionError("heads", f"dim {self.dim} is not divisible by heads {self.heads}")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise OptionError(
                "kv_heads", f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}"
            )
        sizes = (self.length,) * self.axes if isinstance(self.length, int) else self.length
        object.__setattr__(self, "length", sizes)
        if sizes is not None and (len(sizes) != self.axes or min(sizes) < 1):
            raise OptionError(
                "length",
                f"length {self.length} does not give a positive size for each of {self.axes} axes",
            )

    @property
    def head_dim(self) -> int:
        """K, the size of one head."""
        return self.dim // self.heads

    @property
    def num_kv_heads(self) -> int:
        """G, the number of heads that keys and values have."""
        return self.kv_heads or self.heads

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of training, one number per axis. Raises OptionError when nobody said it."""
        if self.length is None:
            raise OptionError(
                "length", "this encoding needs the size of training: Dims(length=...)"
            )
        return self.length if isinstance(self.length, tuple) else (self.length,) * self.axes

    @property
    def tokens(self) -> int:
        """The number of tokens in training."""
        return prod(self.sizes)


class Encoding(nn.Module):
    """Every hook's default changes nothing; most encodings override one. A hook sees `tokens.pos` under its convention.

    Facts are declared, printed, and select the laws that the encoding is tested by.
    """

    name = ""  # the registered name
    shared = True  # one module for all layers, or one per layer
    shift_invariant = False  # adding one vector to all coordinates changes no score
    causal_only = False  # meaningful only under a causal mask
    needs_full_sequence = False  # reads all tokens before the first layer, the last ones too: no causal model can have it
    axes: tuple[int, ...] = (1,)  # numbers of coordinates accepted
    axes_reason = ""  # why no other number, and what takes it
    coordinates = "index"  # default convention
    zero_gradient: tuple[str, ...] = ()  # parameters whose gradient a softmax makes exactly zero
    handles_special_tokens = False  # handles tokens without a place itself
    lookback = 0  # how many tokens before a key are read to know what its notes mean
    consumes_biases = False  # takes up the biases of the links before it, and needs one
    reads_keys = False  # makes more of keys than their products with queries
    identity_at_zero = (
        False  # changes nothing where all coordinates are 0, where tokens without a place stand
    )

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        if dims.axes not in self.axes:
            raise OptionError("name", self._refusal(dims.axes))
        self.dims = dims

    def embed(self, tokens: Tokens) -> Tokens:
        """Once, before the first layer."""
        return tokens

    def prepare(self, tokens: Tokens) -> Tokens:
        """Each layer, before keys are cached: write notes and tables."""
        return tokens

    def transform_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        """Each layer: change queries [B, H, N, K] token by token."""
        return q

    def transform_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        """Each layer, before keys are cached: change keys [B, H, M, K] token by token."""
        return k

    def update_cached_keys(self, k: Tensor, tokens: Tokens) -> tuple[Tensor, Tokens]:
        """Each layer, before keys are kept: change keys [B, G, M, K] by what the tokens after each of them say.

        Of the tokens, which hold kept ones too, read notes and documents. Notes that are spent are cut, to their last rows.
        """
        return k, tokens

    def modify(self, call: AttentionCall) -> AttentionCall:
        """Each layer: rewrite the attention call. Of `terms.keys`, read positions and notes, never states."""
        return call

    def after_attention(self, tokens: Tokens, riders: Tensor) -> Tokens:
        """Each layer, after attention and its residual: take back the mixed riders [B, H, N, E]."""
        return tokens

    def panels(self, call: AttentionCall) -> Iterable[Panel]:
        """What there is to see of it in one layer: of its parameters, and of what it made of a described call.

        Panels of one kind carry the same title in each layer. Tensors in them are detached and on the CPU.
        """
        return ()

    def extrapolations(self, factors: tuple[float, ...]) -> Mapping[str, Mapping[str, Any]]:
        """The rules by which it can be evaluated at sizes past those of training, `factors` times them along each axis.

        By name, each with the options that say so in place of its own; no parameter is another one under them. They are not
        tried where a recipe has other coordinates than the class declares.
        """
        return {}

    def adapt_parameter(self, name: str, value: Tensor, source: Self) -> Tensor | None:
        """What a parameter, learned by an encoding like this one of other sizes, is here; None to leave it as it is made.

        A `value` that is returned untouched counts as taken, whatever has the wrong shape is left. By default parameters
        are the same things wherever there are as many axes.
        """
        return value if source.dims.axes == self.dims.axes else None

    def _refusal(self, axes: int) -> str:
        accepted = " or ".join(map(str, self.axes))
        told = f"{self.name or type(self).__name__} takes {accepted} {'axis' if accepted == '1' else 'axes'}, not {axes}"
        reason = self.axes_reason or (
            "it goes by the order of tokens, and a grid has none" if self.causal_only else ""
        )
        return f"{told}: {reason}" if reason else told


EncodingFactory = Callable[[Dims], Encoding]
EncodingFactories = Annotated[Mapping[str, EncodingFactory], Choices("encodings")]
"""Encodings of a model, by name, each waiting for the sizes of its layer. A recipe gives them as a list of choices."""
