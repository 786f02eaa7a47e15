"""The hooks through which an encoding rewrites tokens, heads and attention calls, and the chain that folds several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated

import torch
from torch import Tensor, nn

from zoo.attention import coordinates
from zoo.attention.terms import Index, Rescore, Terms
from zoo.attention.tokens import Tokens, pick
from zoo.errors import Invalid
from zoo.registry import Choices


@dataclass(frozen=True)
class Dims:
    """Sizes that an encoding is made for. `length` is the size of training, a number or one per axis."""

    dim: int
    heads: int
    axes: int = 1
    length: int | tuple[int, ...] | None = None
    layer: int = 0
    depth: int | None = None

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise Invalid("dim", f"dim {self.dim} is not positive")
        if self.heads < 1 or self.dim % self.heads:
            raise Invalid("heads", f"dim {self.dim} is not divisible by heads {self.heads}")
        sizes = (self.length,) * self.axes if isinstance(self.length, int) else self.length
        object.__setattr__(self, "length", sizes)
        if sizes is not None and (len(sizes) != self.axes or min(sizes) < 1):
            raise Invalid("length", f"length {self.length} does not give a positive size for each of {self.axes} axes")

    @property
    def head(self) -> int:
        """K, the size of one head."""
        return self.dim // self.heads

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of training, one number per axis. Raises Invalid when nobody said it."""
        if self.length is None:
            raise Invalid("length", "this encoding needs the size of training: Dims(length=...)")
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
    relative = False  # adding one vector to all coordinates changes no score
    causal = False  # meaningful only under a causal mask
    axes: tuple[int, ...] = (1,)  # numbers of coordinates accepted
    coordinates = "index"  # default convention
    row_constant: tuple[str, ...] = ()  # parameters whose gradient a softmax makes exactly zero
    unplaced = False  # handles tokens without a place itself
    origin = False  # changes nothing where all coordinates are 0: tokens without a place are put there

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        if dims.axes not in self.axes:
            accepted = " or ".join(map(str, self.axes))
            raise Invalid("name", f"{self.name or type(self).__name__} takes {accepted} axes, not {dims.axes}")
        self.dims = dims

    def embed(self, tokens: Tokens) -> Tokens:
        """Once, before the first layer."""
        return tokens

    def annotate(self, tokens: Tokens) -> Tokens:
        """Each layer, before keys are cached: write notes and tables."""
        return tokens

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        """Each layer: change queries [B, H, N, K] token by token."""
        return q

    def turn_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        """Each layer, before keys are cached: change keys [B, H, M, K] token by token."""
        return k

    def terms(self, terms: Terms) -> Terms:
        """Each layer: rewrite the attention call. Of `terms.keys`, read positions and notes, never states."""
        return terms

    def update(self, tokens: Tokens, riders: Tensor) -> Tokens:
        """Each layer, after attention and its residual: take back the mixed riders [B, H, N, E]."""
        return tokens


Link = Callable[[Dims], Encoding]
Links = Annotated[Mapping[str, Link], Choices("encodings")]
"""Encodings of a model, by name, each waiting for the sizes of its layer. A recipe gives them as a list of choices."""

EXCLUSIVE = ("rescore", "weigh", "readout", "riders")


class Chain(Encoding):
    """Several encodings in order: their hooks are folded, and what holds for all of them is done here, once.

    Each link sees coordinates under its own convention. Tokens without a place are not turned, their pairs not biased,
    unless the link declares that it handles them.
    """

    def __init__(self, dims: Dims, links: Mapping[str, Encoding]) -> None:
        nn.Module.__init__(self)
        self.dims = dims
        for name, link in links.items():
            self.add_module(name, link)
        turning = [n for n, link in links.items() if type(link).turn_query is not Encoding.turn_query]
        if len(turning) > 1:
            raise Invalid("encoding", f"{' and '.join(turning)} both turn queries and keys; list one of them")
        self.shared = all(link.shared for link in self)
        self.relative = all(link.relative for link in self)
        self.causal = any(link.causal for link in self)
        self.axes = (dims.axes,)
        self.unplaced = True  # seen to here, link by link
        self.row_constant = tuple(f"{n}.{parameter}" for n, link in links.items() for parameter in link.row_constant)

    def __iter__(self) -> Iterator[Encoding]:
        return iter(self._modules.values())  # type: ignore[arg-type]

    @classmethod
    def of(cls, encoding: Encoding) -> Chain:
        """The encoding itself if it is a chain, else a chain of one."""
        return encoding if isinstance(encoding, Chain) else cls(encoding.dims, {encoding.name or "encoding": encoding})

    def embed(self, tokens: Tokens) -> Tokens:
        for link in self:
            tokens = _added(link, tokens, link.embed(_placed(link, tokens)))
        return tokens

    def annotate(self, tokens: Tokens) -> Tokens:
        for link in self:
            tokens = _added(link, tokens, link.annotate(_placed(link, tokens)))
        return tokens

    def turn_query(self, q: Tensor, tokens: Tokens) -> Tensor:
        for link in self:
            q = _turned(link, q, link.turn_query(q, _placed(link, tokens)), tokens)
        return q

    def turn_key(self, k: Tensor, tokens: Tokens) -> Tensor:
        for link in self:
            k = _turned(link, k, link.turn_key(k, _placed(link, tokens)), tokens)
        return k

    def terms(self, terms: Terms) -> Terms:
        for link in self:
            old = terms.replace(queries=_placed(link, terms.queries), keys=_placed(link, terms.keys))
            new = link.terms(old)
            for field in EXCLUSIVE:
                if getattr(old, field) is not None and getattr(new, field) is not getattr(old, field):
                    raise Invalid("encoding", f"{link.name} and a link before it both write {field}; list one of them")
            terms = new if link.unplaced else _confined(old, new)
        return terms

    def update(self, tokens: Tokens, riders: Tensor) -> Tokens:
        for link in self:
            tokens = link.update(_placed(link, tokens), riders)
        return tokens


def _placed(link: Encoding, tokens: Tokens) -> Tokens:
    """The tokens as a link sees them: coordinates under its convention; at the origin, if it asks for that, or nowhere."""
    seen = coordinates.place(tokens, link.coordinates, link.dims.length)  # type: ignore[arg-type]
    if not link.origin or tokens.placed is None:
        return seen
    return seen.replace(pos=torch.where(tokens.placed[..., None], seen.pos, 0.0))


def _added(link: Encoding, old: Tokens, new: Tokens) -> Tokens:
    """Tokens as a link leaves them, with the state that they had where they have no place."""
    if new.x is old.x or link.unplaced or old.placed is None:
        return new
    return new.replace(x=torch.where(old.placed[..., None], new.x, old.x))


def _turned(link: Encoding, old: Tensor, new: Tensor, tokens: Tokens) -> Tensor:
    """Heads [B, H, N, K] as a link leaves them: unchanged where a token has no place."""
    if new is old or link.unplaced or link.origin or tokens.placed is None:
        return new
    return torch.where(tokens.placed[:, None, :, None], new, old)


def _confined(old: Terms, new: Terms) -> Terms:
    """The new terms with all that a link added confined to pairs of tokens that have a place."""
    rows, columns = new.queries.placed, new.keys.placed
    if rows is None or columns is None or new is old:
        return new

    def both(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return pick(rows, b, i) & pick(columns, b, j)

    def confined(index: Index) -> Index:
        return lambda b, h, i, j: index(b, h, i, j) * both(b, h, i, j)

    def rescored(rescore: Rescore) -> Rescore:
        return lambda scores, visible: torch.where(new.grid(both), rescore(scores, visible), scores)

    def masked(side: Tensor, placed: Tensor) -> Tensor:  # [1|B, 1|H, N, R]
        return side * placed[:, None, :, None]

    def factored(factor: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return masked(factor[0], rows), masked(factor[1], columns)

    known = {id(part) for part in (*old.biases, *old.factors)}
    readout = new.readout
    changes: dict[str, object] = {
        "biases": tuple(b if id(b) in known else confined(b) for b in new.biases),
        "factors": tuple(f if id(f) in known else factored(f) for f in new.factors),
    }
    if new.rescore is not None and new.rescore is not old.rescore:
        changes["rescore"] = rescored(new.rescore)
    if readout is not None and readout is not old.readout:
        changes["readout"] = lambda weights: readout(weights * new.grid(both))
    return new.replace(**changes)
